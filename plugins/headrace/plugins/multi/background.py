"""Loads under way while the network already serves, on threads that all networks share."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.runtime.execution.executor_manager import ExecutorManager
from headrace.runtime.execution.fair_queue import Entry
from headrace.runtime.execution.streams_executor import Share, Task

_EXECUTOR = "late-loads"
_THREADS = 2


class Background:
    """One network's place there: its tasks run one after the other. Thread-safe; `_lock` guards the
    fields."""

    def __init__(self, executors: ExecutorManager) -> None:
        self._executors = executors
        self._lock = threading.Lock()
        self._share: Share | None = None
        self._tasks: list[_Task] = []

    def start(self, action: Callable[[], object]) -> None:
        """Runs the action, which does not raise, on one of the threads.

        Raises:
            Unavailable: they have stopped.
        """
        task = _Task(action)
        with self._lock:
            if self._share is None:
                self._share = self._executors.get(_EXECUTOR, _THREADS).share(1)
            self._tasks = [each for each in self._tasks if not each.ended.is_set()]
            self._share.submit(task)
            self._tasks.append(task)

    def stop(self) -> None:
        """Drops what has not begun, and waits for the end of what has. Not for the action."""
        with self._lock:
            tasks, share = self._tasks, self._share
        for task in tasks:
            if share is not None and task.entry is not None and share.remove(task.entry):
                task.ended.set()
        for task in tasks:
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
