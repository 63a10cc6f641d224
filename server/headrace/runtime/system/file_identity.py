"""What is different if a file is, or was written to."""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple, Self

_SETTLED_SECONDS: Final = 2.0
"""The coarsest clock of a file system: two writes within that time may have the same one."""


class FileIdentity(NamedTuple):
    """Equal only for one file that nobody has written to."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, descriptor: int) -> Self:
        """That of an open file.

        Raises:
            OSError: the system does not tell it.
        """
        told = os.fstat(descriptor)
        return cls(told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns, told.st_ctime_ns)

    @property
    def is_settled(self) -> bool:
        """Whether a write from now on makes another identity."""
        return time.time() - max(self.modified_ns, self.changed_ns) / 1e9 > _SETTLED_SECONDS
