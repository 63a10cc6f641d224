"""Segments of shared memory that are used again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress

import numpy as np

from headrace.ipc.segments import Array, Segment, rounded


class SegmentPool:
    """The segments that this process shares with another one, and numbers. Thread-safe.

    `_lock` guards all but `_returned` and `_dropped`, which are queues that need no lock. The
    thread that drops the last array in a segment gives the segment back, and the garbage collector
    may drop it at any point, even under the lock. A segment that comes back after `clear` is not
    kept, because it might never be used again.

    Args:
        numbers: gives the segments their numbers. Whoever takes other numbers from it, and has the
            other process make a segment of that number, gives it to `lend` later.
        idle_bytes: how many bytes are kept for reuse, at most.
    """

    def __init__(self, numbers: Iterator[int], idle_bytes: int = 64 * 2**20) -> None:
        self._numbers = numbers
        self._idle_bytes = idle_bytes
        self._lock = threading.Lock()
        self._returned: deque[Segment] = deque()
        self._dropped: deque[int] = deque()
        self._keeps = True
        self._idle: dict[int, list[Segment]] = {}  # by their sizes, those used last at the end
        self._idle_size = 0  # bytes of all of them
        self._forgotten: list[int] = []
        self._closed = False

    def take(self, size: int) -> Segment:
        """A segment of at least `size` bytes, but not many times larger.

        Raises:
            OSError: the system has no memory for it.
        """
        with self._lock:
            self._keeps = not self._closed
            self._collect()
            wanted = rounded(size)
            if wanted not in self._idle:
                larger = (each for each in self._idle if wanted < each <= 4 * wanted)
                wanted = min(larger, default=0)
            if wanted:
                segments = self._idle.pop(wanted)
                segment = segments.pop()
                if segments:
                    self._idle[wanted] = segments
                self._idle_size -= wanted
                return segment
        return Segment.create(next(self._numbers), rounded(size))

    def give(self, segment: Segment) -> None:
        """Takes a segment back. May be called anywhere, also in finalizers."""
        self._returned.append(segment)
        # Append first, then test: either `clear` finds the segment, or this sees that it cleared.
        while not self._keeps and self._returned:
            try:
                returned = self._returned.popleft()
            except IndexError:
                return  # another thread was faster
            if returned.descriptor is None:
                self._dropped.append(returned.number)
            returned.known()

    def lend(self, segment: Segment) -> Array:
        """The segment's bytes. The segment comes back when the last view of them has gone."""
        with self._lock:
            self._keeps = not self._closed
        return np.asarray(_Loan(self, segment))

    def forgotten(self) -> list[int]:
        """Numbers of segments that the other process can unmap. Each is returned once."""
        if not (self._returned or self._dropped or self._forgotten):
            return []
        with self._lock:
            self._collect()
            numbers, self._forgotten = self._forgotten, []
        return numbers

    def forget(self, numbers: Iterable[int]) -> None:
        """Has `forgotten` return these numbers again."""
        with self._lock:
            self._forgotten.extend(numbers)

    def idle(self) -> int:
        """How many bytes are kept for reuse."""
        with self._lock:
            self._collect()
            return self._idle_size

    def clear(self) -> None:
        """Drops the idle segments, and keeps none until another segment is taken or lent."""
        with self._lock:
            self._keeps = False
            self._collect()
            self._drop(0)

    def close(self) -> None:
        """Ends the pool, because the other process has gone. Lent segments go when their last view
        does."""
        with self._lock:
            self._closed = True
        self.clear()

    def _collect(self) -> None:
        with suppress(IndexError):  # until it is empty; `give` takes from it too
            while True:
                segment = self._returned.popleft()
                self._idle.setdefault(segment.size, []).append(segment)
                self._idle_size += segment.size
        while self._dropped:
            self._forgotten.append(self._dropped.popleft())
        self._drop(0 if self._closed else self._idle_bytes)

    def _drop(self, limit: int) -> None:
        """Drops idle segments, of the size that was used least lately, until at most `limit` bytes
        are left."""
        while self._idle_size > limit:
            size = next(iter(self._idle))
            segments = self._idle[size]
            segment = segments.pop(0)
            if not segments:
                del self._idle[size]
            self._idle_size -= size
            if segment.descriptor is None:
                self._forgotten.append(segment.number)
            segment.known()


class _Loan:
    """The base object of all views of a segment. NumPy keeps it until the last view has gone; then
    it gives the segment back."""

    __slots__ = ("__array_interface__", "_pool", "_segment")

    def __init__(self, pool: SegmentPool, segment: Segment) -> None:
        self.__array_interface__ = segment.interface
        self._pool = pool
        self._segment = segment

    def __del__(self) -> None:
        self._pool.give(self._segment)
