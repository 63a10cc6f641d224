"""Files that are there whole or not at all, also after kill -9 or a power cut.

The content goes to a temporary file in the same folder, is flushed to the disk and renamed; then
the folder is flushed. The writer holds a lock on its temporary file, so that cleaning up at start
tells what a dead process left behind from what a living one still writes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

_SUFFIX = ".headrace-tmp"


def write_file(
    path: Path,
    data: bytes | Iterable[bytes | memoryview],
    *,
    mode: int = 0o600,
    replace: bool = True,
) -> None:
    """Writes `data` to `path`, whose folder exists.

    Args:
        data: all bytes, or pieces in order. If the iterable raises, `path` stays as it was.
        mode: permissions of the file, whatever the process's umask.
        replace: False leaves a file that is there alone.

    Raises:
        FileExistsError: if the file is there and `replace` is False.
        OSError: as of open, write and rename; `path` is then as it was. A file that cannot be made
            is named as `path`.
    """
    temporary, descriptor = _open_temporary(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in (data,) if isinstance(data, bytes) else data:
                file.write(piece)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            if replace:
                temporary.replace(path)
            else:
                path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def read_file(path: Path) -> bytes:
    """All of a regular file. Opening a pipe or a device that lies in its place could wait for ever.

    Raises:
        OSError: it cannot be read, or is something else than a file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def lock_file(path: Path) -> int:
    """A descriptor that holds a lock on `path`, with this process's id in it, until it is closed or
    the process ends, however it ends.

    Raises:
        BlockingIOError: another process holds it; its text says which.
        OSError: it cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise BlockingIOError(error.errno, f"process {holder or '?'}", str(path)) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def remove_file(path: Path) -> None:
    """Removes a file for good; one that is not there is fine."""
    path.unlink(missing_ok=True)
    _sync_folder(path.parent)


def remove_leftovers(folder: Path) -> list[Path]:
    """Removes temporary files that dead writers left in `folder` and below; returns them."""
    removed = []
    for temporary in folder.rglob(f".*{_SUFFIX}"):
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # gone meanwhile, or not a file of ours
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink(missing_ok=True)
            removed.append(temporary)
        except BlockingIOError:
            continue  # its writer lives
        finally:
            os.close(descriptor)
    return removed


def _open_temporary(path: Path) -> tuple[Path, int]:
    while True:
        temporary = path.with_name(f".{path.name[:32]}.{secrets.token_hex(8)}{_SUFFIX}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, 0o600)
        except OSError as error:
            error.filename = str(path)
            raise
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Between open and lock, another process's cleaning may have taken it for a leftover.
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
