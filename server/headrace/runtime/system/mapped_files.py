"""Weights in mapped files: the kernel keeps in memory what is in use.

A network keeps the weights it was loaded with, to export them, while the backend computes with
copies that it has packed for its kernels. So that they are not in memory twice, those that came as
bytes are written to a temporary file without a name, in the folder that TMPDIR names, each where
vector code may read it in place.
"""

from __future__ import annotations

import logging
import mmap
import tempfile
from collections.abc import Sequence
from typing import IO

_log = logging.getLogger(__name__)

_ALIGNMENT_BYTES = 64


class MappedFiles:
    """The files that one network's weights are mapped from. Not thread-safe while files are added.

    Nothing closes them: a map ends with the last array that lies in it.
    """

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def map(self, file: IO[bytes]) -> memoryview:
        """The bytes of a file that is not empty, read-only.

        Raises:
            OSError, ValueError: it cannot be mapped.
        """
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._maps.append(mapped)
        return memoryview(mapped)

    def spool(self, pieces: Sequence[memoryview]) -> list[memoryview]:
        """The pieces, moved to a temporary file; as they are where there is no room for one."""
        offsets = []
        try:
            with tempfile.TemporaryFile(prefix="headrace-weights-") as file:
                for piece in pieces:
                    end = file.tell()
                    offsets.append(file.seek(end + -end % _ALIGNMENT_BYTES))
                    file.write(piece)
                file.flush()
                view = self.map(file)
        except OSError as error:
            _log.warning("weights stay in memory, there is no room for a temporary file: %s", error)
            return list(pieces)
        return [
            view[offset : offset + len(piece)]
            for offset, piece in zip(offsets, pieces, strict=True)
        ]

    def forget_pages(self) -> None:
        """Takes the files out of the process's memory; what is read again comes back by itself."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)
