"""The folder of compiled kernels. Its size stays bounded even if several processes use it."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

MAX_KERNEL_BYTES: Final = 2 << 30
"""The folder is emptied when it holds more."""

KERNELS: Final = "kernels.db"
"""tinygrad's file in the folder."""
POCL: Final = "pocl"
"""PoCL's folder in it."""

_LOOK_SECONDS: Final = 60.0  # time for some dozens of kernels; a look at 2 GiB takes half a second
_AGAIN_SECONDS: Final = 1.0


class KernelFolder:
    """A folder that this process and other processes share. For one thread of a process.

    A process that makes kernels holds a shared lock. A process that empties the folder needs an
    exclusive lock, and tries later if another process holds the lock. Kernels that have been made
    are in memory and run without their files. Emptying keeps tinygrad's tables, because tinygrad
    makes them only once, and PoCL's folder, because PoCL compiles nothing without it.

    Args:
        path: the folder, which must exist.
        clock: a monotonic clock, in seconds.

    Raises:
        OSError: no file can be made in the folder.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._depth = 0
        self._look_at = clock()
        self._too_large = False

    def close(self) -> None:
        """Releases the lock."""
        os.close(self._lock)

    @contextmanager
    def making(self) -> Iterator[None]:
        """Holds the shared lock while kernels may be made or loaded, because that needs files of
        the folder. Calls may be nested. Waits a few seconds at most while another process empties
        the folder."""
        if not self._depth:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def bound(self) -> None:
        """Empties the folder if it holds too much. If another process makes kernels now, a later
        call empties it. Looks at the size once a minute at most. Call it between runs."""
        now = self._clock()
        if now < self._look_at:
            return
        self._too_large = self._too_large or _bytes(self.path) > MAX_KERNEL_BYTES
        emptied = self._too_large and self._empty_alone()
        self._too_large = self._too_large and not emptied
        self._look_at = self._clock() + (_AGAIN_SECONDS if self._too_large else _LOOK_SECONDS)

    def _empty_alone(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            if _bytes(self.path) > MAX_KERNEL_BYTES:  # no other process has emptied it
                _log.info("%s held more than %d bytes; it is emptied", self.path, MAX_KERNEL_BYTES)
                _empty(self.path)
            return True
        finally:  # a change of a lock releases it first, even if the change fails
            fcntl.flock(self._lock, fcntl.LOCK_SH if self._depth else fcntl.LOCK_UN)


def _empty(folder: Path) -> None:
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder / POCL):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):
                    Path(entry.path).unlink()
    file = folder / KERNELS
    if not file.exists():
        return
    try:
        with closing(sqlite3.connect(file, isolation_level=None)) as kernels:
            tables = kernels.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for (name,) in tables.fetchall():
                kernels.execute(f'DELETE FROM "{name}"')  # noqa: S608 - tinygrad's own names
            kernels.execute("VACUUM")
            kernels.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        _log.warning("%s cannot be emptied: %s", file, error)


def _bytes(folder: Path) -> int:
    """The size of all files. A file that another process deletes meanwhile does not count."""
    total, folders = 0, [str(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_size
    return total
