"""Weights in mapped files. The kernel keeps in memory only what is in use.

A network keeps the weights it was loaded with, to export them, while the backend computes with
copies that it has packed for its kernels. To avoid having both in memory, weights that came as
bytes are written to a temporary file without a name, in the folder that TMPDIR names. Each weight
is aligned so that vector code can read it in place.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.runtime.system.memory_limit import memory_limit

_log = logging.getLogger(__name__)

_ALIGNMENT_BYTES = 64
_MAPS = Path("/proc/self/maps")
_POPULATE_READ = 22
"""MADV_POPULATE_READ of madvise(2), which kernels before 5.14 refuse."""


def settle_pages(path: Path) -> None:
    """Brings into memory what this process maps of a file, so that no request waits for the disk.
    If memory is short, its other pages leave: they would drive out pages that requests use."""
    real = str(path.resolve())
    with suppress(OSError), path.open("rb") as file, _MAPS.open() as maps:
        for line in maps:
            place, *_, name = line.rstrip("\n").split(maxsplit=5)
            if name == real:
                start, end = (int(each, 16) for each in place.split("-"))
                ctypes.CDLL(None).madvise(
                    ctypes.c_void_p(start), ctypes.c_size_t(end - start), _POPULATE_READ
                )
        memory = memory_limit()
        if memory is None or memory.free < 2 * os.fstat(file.fileno()).st_size:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class MappedFiles:
    """The files that one network's weights are mapped from. Not thread-safe while files are added.

    Nothing closes the maps: each ends with the last array that lies in it.
    """

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def map(self, file: int) -> memoryview:
        """The bytes of an open file, read-only.

        Args:
            file: its descriptor.

        Raises:
            OSError, ValueError: the file cannot be mapped.
        """
        if os.fstat(file).st_size == 0:
            return memoryview(b"")
        mapped = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
        self._maps.append(mapped)
        return memoryview(mapped)

    def spool(self, pieces: Sequence[memoryview]) -> list[memoryview]:
        """Moves the pieces to a temporary file and returns views of it. If there is no room for the
        file, returns the pieces unchanged."""
        offsets = []
        try:
            with tempfile.TemporaryFile(prefix="headrace-weights-") as file:
                for piece in pieces:
                    end = file.tell()
                    offsets.append(file.seek(end + -end % _ALIGNMENT_BYTES))
                    file.write(piece)
                file.flush()
                view = self.map(file.fileno())
        except OSError as error:
            _log.warning("weights stay in memory: no room for a temporary file: %s", error)
            return list(pieces)
        return [
            view[offset : offset + len(piece)]
            for offset, piece in zip(offsets, pieces, strict=True)
        ]

    def forget_pages(self) -> None:
        """Removes the files' pages from the process's memory. Pages that are read again come back
        by themselves."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)
