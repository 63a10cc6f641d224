"""Folders for data that native libraries read from named files, or write to them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, Self

_PREFIX: Final = "headrace-scratch-"


class ScratchFolder:
    """A folder that `close` deletes. Its process locks it, and making a scratch folder deletes the
    ones that killed processes have left behind.

    Args:
        inside: where it is; by default in the folder that TMPDIR names.

    Attributes:
        path: the folder.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, inside: Path | None = None) -> None:
        remove_left_behind(inside or Path(tempfile.gettempdir()))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=inside))
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # another process deleted it as left behind
                continue
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():
                return
            os.close(self._lock)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_left_behind(inside: Path) -> None:
    """Deletes the scratch folders in a folder whose processes have ended."""
    for path in inside.glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # it has just gone, or is somebody else's
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # the folder is in use
        finally:
            os.close(descriptor)
