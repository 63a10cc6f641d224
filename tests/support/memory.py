"""Memory without a name, as a client makes it."""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

PAGE = mmap.PAGESIZE


def memfd(
    size: int,
    *,
    seals: int = fcntl.F_SEAL_SHRINK,
    pages: int | None = None,
    data: bytes = b"",
) -> int:
    """A memfd of `size` bytes.

    Args:
        pages: how many bytes have pages; all by default.
        data: its first bytes.
    """
    descriptor = os.memfd_create("client", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if reserved := size if pages is None else pages:
        os.posix_fallocate(descriptor, 0, reserved)
    os.pwrite(descriptor, data, 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def open_files() -> list[str]:
    """The descriptors of this process."""
    return [each.name for each in Path("/proc/self/fd").iterdir()]
