"""The threads that load, query and close networks, so that no request ever waits behind a load."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from headrace.runtime.errors import ResourceExhausted

T = TypeVar("T")


class LoadExecutor:
    """A bounded number of tasks on a few threads, and one thread apart that closes networks.

    Thread-safe; `_lock` guards the count.
    """

    def __init__(self, threads: int = 2, capacity: int = 256) -> None:
        self._lock = threading.Lock()
        self._capacity = capacity
        self._pending = 0
        self._loading = ThreadPoolExecutor(threads, thread_name_prefix="headrace-load")
        self._closing = ThreadPoolExecutor(1, thread_name_prefix="headrace-close")

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Runs a task that a client asked for.

        Raises:
            ResourceExhausted: too many wait already.
        """
        with self._lock:
            if self._pending >= self._capacity:
                raise ResourceExhausted(
                    f"{self._pending} loads and queries are waiting, as many as the server takes; "
                    f"try again later"
                )
            self._pending += 1
        future = self._loading.submit(task)
        future.add_done_callback(self._ended)
        return future

    def close(self, task: Callable[[], T]) -> Future[T]:
        """Runs a task that frees something; never refused."""
        return self._closing.submit(task)

    def stop(self) -> None:
        """Drops what has not begun and waits for the rest."""
        self._loading.shutdown(cancel_futures=True)
        self._closing.shutdown()

    def _ended(self, _: Future[T]) -> None:
        with self._lock:
            self._pending -= 1
