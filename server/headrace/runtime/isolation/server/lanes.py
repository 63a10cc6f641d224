"""Lanes to a worker: the links for requests. On some a thread waits for its answer. On *watched*
ones no thread waits; one thread reads the answers on all of them."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeAlias

from headrace.ipc.link import CREDIT_BYTES, MAX_DESCRIPTORS, Disconnected, Link, Message
from headrace.runtime.device.services import Readers
from headrace.runtime.errors import HeadraceError

Take: TypeAlias = Callable[[Message | None], None]
"""Gets the answer to a request on the reading thread, or None if there will be no answer. It gets
None on another thread, and may wait there. If it raises Disconnected, the answer makes no sense,
and it is called again with None."""


class Lanes:
    """The idle lanes of one worker. Thread-safe; `_lock` guards all fields.

    Args:
        connect: makes a new link to the worker.
    """

    def __init__(self, connect: Callable[[], Link]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._closed = False

    @contextmanager
    def lane(self) -> Iterator[Link]:
        """A link for one request at a time. It is closed if the context raises.

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


class WatchedLanes:
    """The watched lanes of one worker. Thread-safe: single operations on a deque are atomic, and
    `_changed` guards `_lanes`.

    Args:
        connect: makes a new link to the worker, and never waits.
        readers: reads the answers.
    """

    def __init__(self, connect: Callable[[], Link], readers: Readers) -> None:
        self._connect = connect
        self._readers = readers
        self._idle: deque[_WatchedLane] = deque()
        self._changed = threading.Condition()
        self._lanes = 0  # lanes
        self._lost: SimpleQueue[Sequence[Take] | None] = SimpleQueue()

    def ask(self, data: bytes, takes: Sequence[Take], descriptors: Sequence[int] = ()) -> bool:
        """Sends requests that run one after the other. Never waits, because the link is empty, and
        because it refuses more than a link's credit: `CREDIT_BYTES` and `MAX_DESCRIPTORS`.

        Args:
            data: the packed messages.
            takes: one for each request.
            descriptors: of all the requests, in their order. The sender still owns them.

        Returns:
            Whether they were sent. If not, none of `takes` is called.
        """
        if len(data) > CREDIT_BYTES or len(descriptors) > MAX_DESCRIPTORS:
            return False
        try:
            lane = self._idle.pop()
        except IndexError:
            opened = self._open()
            if opened is None:
                return False
            lane = opened
        with lane.lock:
            lane.waiting.extend(takes)  # first, because an answer may come at once
            try:
                lane.link.send(data, descriptors)
            except (OSError, MemoryError):
                for _ in takes:
                    lane.waiting.pop()
                lane.link.shutdown()  # the reading thread then closes it
                return False
        return True

    def _open(self) -> _WatchedLane | None:
        try:
            link = self._connect()
        except (HeadraceError, OSError):
            return None
        lane = _WatchedLane(link, self._readers, self._idle, self._closed, self._lose)
        try:
            self._opened()
        except RuntimeError:
            link.close()
            return None
        if self._readers.add(link.fileno(), lane.readable):
            return lane
        link.close()
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
    """One watched lane. `lock` guards `waiting`, keeps a close from racing with a send, and is held
    for microseconds.

    Args:
        idle: where the lane goes while no request is under way.
        closed: called when the lane is closed.
        lost: called with the requests that were under way then.

    Attributes:
        waiting: the requests under way, in their order.
    """

    def __init__(
        self,
        link: Link,
        readers: Readers,
        idle: deque[_WatchedLane],
        closed: Callable[[], None],
        lost: Callable[[Sequence[Take]], None],
    ) -> None:
        self.link = link
        self.lock = threading.Lock()
        self.waiting: deque[Take] = deque()
        self._readers = readers
        self._idle = idle
        self._closed = closed
        self._lost = lost

    def readable(self) -> None:
        """Takes what has come. Belongs to the reading thread."""
        link = self.link
        try:
            link.read()
            while (message := link.take()) is not None:
                with self.lock:
                    take = self.waiting.popleft() if self.waiting else None
                    idle = not self.waiting
                if take is None:
                    for descriptor in message.descriptors:
                        os.close(descriptor)
                    raise Disconnected("an answer came to no request")
                if idle:
                    self._idle.append(self)  # first, because `take` may send the next requests
                try:
                    take(message)
                except Disconnected:
                    with self.lock:
                        self.waiting.appendleft(take)  # told with those behind it, in their order
                    raise
        except Disconnected:
            self._end()

    def _end(self) -> None:
        self._readers.remove(self.link.fileno())
        with self.lock:
            lost = list(self.waiting)
            self.waiting.clear()
            self.link.close()
        if lost:
            self._lost(lost)
        self._closed()
