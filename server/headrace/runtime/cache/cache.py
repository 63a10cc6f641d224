"""Compiled networks on disk, which servers share.

    ROOT/FOLDER/DIGEST.compiled     an entry, in the format of `entry.py`

An entry is named after the digest of its key (`device/cache_key.py`), and holds the key too. It is
signed with a key that is derived from the server's own, so native bytes that somebody else put
there never reach a backend. No file is locked: an entry is written whole or not at all, and two
writers of one entry write the same bytes. Each use of an entry sets its modification time, by which
`room.py` removes entries.
"""

from __future__ import annotations

import hmac
import os
import stat
from contextlib import suppress
from pathlib import Path

from headrace.runtime.cache import entry as entries
from headrace.runtime.cache.entry import CacheKey, EntryRefused
from headrace.runtime.cache.room import COMPILED, CacheRoom
from headrace.runtime.system.atomic_file import write_file

_KEY_DOMAIN = b"headrace cache of compiled networks, 1\0"
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class NetworkCache:
    """Thread-safe, and safe to share with other processes.

    Args:
        root: the cache's folder. It is made if it does not exist.
        key: the server's key. Entries that were signed with another key are refused.
        max_bytes: the limit for all entries together.
        room: of a cache in the same folder; None for its own.

    Raises:
        OSError: `root` is not a folder and cannot be made.
    """

    def __init__(
        self, root: Path, key: bytes, max_bytes: int, room: CacheRoom | None = None
    ) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root
        self._key = hmac.digest(key, _KEY_DOMAIN, "sha256")
        self._max_bytes = max_bytes
        self.room = room or CacheRoom(root, max_bytes)
        self.counters = self.room.counters

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
        self.room.make(len(native) + len(key.text) + entries.OVERHEAD_BYTES)
        path = self._root / folder / (key.name + COMPILED)
        for tries_left in (1, 0):
            self._make_folder(path.parent)
            try:
                write_file(path, entries.write(key, native, self._key))
                break
            except FileNotFoundError:  # another server removed the folder when it was empty
                if not tries_left:
                    raise

    # -- inside --

    def _read(self, folder: Path, key: CacheKey) -> bytes:
        inside = os.open(folder, _OPEN | os.O_DIRECTORY)
        try:
            # O_NONBLOCK: if the file is a pipe, opening it must not wait.
            descriptor = os.open(key.name + COMPILED, _OPEN | os.O_NONBLOCK, dir_fd=inside)
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
