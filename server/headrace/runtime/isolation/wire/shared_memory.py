"""Memory that server and worker both map.

A segment is an anonymous file (memfd_create(2)), sealed so that neither process can shorten it
while the other uses it. It has no name, so it is gone when both processes have ended, however they
ended. Its descriptor is closed as soon as both have mapped it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np

from headrace.runtime.errors import ResourceExhausted
from headrace.runtime.isolation.wire.channel import Disconnected, close_all

if TYPE_CHECKING:  # a front end needs no networks, and its start no seconds to import them
    from headrace.runtime.network.values import Array

ALIGNMENT = 64
_SMALLEST_BYTES = 64 * 1024
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Segment:
    """A mapped piece of shared memory. `number` names it between one server and one worker."""

    __slots__ = ("array", "descriptor", "number", "size")

    def __init__(self, number: int, descriptor: int, size: int) -> None:
        self.number = number
        self.size = size
        self.descriptor: int | None = descriptor  # until the other process has it
        # The array keeps the mapping; the last view of it unmaps it.
        self.array: Array = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)

    @classmethod
    def create(cls, number: int, size: int) -> Segment:
        """
        Raises:
            ResourceExhausted: the system has no memory for it.
        """
        descriptor = _memory_file("headrace-tensors")
        try:
            # Reserve the pages now, where a failure is an ordinary error. Without this, a write
            # that finds no memory ends the process with a bus error.
            os.posix_fallocate(descriptor, 0, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            return cls(number, descriptor, size)
        except OSError as error:
            os.close(descriptor)
            raise ResourceExhausted(f"no shared memory for {size} bytes: {error}") from error

    @classmethod
    def attach(cls, number: int, descriptor: int) -> Segment:
        """Maps a segment that the other process made, and closes the descriptor.

        Raises:
            Disconnected: the file can still be shortened, or is not a segment.
        """
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise Disconnected("shared memory came without its seals")
            segment = cls(number, descriptor, os.fstat(descriptor).st_size)
        except (OSError, ValueError) as error:
            raise Disconnected(f"shared memory cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        segment.descriptor = None
        return segment

    def known(self) -> None:
        """Closes the descriptor, because the other process has mapped the segment."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def rounded(size: int) -> int:
    """The size of a segment for `size` bytes. It is rounded up, by a quarter or 64 KiB at most, so
    that few different sizes occur."""
    step = max(_SMALLEST_BYTES, 1 << max(0, size.bit_length() - 3))
    return -(-size // step) * step


class SegmentPool:
    """The server's end of the segments between the server and one worker. Thread-safe.

    `_lock` guards all but `_returned` and `_dropped`, which are queues that need no lock. The
    thread that drops the last array in a segment gives the segment back, and the garbage collector
    may drop it at any point, even under the lock. A segment that comes back after `clear` is not
    kept, because it might never be used again.

    Args:
        idle_bytes: how many bytes are kept for reuse, at most.
    """

    def __init__(self, idle_bytes: int = 64 * 2**20) -> None:
        self._idle_bytes = idle_bytes
        self._lock = threading.Lock()
        self._returned: deque[Segment] = deque()
        self._dropped: deque[int] = deque()
        self._keeps = True
        self._idle: list[Segment] = []
        self._forgotten: list[int] = []
        self._numbers = 0
        self._closed = False

    def number(self) -> int:
        """A number for a segment that the worker may make."""
        with self._lock:
            self._keeps = not self._closed
            self._numbers += 1
            return self._numbers

    def take(self, size: int) -> Segment:
        """A segment of at least `size` bytes, but not many times larger.

        Raises:
            ResourceExhausted: the system has no memory for it.
        """
        with self._lock:
            self._keeps = not self._closed
            self._collect()
            fitting = [each for each in self._idle if size <= each.size <= 4 * rounded(size)]
            if fitting:
                best = min(fitting, key=lambda each: each.size)
                self._idle.remove(best)
                return best
            self._numbers += 1
            number = self._numbers
        return Segment.create(number, rounded(size))

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
        return np.asarray(_Loan(self, segment))

    def forgotten(self) -> list[int]:
        """Numbers of segments that the worker can unmap. Each is returned once."""
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
            return sum(each.size for each in self._idle)

    def clear(self) -> None:
        """Drops the idle segments, and keeps none until another segment is taken."""
        with self._lock:
            self._keeps = False
            self._collect()
            self._drop(self._idle)
            self._idle = []

    def close(self) -> None:
        """Ends the pool, because the worker has gone. Lent segments go when their last view
        does."""
        with self._lock:
            self._closed = True
        self.clear()

    def _collect(self) -> None:
        with suppress(IndexError):  # until it is empty; `give` takes from it too
            while True:
                self._idle.append(self._returned.popleft())
        while self._dropped:
            self._forgotten.append(self._dropped.popleft())
        limit = 0 if self._closed else self._idle_bytes
        excess = sum(each.size for each in self._idle) - limit
        dropped = []
        while excess > 0:
            dropped.append(self._idle.pop(0))
            excess -= dropped[-1].size
        self._drop(dropped)

    def _drop(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            if segment.descriptor is None:
                self._forgotten.append(segment.number)
            segment.known()


class _Loan:
    """The base object of all views of a segment. NumPy keeps it until the last view has gone; then
    it gives the segment back."""

    __slots__ = ("__array_interface__", "_pool", "_segment")

    def __init__(self, pool: SegmentPool, segment: Segment) -> None:
        self.__array_interface__ = segment.array.__array_interface__
        self._pool = pool
        self._segment = segment

    def __del__(self) -> None:
        self._pool.give(self._segment)


class SegmentTable:
    """The worker's end: the segments that it shares with the server. Thread-safe, because single
    operations on a dictionary are atomic, and each segment belongs to one request at a time."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}

    def add(self, segment: Segment) -> None:
        self._segments[segment.number] = segment

    def get(self, number: int) -> Segment:
        """The segment with that number.

        Raises:
            Disconnected: there is no such segment.
        """
        segment = self._segments.get(number)
        if segment is None:
            raise Disconnected(f"there is no shared memory {number}")
        return segment

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._segments.pop(number, None)

    def __len__(self) -> int:
        return len(self._segments)


@contextmanager
def write_file(pieces: Iterable[bytes | memoryview]) -> Iterator[int]:
    """The descriptor of an anonymous file with these bytes. It is closed at the context's end.

    Raises:
        ResourceExhausted: the system has no memory for it.
    """
    descriptor = _memory_file("headrace-bytes")
    try:
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                for piece in pieces:
                    file.write(piece)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_WRITE)
        except OSError as error:
            raise ResourceExhausted(f"no shared memory for a model: {error}") from error
        yield descriptor
    finally:
        os.close(descriptor)


def map_files(descriptors: Sequence[int]) -> list[memoryview]:
    """The bytes of files from `write_file`, mapped while referred to. Closes the descriptors.

    Raises:
        Disconnected: one is not such a file, or its bytes can still change.
    """
    try:
        return [_mapped(each) for each in descriptors]
    finally:
        close_all(descriptors)


def _mapped(descriptor: int) -> memoryview:
    try:
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE:
            raise Disconnected("bytes came in a file without its seals")
        size = os.fstat(descriptor).st_size
        return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ) if size else b"")
    except OSError as error:
        raise Disconnected(f"a file cannot be mapped: {error}") from error


def _memory_file(name: str) -> int:
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise ResourceExhausted(f"no shared memory: {error}") from error
