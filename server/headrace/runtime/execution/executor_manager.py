"""Executors by name, one for each physical device id. Networks share them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.runtime.errors import Unavailable
from headrace.runtime.execution.streams_executor import StreamsExecutor


class ExecutorManager:
    """Creates an executor when it is first asked for. Thread-safe; `_lock` guards the tables."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executors: dict[str, StreamsExecutor] = {}
        self._listeners: dict[object, Callable[[], object]] = {}
        self._stopped = False

    def get(self, name: str, streams: int, *, bind: bool = False) -> StreamsExecutor:
        """The executor of a device such as `CPU.0`. `streams` and `bind` are used only to create
        it.

        Raises:
            Unavailable: the executors have been stopped.
        """
        with self._lock:
            if self._stopped:
                raise Unavailable(f"device {name} is shutting down")
            executor = self._executors.get(name)
            if executor is None:
                executor = self._executors[name] = self._make(name, streams, bind)
            return executor

    def find(self, name: str) -> StreamsExecutor | None:
        """The executor of that name, or None if there is none yet."""
        with self._lock:
            return self._executors.get(name)

    def resize(self, name: str, streams: int) -> None:
        """Changes an executor's number of streams, if the executor exists already."""
        executor = self.find(name)
        if executor is None or executor.streams == streams:
            return
        executor.resize(streams)
        with self._lock:
            listeners = list(self._listeners.values())
        for listener in listeners:
            listener()

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Calls `listener` after an executor's number of streams changes. It must not raise.

        Returns:
            A function that ends the subscription. A call that runs on another thread then goes on.
        """
        ticket = object()
        with self._lock:
            self._listeners[ticket] = listener

        def unsubscribe() -> None:
            with self._lock:
                self._listeners.pop(ticket, None)

        return unsubscribe

    def stop(self, timeout: float | None = None) -> None:
        """Stops every executor. Waiting tasks fail with Unavailable."""
        with self._lock:
            self._stopped = True
            executors, self._executors = list(self._executors.values()), {}
        for executor in executors:
            executor.stop(timeout)

    def _make(self, name: str, streams: int, bind: bool) -> StreamsExecutor:
        return StreamsExecutor(name, streams, bind=bind)
