"""Memory that server and worker both map.

A segment is an anonymous file (memfd_create(2)), sealed so that neither process can shorten it
while the other uses it. It has no name, so it is gone when both processes have ended, however they
ended. Its descriptor is closed as soon as both have mapped it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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

    __slots__ = ("array", "descriptor", "interface", "number", "size")

    def __init__(self, number: int, descriptor: int, size: int) -> None:
        self.number = number
        self.size = size
        self.descriptor: int | None = descriptor  # until the other process has it
        # The array keeps the mapping; the last view of it unmaps it.
        self.array: Array = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        self.interface = self.array.__array_interface__  # NumPy makes it anew each time

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
