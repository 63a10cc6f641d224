"""The file of a Unix socket: who may connect, and which server it belongs to."""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import socket
import stat
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from headrace.runtime.errors import AlreadyExists, HeadraceError, InvalidArgument

T = TypeVar("T")

MAX_PATH_BYTES: Final = 92
"""The system takes paths of 107 bytes, and the sockets need names a little longer than the path."""
_SETTING = "unix_socket"
_KEEP = -1


class Permissions(NamedTuple):
    """Who may connect to a socket.

    Attributes:
        mode: the permissions of its file.
        user, group: the owner of its file. -1 leaves the server's own.
    """

    mode: int = 0o600
    user: int = _KEEP
    group: int = _KEEP


class SocketFile:
    """The place of one server's socket in the file system. Not thread-safe.

    While it is held, a lock on a second file says that the server lives. So a socket that a killed
    server has left is replaced, and a living server's is not.

    A socket is made in a folder that only the server's user may enter. It moves to its place when
    its permissions are set. So nobody connects before that, and there is no moment without a file.

    Raises:
        AlreadyExists: another server uses the path.
        InvalidArgument: the path is too long, its folder is missing or may not be written, or
            something else is there.
    """

    def __init__(self, path: Path, permissions: Permissions) -> None:
        self._path = path.absolute()
        self._permissions = permissions
        self._placed: list[tuple[Path, int]] = []  # with the inodes
        if len(os.fsencode(self._path)) > MAX_PATH_BYTES:
            raise InvalidArgument(
                f"{self._path} is longer than {MAX_PATH_BYTES} bytes, which the system does not "
                "take for a socket; choose a shorter path",
                field=_SETTING,
            )
        self._lock_path = self._path.with_name(f"{self._path.name}.lock")
        try:
            self._lock = _lock(self._lock_path)
        except BlockingIOError:
            raise _in_use(self._path) from None
        except OSError as error:
            raise _unusable(self._path, error) from error

    def place(self, listen: Callable[[str], T], suffix: str = "") -> T:
        """Makes a socket and moves it to the path.

        Args:
            listen: makes a listening socket at a path, and returns anything.
            suffix: is added to the path.

        Raises:
            As the constructor, and as `listen`.
        """
        path = self._path.with_name(self._path.name + suffix)
        try:
            check_free(path)
            with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as folder:
                made = f"{folder}/s"
                result = listen(made)
                self._permit(made)
                inode = os.stat(made).st_ino  # noqa: PTH116 - a name for the system only
                os.replace(made, path)  # noqa: PTH105 - as above
        except OSError as error:
            raise _unusable(path, error) from error
        self._placed.append((path, inode))
        return result

    def remove(self) -> None:
        """Removes the files, unless somebody has replaced them. Idempotent."""
        for path, inode in self._placed:
            with suppress(OSError):
                if path.lstat().st_ino == inode:
                    path.unlink()
        self._placed.clear()
        if self._lock >= 0:
            with suppress(OSError):
                self._lock_path.unlink()
            os.close(self._lock)
            self._lock = -1

    def _permit(self, made: str) -> None:
        mode, user, group = self._permissions
        if (user, group) != (_KEEP, _KEEP):
            os.chown(made, user, group)
        os.chmod(made, mode)  # noqa: PTH101 - a name for the system only


def owner_of(text: str) -> tuple[int, int]:
    """User and group as chown takes them, by name or number; -1 for what is not given.

    Raises:
        InvalidArgument: there is no such user or group.
    """
    user, _, group = text.partition(":")
    return (
        _number(user, "user", lambda name: pwd.getpwnam(name).pw_uid),
        _number(group, "group", lambda name: grp.getgrnam(name).gr_gid),
    )


def _number(name: str, kind: str, look_up: Callable[[str], int]) -> int:
    if not name:
        return _KEEP
    if name.isdecimal() and len(name) < 10:
        return int(name)
    try:
        return look_up(name)
    except (KeyError, ValueError):
        raise InvalidArgument(
            f"there is no {kind} {name!r} on this machine; give USER, USER:GROUP or :GROUP",
            field="unix_socket_owner",
        ) from None


def _lock(path: Path) -> int:
    """Locks a file, which is made if it is missing.

    Raises:
        BlockingIOError: another process has locked it.
        OSError: it cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.lstat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # a server that has just stopped has removed it


def check_free(path: Path) -> None:
    """Checks that there is nothing at the path, or only what a dead server has left.

    Raises:
        AlreadyExists: a server listens there.
        InvalidArgument: there is something that is not a socket.
        OSError: the folder cannot be entered.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise InvalidArgument(
            f"{path} exists and is not a socket; remove it, or choose another path", field=_SETTING
        )
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as tried:
        tried.setblocking(False)
        if tried.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise _in_use(path)


def _in_use(path: Path) -> AlreadyExists:
    return AlreadyExists(f"another server listens on {path}", field=_SETTING)


def _unusable(path: Path, error: OSError) -> HeadraceError:
    if error.errno == errno.EPERM:
        return InvalidArgument(
            f"cannot give the owner of {path}: {error.strerror}; only root gives files away, and "
            "others only to groups that they belong to",
            field="unix_socket_owner",
        )
    return InvalidArgument(
        f"cannot make a socket at {path}: {error.strerror}; its folder has to exist, and the "
        "server's user has to be allowed to write there",
        field=_SETTING,
    )
