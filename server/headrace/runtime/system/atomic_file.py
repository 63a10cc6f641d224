"""Writes files that exist whole or not at all, also after kill -9 or a power cut.

The content goes to a temporary file in the same folder. That file is flushed to the disk and
renamed, and then the folder is flushed. The writer holds a lock on its temporary file, so the
cleanup at start can tell a dead process's files from those that a living process still writes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
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
        replace: whether to replace an existing file.

    Raises:
        FileExistsError: the file exists and `replace` is False.
        OSError: open, write or rename failed; `path` is then as it was. If the temporary file
            cannot be made, the error names `path`.
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


def read_file(path: Path, max_bytes: int | None = None) -> bytes:
    """The content of a regular file. Anything else is refused, because opening a pipe or a device
    could wait forever.

    Raises:
        OSError: the file cannot be read, is not a regular file, or has more than `max_bytes`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(-1 if max_bytes is None else max_bytes + 1)
        if max_bytes is not None and len(data) > max_bytes:
            raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes", str(path))
        return data
    finally:
        os.close(descriptor)


def lock_file(path: Path) -> int:
    """Locks the file `path`, writes this process's id to it, and returns the descriptor. The lock
    lasts until the descriptor is closed or the process ends, however it ends.

    Raises:
        BlockingIOError: another process holds the lock; the text says which process.
        OSError: the file cannot be made.
    """
    descriptor = _lock(path, os.O_CREAT)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_unlocked(path: Path) -> None:
    """Looks whether another process holds the lock of `lock_file`, and changes nothing.

    Raises:
        BlockingIOError: another process holds the lock; the text says which process.
        OSError: the file is not there or cannot be opened.
    """
    os.close(_lock(path, 0))


def _lock(path: Path, create: int) -> int:
    flags = os.O_RDWR | create | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise BlockingIOError(error.errno, f"process {holder or '?'}", str(path)) from error
    return descriptor


def remove_file(path: Path) -> None:
    """Removes a file for good. It is no error if the file does not exist."""
    path.unlink(missing_ok=True)
    _sync_folder(path.parent)


def remove_leftovers(folder: Path) -> list[Path]:
    """Removes temporary files that dead writers left in `folder` and below, and returns them.
    Hidden folders in it are left alone: each has an owner of its own."""
    removed = []
    for temporary in _temporary_files(folder):
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # it has just gone, or is not our file
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink(missing_ok=True)
            removed.append(temporary)
        except BlockingIOError:
            continue  # its writer is alive
        finally:
            os.close(descriptor)
    return removed


def _temporary_files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in names if name.endswith(_SUFFIX))


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
        # Between open and lock, another process may have removed the file as a leftover.
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
