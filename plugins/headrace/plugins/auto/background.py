"""Loads under way while the network already serves, on threads that all networks share."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.runtime.executor_manager import ExecutorManager
from headrace.runtime.fair_queue import Entry
from headrace.runtime.streams_executor import Share, Task

_EXECUTOR = "AUTO-load"
_THREADS = 2


class Background:
    """One network's place there: one task at a time. Not to be started by two threads at once."""

    def __init__(self, executors: ExecutorManager) -> None:
        self._executors = executors
        self._share: Share | None = None
        self._task: _Task | None = None

    def start(self, action: Callable[[], object]) -> None:
        """Runs the action, which does not raise, on one of the threads.

        Raises:
            Unavailable: they have stopped.
        """
        if self._share is None:
            self._share = self._executors.get(_EXECUTOR, _THREADS).share(1)
        task = _Task(action)
        self._task = task
        try:
            self._share.submit(task)
        except BaseException:
            task.ended.set()
            raise

    def stop(self) -> None:
        """Drops what has not begun, and waits for the end of what has. Not for the action."""
        task, share = self._task, self._share
        if task is None or share is None:
            return
        if task.entry is not None and share.remove(task.entry):
            return
        task.ended.wait()


class _Task:
    priority = 0

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self.entry: Entry[Task] | None = None
        self.ended = threading.Event()

    def run(self, stream: int) -> None:
        try:
            self._action()
        finally:
            self.ended.set()

    def fail(self, error: BaseException) -> None:
        self.ended.set()
