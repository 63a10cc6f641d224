"""Lanes to a worker on which a stream's thread waits for its answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.runtime.isolation.wire.lane import Lane


class Lanes:
    """The idle lanes of one worker. Thread-safe; `_lock` guards all fields.

    Args:
        connect: makes a new connection to the worker.
    """

    def __init__(self, connect: Callable[[], Lane]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[Lane] = []
        self._closed = False

    @contextmanager
    def lane(self) -> Iterator[Lane]:
        """A connection for one request at a time. It is closed if the context raises.

        Raises:
            WorkerLost: the worker has ended.
        """
        with self._lock:
            lane = self._idle.pop() if self._idle else None
        if lane is None:
            lane = self._connect()
        try:
            yield lane
        except BaseException:
            lane.close()
            raise
        with self._lock:
            if not self._closed:
                self._idle.append(lane)
                return
        lane.close()

    def close(self) -> None:
        """Closes the idle lanes, and each other lane when its request has ended."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for lane in idle:
            lane.close()
