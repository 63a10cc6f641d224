"""The room of a cache on disk: entries that were not used for longest leave for new ones.

    ROOT/FOLDER/DIGEST.compiled     a compiled network (`cache.py`)
    ROOT/FOLDER/DIGEST.weights      weights that processes map (`weights.py`)

A write does not look at all entries: a process counts what it writes, and looks again after a 64th
of the limits. Processes share a cache, so each of them may exceed the limits by as much until then.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.runtime.metrics.cache_counters import CacheCounters
from headrace.runtime.system.atomic_file import remove_leftovers

_log = logging.getLogger(__name__)

COMPILED: Final = ".compiled"
WEIGHTS: Final = ".weights"
_ENTRY = re.compile(rf"[0-9a-f]{{64}}({re.escape(COMPILED)}|{re.escape(WEIGHTS)})")
_BLOCK_BYTES = 4096  # the disk space that the smallest entry takes
_MAX_ENTRIES = 32768  # a look at so many takes about a second
_PART: Final = 64  # the part of the limits after which a process looks at all entries again


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    size_bytes: int
    used_ns: int


class CacheRoom:
    """Thread-safe: `_lock` guards the fields below it, and is held during a look at all entries.

    Args:
        root: the cache's folder.
        max_bytes: the limit for all entries together.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.counters: Final = CacheCounters(max_bytes)
        self._root = root
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held_bytes = 0
        self._bytes_left = self._entries_left = 0  # until the next look
        self.make()

    def make(self, size: int = 0) -> None:
        """Removes the least recently used entries until an entry of `size` bytes fits. If `size` is
        0, removes entries only until the cache is within its limits.

        Raises:
            ValueError: there is no room: the cache is smaller, or some entries cannot be removed.
        """
        size = max(size, _BLOCK_BYTES) if size else 0
        if size > self._max_bytes:
            raise ValueError(f"{size} bytes are more than the {self._max_bytes} of the whole cache")
        with self._lock:
            if size > self._bytes_left or self._entries_left < 1:
                self._look(size)
            self._held_bytes += size
            self._bytes_left -= size
            self._entries_left -= bool(size)
            self.counters.hold(self._held_bytes)

    def _look(self, size: int) -> None:
        for leftover in remove_leftovers(self._root):
            _log.info("removed %s, which a server that died left in the cache", leftover.name)
        entries = sorted(self._entries(), key=lambda entry: entry.used_ns)
        held = sum(entry.size_bytes for entry in entries)
        many = len(entries)
        if held + size > self._max_bytes or many + bool(size) > _MAX_ENTRIES:
            at_once = len(entries) // _PART  # or each write to a full cache would look
            for tried, entry in enumerate(entries):
                fits = held + size <= self._max_bytes and many + bool(size) <= _MAX_ENTRIES
                if fits and tried >= at_once:
                    break
                if self._is_removed(entry.path):
                    held -= entry.size_bytes
                    many -= 1
        if size and held + size > self._max_bytes:
            raise ValueError("older entries cannot be removed")
        self._held_bytes = held
        self._bytes_left = min(self._max_bytes - held, self._max_bytes // _PART)
        self._entries_left = min(_MAX_ENTRIES - many, _MAX_ENTRIES // _PART)

    def _is_removed(self, path: Path) -> bool:
        try:
            path.unlink()
        except FileNotFoundError:  # another server has removed it
            return True
        except OSError as error:
            _log.warning("cannot remove %s from the cache: %s", path, error)
            return False
        self.counters.evict()
        with suppress(OSError):  # the folder is not empty
            path.parent.rmdir()
        return True

    def _entries(self) -> Iterator[_Entry]:
        """The entries that servers wrote, without files and links that somebody else put there."""
        for folder in _listed(self._root):
            if folder.is_dir(follow_symlinks=False):
                for file in _listed(Path(folder.path)):
                    if _ENTRY.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                        with suppress(OSError):  # the file has just been removed
                            facts = file.stat(follow_symlinks=False)
                            size = max(facts.st_size, _BLOCK_BYTES)
                            yield _Entry(Path(file.path), size, facts.st_mtime_ns)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError as error:
        _log.debug("cannot list %s: %s", folder, error)
        return []
