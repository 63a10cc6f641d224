"""Compiled networks on disk, which servers share.

    ROOT/FOLDER/DIGEST.compiled     an entry, in the format of `entry.py`

An entry is named after the digest of its key (`device/cache_key.py`), and holds the key too. It is
signed with a key that is derived from the server's own, so native bytes that somebody else put
there never reach a backend. There are no locks: an entry is written whole or not at all, and two
writers of one entry write the same bytes. Each use of an entry sets its modification time. The
least recently used entries are removed to make room for a new one.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.runtime.cache import entry as entries
from headrace.runtime.cache.entry import CacheKey, EntryRefused
from headrace.runtime.metrics.cache_counters import CacheCounters
from headrace.runtime.system.atomic_file import remove_leftovers, write_file

_log = logging.getLogger(__name__)

SUFFIX = ".compiled"
_ENTRY = re.compile(rf"[0-9a-f]{{64}}{re.escape(SUFFIX)}")
_KEY_DOMAIN = b"headrace cache of compiled networks, 1\0"
_BLOCK_BYTES = 4096  # the disk space that the smallest entry takes
_MAX_ENTRIES = 4096  # each write looks at all entries
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    size_bytes: int
    used_ns: int


class NetworkCache:
    """Thread-safe without a lock, because it is safe to share with other processes.

    Args:
        root: the cache's folder. It is made if it does not exist.
        key: the server's key. Entries that were signed with another key are refused.
        max_bytes: the limit for all entries together.

    Raises:
        OSError: `root` is not a folder and cannot be made.
    """

    def __init__(self, root: Path, key: bytes, max_bytes: int) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root
        self._key = hmac.digest(key, _KEY_DOMAIN, "sha256")
        self._max_bytes = max_bytes
        self.counters = CacheCounters(max_bytes)
        self._make_room(0)

    def read(self, folder: str, key: CacheKey) -> bytes | None:
        """The native bytes of a compiled network; None if there is no entry.

        Args:
            folder: a name that CACHE_DIR allows.

        Raises:
            EntryRefused: there is an entry, but it cannot be read or trusted.
        """
        try:
            return self._read(self._root / folder, key)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EntryRefused(f"it cannot be read: {error.strerror}") from error

    def write(self, folder: str, key: CacheKey, native: bytes) -> None:
        """Keeps the native bytes of a compiled network, and removes the oldest entries if the cache
        is full.

        Raises:
            OSError: the entry cannot be written.
            ValueError: the cache has no room for the entry.
        """
        size = max(len(native) + len(key.text) + entries.OVERHEAD_BYTES, _BLOCK_BYTES)
        if size > self._max_bytes:
            raise ValueError(f"{size} bytes are more than the {self._max_bytes} of the whole cache")
        self._make_room(size)
        path = self._root / folder / (key.name + SUFFIX)
        for tries_left in (1, 0):
            self._make_folder(path.parent)
            try:
                write_file(path, entries.write(key, native, self._key))
                break
            except FileNotFoundError:  # another server removed the folder when it was empty
                if not tries_left:
                    raise
        self._make_room(0)  # other servers may have written entries meanwhile

    # -- inside --

    def _read(self, folder: Path, key: CacheKey) -> bytes:
        inside = os.open(folder, _OPEN | os.O_DIRECTORY)
        try:
            # O_NONBLOCK: if the file is a pipe, opening it must not wait.
            descriptor = os.open(key.name + SUFFIX, _OPEN | os.O_NONBLOCK, dir_fd=inside)
        finally:
            os.close(inside)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise EntryRefused("it is not a file")
            if facts.st_size > self._max_bytes:
                raise EntryRefused("it is larger than the cache")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                native = entries.read(file, facts.st_size, key, self._key)
            with suppress(OSError):  # an entry in a read-only folder can be used too
                os.utime(descriptor)
        finally:
            os.close(descriptor)
        return native

    @staticmethod
    def _make_folder(folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink():
            raise NotADirectoryError(f"{folder.name} is a symbolic link")

    def _make_room(self, size: int) -> None:
        """Removes the least recently used entries until an entry of `size` bytes fits. If `size` is
        0, removes entries only until the cache is within its limits.

        Raises:
            ValueError: there is no room, because some entries cannot be removed.
        """
        for leftover in remove_leftovers(self._root):
            _log.info("removed %s, which a server that died left in the cache", leftover.name)
        entries = sorted(self._entries(), key=lambda entry: entry.used_ns)
        held = sum(entry.size_bytes for entry in entries)
        many = len(entries) + bool(size)
        for entry in entries:
            if held + size <= self._max_bytes and many <= _MAX_ENTRIES:
                break
            if self._is_removed(entry.path):
                held -= entry.size_bytes
                many -= 1
        self.counters.hold(held)
        if size and held + size > self._max_bytes:
            raise ValueError("older entries cannot be removed")

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
