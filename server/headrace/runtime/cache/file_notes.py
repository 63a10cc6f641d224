"""What files were found to hold, which later servers need not find out again.

    ROOT/files/DIGEST.compiled      what a file of some path holds, and the file's identity

A note holds until the machine starts again: until then what was written to a file is what is read,
even if it has not reached the disk.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.notes import Notes
from headrace.runtime.system.control_groups import read
from headrace.runtime.system.file_identity import FileIdentity

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_MOST_KNOWN: Final = 4096


class FileNotes:
    """Thread-safe without a lock: single operations on `_known` are atomic."""

    def __init__(self, cache: NetworkCache) -> None:
        self._notes = Notes(cache, "files")
        self._boot = read(_BOOT) or secrets.token_hex(16)
        self._known: dict[Path, list[Any]] = {}

    def get(self, path: Path, identity: FileIdentity) -> str | None:
        """What the file holds; None if nobody knows."""
        note = self._known.get(path)
        if note is None:  # it is read once: what is wrong with it is told each time
            note = self._keep(path, self._notes.read(_facts(path), list[Any]) or [None])
        *of, text = note
        return text if of == [self._boot, *identity] else None

    def set(self, path: Path, identity: FileIdentity, text: str) -> None:
        self._notes.write(_facts(path), self._keep(path, [self._boot, *identity, text]))

    def _keep(self, path: Path, note: list[Any]) -> list[Any]:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[path] = note
        return note


def _facts(path: Path) -> Callable[[], object]:
    return lambda: {"file": str(path.absolute())}
