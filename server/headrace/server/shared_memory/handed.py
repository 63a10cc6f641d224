"""A region of memory that a client has handed over: a memfd that nobody can make shorter.

The server maps it, so that no system call copies its bytes. The client may change them at any time.
So inputs are copied into the server's own memory first, unless the network promises that a change
does no harm (`inputs_may_change`). Then they are read where they lie.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from pathlib import Path
from typing import Final

import numpy as np

from headrace.runtime.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from headrace.runtime.network.values import Array
from headrace.server.shared_memory.region import Region

PREFIX: Final = "memfd-"
FIELD: Final = "descriptor"
_FUTURE_WRITE: Final = 0x10  # F_SEAL_FUTURE_WRITE, which Python 3.11 does not name
_BLOCK_BYTES = 512  # of st_blocks
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_STRICT = "2"


class HandedRegion(Region):
    """All bytes of a client's memfd. Its name is a secret that the server has made.

    Attributes:
        memory: the mapped bytes. None if the region is read and written by system calls.
    """

    __slots__ = ("is_writable", "memory")

    def __init__(self, descriptor: int, byte_size: int, holder: str) -> None:
        name = PREFIX + secrets.token_hex(16)
        super().__init__(name, "", 0, byte_size, descriptor, holder)
        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        sealed = seals & (fcntl.F_SEAL_WRITE | _FUTURE_WRITE)
        self.is_writable = access == os.O_RDWR and not sealed
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if self.is_writable else 0)
        self.memory: Array | None = None
        if not _may_run_out():
            mapped = mmap.mmap(descriptor, byte_size, mmap.MAP_SHARED, protection)
            self.memory = np.frombuffer(mapped, np.uint8)

    def read(self, offset: int, size: int, field: str) -> Array:
        """Copies these bytes into the server's own memory."""
        if self.memory is None:
            return super().read(offset, size, field)
        data = self.memory[offset : offset + size].copy()
        data.flags.writeable = False
        return data

    def write(self, offset: int, data: Array, field: str) -> None:
        """Writes `data`, an array of bytes, at `offset`.

        Raises:
            FailedPrecondition: the client has handed over memory that only it may write.
        """
        if not self.is_writable:
            raise FailedPrecondition(
                "the memory was handed over for reading only; hand it over writable, or leave "
                "this output to the message",
                field=field,
            )
        if self.memory is None:
            super().write(offset, data, field)
        else:
            self.memory[offset : offset + len(data)] = data

    @property
    def is_mapped(self) -> bool:
        return self.memory is not None

    def is_deleted(self) -> bool:
        """A memfd never has a name. It goes with its client's connection."""
        return False

    def close(self) -> None:
        # Ends the mapping, unless a request still runs whose caller has left.
        self.memory = None
        super().close()


def check_memory(descriptor: int) -> int:
    """Checks memory that a client wants to hand over, and returns its size in bytes.

    The first check touches no foreign file system. So a file there cannot make the server wait.

    Raises:
        InvalidArgument: it is not a memfd, may become shorter, is empty, or lacks pages.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    except OSError:
        raise InvalidArgument("is not a memfd; make it with memfd_create()", field=FIELD) from None
    if not seals & fcntl.F_SEAL_SHRINK:
        raise InvalidArgument(
            "the memory may become shorter; make it with MFD_ALLOW_SEALING, and seal it with "
            "F_SEAL_SHRINK before you hand it over",
            field=FIELD,
        )
    if flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_PATH:
        raise InvalidArgument("the memory cannot be read; open it for reading", field=FIELD)
    if os.fstatvfs(descriptor).f_bsize != mmap.PAGESIZE:
        raise InvalidArgument(
            "the memory has huge pages, of which the system may run out; leave out MFD_HUGETLB",
            field=FIELD,
        )
    status = os.fstat(descriptor)
    if not status.st_size:
        raise InvalidArgument("the memory is empty; give it a size with ftruncate()", field=FIELD)
    if status.st_blocks * _BLOCK_BYTES < status.st_size:
        raise InvalidArgument(
            "the memory has no pages yet; reserve them with posix_fallocate()", field=FIELD
        )
    return status.st_size


def open_memory(descriptor: int, holder: str) -> HandedRegion:
    """The region of a client's memfd, which owns the descriptor.

    Raises:
        InvalidArgument: as `check_memory`.
        ResourceExhausted: the server has no room in its address space.
    """
    size = check_memory(descriptor)
    try:
        return HandedRegion(descriptor, size, holder)
    except (OSError, MemoryError):
        raise ResourceExhausted("the server cannot map the memory", field=FIELD) from None


def _may_run_out() -> bool:
    """Whether a page that the client gives back may be missing at the server's next access, which
    would end a server that maps it. Only systems that never promise more memory than they have
    refuse a page. The server then reads and writes by system calls, which only fail."""
    try:
        return _OVERCOMMIT.read_text("ascii").strip() == _STRICT
    except (OSError, ValueError):
        return False
