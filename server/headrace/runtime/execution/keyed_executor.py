"""Runs the tasks of each key one after the other, and those of different keys at the same time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

_Tasks: TypeAlias = "deque[tuple[Future[Any], Callable[[], Any]]]"


class KeyedExecutor:
    """Keeps a task of one identity from waiting for those of another one. Thread-safe: `_lock`
    guards what waits.

    Args:
        threads: how many keys may have a task running.
        name: of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._waiting: dict[str, _Tasks] = {}
        self._has_thread = False

    def submit(self, task: Callable[[], T], key: str) -> Future[T]:
        """Runs a task, which must not wait for another one of its key.

        Raises:
            RuntimeError: it has stopped, or the system has no thread.
        """
        future: Future[T] = Future()
        with self._lock:
            mine = self._waiting.setdefault(key, deque())
            mine.append((future, task))
            if len(mine) == 1:
                try:
                    self._threads.submit(self._work, key, mine)
                    self._has_thread = True
                except RuntimeError:  # one more thread; an earlier one runs it when it is free
                    if not self._has_thread:
                        mine.clear()
                        del self._waiting[key]
                        raise
        return future

    def waiting(self, key: str) -> int:
        """How many tasks of the key wait or run."""
        with self._lock:
            return len(self._waiting.get(key, ()))

    def stop(self) -> None:
        """Waits for the end of all tasks."""
        self._has_thread = False
        self._threads.shutdown()

    def _work(self, key: str, mine: _Tasks) -> None:
        while mine:
            future, task = mine[0]
            try:
                result = task()
            except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, task
            with self._lock:
                mine.popleft()
                if not mine:
                    del self._waiting[key]
