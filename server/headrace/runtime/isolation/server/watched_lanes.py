"""Lanes to a worker on which no thread waits: one thread reads the answers on all of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, TypeAlias

from headrace.runtime.device.services import Readers
from headrace.runtime.errors import HeadraceError
from headrace.runtime.isolation.wire.channel import (
    MAX_DESCRIPTORS,
    Disconnected,
    Message,
    close_all,
)
from headrace.runtime.isolation.wire.lane import Lane

Take: TypeAlias = Callable[[Message | None], None]
"""Gets the answer to a request on the reading thread, or None if there will be no answer. It gets
None on another thread, and may wait there. If it raises Disconnected, the answer makes no sense,
and it is called again with None."""


MOST_BYTES: Final = 128 * 1024
"""The most bytes of requests that are sent at once. The system takes so many without waiting for
the worker, which may itself be waiting for the reading thread."""


class WatchedLanes:
    """The watched lanes of one worker. Thread-safe: single operations on a deque are atomic, and
    `_changed` guards `_lanes`.

    Args:
        connect: makes a new connection to the worker, and never waits.
        readers: reads the answers.
    """

    def __init__(self, connect: Callable[[], Lane], readers: Readers) -> None:
        self._connect = connect
        self._readers = readers
        self._idle: deque[_WatchedLane] = deque()
        self._changed = threading.Condition()
        self._lanes = 0  # lanes
        self._lost: SimpleQueue[Sequence[Take] | None] = SimpleQueue()

    def ask(
        self, requests: Sequence[bytes], takes: Sequence[Take], descriptors: Sequence[int] = ()
    ) -> bool:
        """Sends requests that run one after the other. Never waits, because the connection is
        empty, and because it refuses requests of more than `MOST_BYTES` in all. It also refuses
        more than `MAX_DESCRIPTORS` descriptors.

        Args:
            requests: packed messages.
            takes: one for each request.
            descriptors: of all the requests, in their order. The sender still owns them.

        Returns:
            Whether they were sent. If not, none of `takes` is called.
        """
        if sum(map(len, requests)) > MOST_BYTES or len(descriptors) > MAX_DESCRIPTORS:
            return False
        try:
            lane = self._idle.pop()
        except IndexError:
            opened = self._open()
            if opened is None:
                return False
            lane = opened
        return lane.ask(requests, takes, descriptors)

    def _open(self) -> _WatchedLane | None:
        try:
            lane = self._connect()
        except (HeadraceError, OSError):
            return None
        watched = _WatchedLane(lane, self._readers, self._idle, self._closed, self._lose)
        try:
            self._opened()
        except RuntimeError:
            lane.close()
            return None
        if self._readers.add(lane.fileno(), watched.readable):
            return watched
        lane.close()
        self._closed()
        return None

    def wait(self, seconds: float) -> None:
        """Waits until the reading thread has closed every lane to a worker that has ended, but no
        longer than `seconds`: that thread may have ended too."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lanes, seconds)

    def _opened(self) -> None:
        """Counts a lane. With the first one, starts the thread that tells what is lost. The system
        may have no thread when the worker ends.

        Raises:
            RuntimeError: the system has none now.
        """
        with self._changed:
            if not self._lanes:
                lost = self._lost = SimpleQueue()
                threading.Thread(
                    target=_tell_lost, args=(lost,), name="headrace-worker-lost", daemon=True
                ).start()
            self._lanes += 1

    def _closed(self) -> None:
        with self._changed:
            self._lanes -= 1
            if not self._lanes:
                self._lost.put(None)
            self._changed.notify_all()

    def _lose(self, takes: Sequence[Take]) -> None:
        self._lost.put(takes)


def _tell_lost(lost: SimpleQueue[Sequence[Take] | None]) -> None:
    """Fails the requests of lanes that were lost. This may wait for the worker's end."""
    while (takes := lost.get()) is not None:
        for take in takes:
            take(None)


class _WatchedLane:
    """One lane. `_lock` guards `_waiting`, keeps a close from racing with a send, and is held for
    microseconds.

    Args:
        idle: where the lane goes while no request is under way.
        closed: called when the lane is closed.
        lost: called with the requests that were under way then.
    """

    def __init__(
        self,
        lane: Lane,
        readers: Readers,
        idle: deque[_WatchedLane],
        closed: Callable[[], None],
        lost: Callable[[Sequence[Take]], None],
    ) -> None:
        self._lane = lane
        self._readers = readers
        self._idle = idle
        self._closed = closed
        self._lost = lost
        self._lock = threading.Lock()
        self._waiting: deque[Take] = deque()  # of the requests under way, in their order

    def ask(
        self, requests: Sequence[bytes], takes: Sequence[Take], descriptors: Sequence[int]
    ) -> bool:
        """As `WatchedLanes.ask`. The lane is not idle."""
        with self._lock:
            self._waiting.extend(takes)  # first, because an answer may come at once
            try:
                self._lane.gather(*requests)
                self._lane.flush(descriptors)
            except (Disconnected, MemoryError):
                for _ in takes:
                    self._waiting.pop()
                self._lane.shutdown()  # the reading thread then closes it
                return False
        return True

    def readable(self) -> None:
        """Takes what has come. Belongs to the reading thread."""
        try:
            self._lane.read()
            while (message := self._lane.take()) is not None:
                self._answer(message)
        except Disconnected:
            self._end()

    def _answer(self, message: Message) -> None:
        with self._lock:
            take = self._waiting.popleft() if self._waiting else None
            idle = not self._waiting
        if take is None:
            close_all(message.descriptors)
            raise Disconnected("an answer came to no request")
        if idle:
            self._idle.append(self)  # first, because `take` may send the next requests
        try:
            take(message)
        except Disconnected:
            with self._lock:
                self._waiting.appendleft(take)  # it is told with those behind it, in their order
            raise

    def _end(self) -> None:
        self._readers.remove(self._lane.fileno())
        with self._lock:
            lost = list(self._waiting)
            self._waiting.clear()
            self._lane.close()
        if lost:
            self._lost(lost)
        self._closed()
