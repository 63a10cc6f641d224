"""What files were found to hold, which later servers need not find out again.

    ROOT/files/DIGEST.compiled      what a file of some path holds, and the file's identity, as JSON

A note is signed as the cache's other entries are. It holds until the machine starts again: until
then what was written to a file is what is read, even if it has not reached the disk.
"""

from __future__ import annotations

import json
import logging
import secrets
from pathlib import Path
from typing import Any, Final

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.entry import CacheKey, EntryRefused
from headrace.runtime.system.control_groups import read
from headrace.runtime.system.file_identity import FileIdentity

_log = logging.getLogger(__name__)

_FOLDER: Final = "files"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_MOST_KNOWN: Final = 4096


class FileNotes:
    """Thread-safe without a lock: single operations on `_known` are atomic."""

    def __init__(self, cache: NetworkCache) -> None:
        self._cache = cache
        self._boot = read(_BOOT) or secrets.token_hex(16)
        self._known: dict[Path, list[Any]] = {}

    def get(self, path: Path, identity: FileIdentity) -> str | None:
        """What the file holds; None if nobody knows."""
        *of, text = self._known.get(path) or self._read(path)
        return text if of == [self._boot, *identity] else None

    def set(self, path: Path, identity: FileIdentity, text: str) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[path] = note = [self._boot, *identity, text]
        try:
            self._cache.write(_FOLDER, _key(path), json.dumps(note).encode())
        except (OSError, ValueError) as error:
            _log.warning("what a file holds is not kept: %s", error)

    def _read(self, path: Path) -> list[Any]:
        try:
            note: list[Any] = json.loads(self._cache.read(_FOLDER, _key(path)) or b"[null]")
        except (EntryRefused, ValueError) as error:
            _log.warning("what is known of a file is not used: %s", error)
            self._known[path] = note = [None]
        return note


def _key(path: Path) -> CacheKey:
    return CacheKey(json.dumps({"file": str(path.absolute())}))
