"""Executors by name: borrowed by networks, one for each physical device id."""

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
        """The executor of a device, as `CPU.0`; `streams` and `bind` count when it is created.

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
        """The executor if there is one already."""
        with self._lock:
            return self._executors.get(name)

    def resize(self, name: str, streams: int) -> None:
        """Gives an executor, if there is one already, another number of streams."""
        executor = self.find(name)
        if executor is None or executor.streams == streams:
            return
        executor.resize(streams)
        with self._lock:
            listeners = list(self._listeners.values())
        for listener in listeners:
            listener()

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Calls `listener`, which does not raise, after an executor got another number of streams.

        Returns:
            Ends the subscription. A call that runs at that moment on another thread runs on.
        """
        ticket = object()
        with self._lock:
            self._listeners[ticket] = listener

        def unsubscribe() -> None:
            with self._lock:
                self._listeners.pop(ticket, None)

        return unsubscribe

    def stop(self, timeout: float | None = None) -> None:
        """Stops every executor; what waits fails with Unavailable."""
        with self._lock:
            self._stopped = True
            executors, self._executors = list(self._executors.values()), {}
        for executor in executors:
            executor.stop(timeout)

    def _make(self, name: str, streams: int, bind: bool) -> StreamsExecutor:
        return StreamsExecutor(name, streams, bind=bind)
