"""The folder of compiled kernels: bounded while it is used, by several processes too."""

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
"""A folder that holds more is emptied."""

KERNELS: Final = "kernels.db"
"""tinygrad's file in the folder."""
POCL: Final = "pocl"
"""PoCL's folder in it."""

_LOOK_SECONDS: Final = 60.0  # some dozens of kernels; looking at 2 GiB of them takes half a second
_AGAIN_SECONDS: Final = 1.0


class KernelFolder:
    """One folder, of this process and of others that use the same. For one thread of a process.

    Who makes kernels shares a lock; who empties the folder needs it alone, and passes if others
    have it. Kernels that have been made are in memory and run without their files. What stays is
    tinygrad's tables, which it makes once, and PoCL's folder, without which it compiles nothing.

    Args:
        path: of the folder, which is there.
        clock: seconds, monotonic.

    Raises:
        OSError: no file can be made there.
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
        """While kernels may be made or loaded, which takes files of the folder. It may be nested;
        waits while another process empties the folder, seconds at most."""
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
        """Empties the folder if it holds too much and no other process makes kernels now: then a
        later call does. It looks once a minute at most. To be called between runs."""
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
            if _bytes(self.path) > MAX_KERNEL_BYTES:  # nobody else has emptied it meanwhile
                _log.info("%s held more than %d bytes; it is emptied", self.path, MAX_KERNEL_BYTES)
                _empty(self.path)
            return True
        finally:  # changing a lock lets go of it first, even where it fails
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
