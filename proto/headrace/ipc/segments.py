"""Memory that two processes both map.

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
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.ipc.link import Disconnected

Array: TypeAlias = npt.NDArray[Any]

ALIGNMENT: Final = 64
_SMALLEST_BYTES: Final = 64 * 1024
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Segment:
    """A mapped piece of shared memory. `number` names it between two processes."""

    __slots__ = ("array", "descriptor", "interface", "number", "size")

    def __init__(self, number: int, descriptor: int, size: int) -> None:
        self.number = number
        self.size = size
        self.descriptor: int | None = descriptor  # until the other process has it
        # The array keeps the mapping; the last view of it unmaps it.
        self.array: Array = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        self.interface = self.array.__array_interface__  # NumPy makes it anew each time

    @classmethod
    def create(cls, number: int, size: int, *, reserve: bool = True) -> Segment:
        """
        Args:
            reserve: as `reserve_pages`, now. Otherwise the file gets its size alone, which takes
                microseconds.

        Raises:
            OSError: the system has no memory for it.
        """
        descriptor = _memory_file("headrace-tensors")
        try:
            (reserve_pages if reserve else os.ftruncate)(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            return cls(number, descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def attach(cls, number: int, descriptor: int) -> Segment:
        """Maps a segment that the other process made, and closes the descriptor.

        Raises:
            Disconnected: the file can still be shortened, or is not a segment.
        """
        try:
            _check_seals(descriptor, _SEALS)
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


def reserve_pages(descriptor: int, size: int) -> None:
    """Reserves the pages of a segment, where a failure is an ordinary error. Without this, a write
    that finds no memory ends the process with a bus error.

    Raises:
        OSError: the system has no memory for it.
    """
    os.posix_fallocate(descriptor, 0, size)


def rounded(size: int, smallest: int = _SMALLEST_BYTES) -> int:
    """The size of a segment for `size` bytes. It is rounded up, by a quarter or `smallest` at most,
    so that few different sizes occur."""
    step = max(smallest, 1 << max(0, size.bit_length() - 3))
    return -(-size // step) * step


class SegmentTable:
    """The segments that a process shares with the one that numbers them. Thread-safe, because
    single operations on a dictionary are atomic, and each belongs to one request at a time."""

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
        OSError: the system has no memory for it.
    """
    descriptor = _memory_file("headrace-bytes")
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            for piece in pieces:
                file.write(piece)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_WRITE)
        yield descriptor
    finally:
        os.close(descriptor)


def map_files(descriptors: Sequence[int]) -> list[memoryview]:
    """The bytes of files from `write_file`, mapped while referred to. Closes the descriptors.

    Raises:
        Disconnected: one is not such a file, or its bytes can still change.
    """
    try:
        return [_mapped(descriptor) for descriptor in descriptors]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _mapped(descriptor: int) -> memoryview:
    try:
        _check_seals(descriptor, _SEALS | fcntl.F_SEAL_WRITE)
        size = os.fstat(descriptor).st_size
        return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ) if size else b"")
    except OSError as error:
        raise Disconnected(f"a file cannot be mapped: {error}") from error


def _check_seals(descriptor: int, seals: int) -> None:
    """
    Raises:
        OSError: it is not a memfd, or the other process may still change what the seals forbid.
    """
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & seals != seals:
        raise OSError("the memory came without its seals")


def _memory_file(name: str) -> int:
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
