"""One client's region: an open file of /dev/shm, which is read and written without a mapping.

The client can make its file shorter at any time. If the file were mapped, the next access would end
the server with SIGBUS. A read of the file only returns fewer bytes, which is an error of one
request. The server reads into its own memory, so the data cannot change after its check.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final, NamedTuple

import numpy as np

from headrace.runtime.errors import (
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from headrace.runtime.network.values import Array

FOLDER: Final = "/dev/shm"  # noqa: S108 - where shm_open(3) keeps its files
MAX_KEY_BYTES: Final = 255
_SEMAPHORE = "sem."  # sem_open(3) keeps semaphores in the same folder
# O_NONBLOCK: the server does not wait for a FIFO, or for a lease that the owner has on the file.
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FULL = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)


class RegionStatus(NamedTuple):
    """A region that a client has registered."""

    name: str
    key: str
    offset: int
    byte_size: int


class Region:
    """`byte_size` bytes from `offset` of a client's file. Reads and writes are thread-safe.

    Attributes:
        uses: how many requests and transfers refer to the region. `Regions` counts them, and closes
            the region at 0.
    """

    __slots__ = ("byte_size", "descriptor", "holder", "key", "name", "offset", "uses")

    def __init__(
        self, name: str, key: str, offset: int, byte_size: int, descriptor: int, holder: str
    ) -> None:
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self.descriptor = descriptor
        self.holder = holder
        self.uses = 0

    def check(self, offset: int, size: int, field: str) -> None:
        """
        Raises:
            InvalidArgument: some of these bytes lie outside the region.
        """
        if offset < 0 or size < 0 or offset + size > self.byte_size:
            raise InvalidArgument(
                f"{size} bytes from offset {offset} do not lie within shared memory region "
                f"{self.name!r} of {self.byte_size} bytes",
                field=field,
            )

    def read(self, offset: int, size: int, field: str) -> Array:
        """Copies these bytes into the server's own memory.

        Raises:
            InvalidArgument: the file has become shorter.
        """
        data = np.empty(size, np.uint8)
        view = data.data
        done = 0
        while done < size:
            got = os.preadv(self.descriptor, [view[done:]], self.offset + offset + done)
            if not got:
                raise self._shrunk(offset + size, field)
            done += got
        data.flags.writeable = False
        return data

    def write(self, offset: int, data: Array, field: str) -> None:
        """Writes `data`, an array of bytes, at `offset`.

        Raises:
            InvalidArgument: the file has become shorter.
            ResourceExhausted: /dev/shm is full.
        """
        view = data.data
        if os.fstat(self.descriptor).st_size < self.offset + offset + len(view):
            raise self._shrunk(offset + len(view), field)
        done = 0
        try:
            while done < len(view):
                place = self.offset + offset + done
                done += os.pwrite(self.descriptor, view[done:], place)
        except OSError as error:
            if error.errno in _FULL:
                raise _no_space(self.key, field) from None
            raise InvalidArgument(
                f"shared memory region {self.name!r} cannot be written: {error.strerror}",
                field=field,
            ) from None

    @property
    def status(self) -> RegionStatus:
        return RegionStatus(self.name, self.key, self.offset, self.byte_size)

    @property
    def is_mapped(self) -> bool:
        """Whether the server maps the region."""
        return False

    def is_deleted(self) -> bool:
        """Whether the region's file has been deleted."""
        return os.fstat(self.descriptor).st_nlink == 0

    def close(self) -> None:
        os.close(self.descriptor)

    def _shrunk(self, needed: int, field: str) -> InvalidArgument:
        size = max(os.fstat(self.descriptor).st_size - self.offset, 0)
        return InvalidArgument(
            f"the file of shared memory region {self.name!r} has become shorter: it holds {size} "
            f"bytes of the region, and {needed} are needed",
            field=field,
        )


def open_key(key: str, offset: int, byte_size: int, user: int, folder: str = FOLDER) -> int:
    """Opens a client's file, and returns the descriptor.

    Args:
        key: the name that the client gave to shm_open(3), with or without its slash.
        user: the client's user, who has to own the file.

    Raises:
        InvalidArgument: the key, the offset or the size is wrong, or the file is not a regular one.
        NotFound: there is no such file here.
        FailedPrecondition: the file belongs to another user, or the server may not open it.
        ResourceExhausted: the server has no descriptor left.
    """
    name = _file_name(key)
    if byte_size < 1 or offset < 0:
        raise InvalidArgument("a region has at least one byte", field="byte_size")
    try:
        descriptor = os.open(f"{folder}/{name}", _FLAGS)
    except OSError as error:
        raise _not_opened(key, error) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"{key!r} is not a regular file", field="key")
        if status.st_uid != user:
            raise FailedPrecondition(
                f"shared memory {key!r} belongs to another user than the client's; register only "
                "what your own user has created",
                field="key",
            )
        if offset + byte_size > status.st_size:
            raise InvalidArgument(
                f"{byte_size} bytes from offset {offset} do not lie within shared memory {key!r} "
                f"of {status.st_size} bytes",
                field="byte_size",
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _file_name(key: str) -> str:
    name = key.removeprefix("/")
    if (
        not name
        or "/" in name
        or "\0" in name
        or name in (".", "..")
        or name.startswith(_SEMAPHORE)
        or len(os.fsencode(name)) > MAX_KEY_BYTES
    ):
        raise InvalidArgument(
            f"{key!r} is not the name of shared memory; pass '/NAME' as shm_open() takes it, "
            f"without further slashes, at most {MAX_KEY_BYTES} bytes long",
            field="key",
        )
    return name


def _not_opened(key: str, error: OSError) -> HeadraceError:
    if error.errno == errno.ENOENT:
        return NotFound(
            f"there is no shared memory {key!r} in the server's {FOLDER}; containers have one "
            "each unless you let them share it",
            field="key",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FailedPrecondition(
            f"the server may not read and write shared memory {key!r}; run client and server as "
            "the same user",
            field="key",
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return ResourceExhausted("the server has too many open files for another region")
    # A link (ELOOP), a folder (EISDIR), a socket (ENXIO), a file that its owner holds a lease on.
    return InvalidArgument(
        f"{key!r} cannot be used as shared memory: {error.strerror}; it has to be a regular file",
        field="key",
    )


def _no_space(key: str, field: str) -> ResourceExhausted:
    return ResourceExhausted(
        f"{FOLDER} is full, so that shared memory {key!r} got no further pages; containers often "
        "have 64 MB of it: make it larger (docker run --shm-size, or an emptyDir with medium "
        "Memory), and reserve pages with posix_fallocate() when you create the region",
        field=field,
    )
