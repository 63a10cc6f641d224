"""Weights that a backend maps, written once for a network and a machine.

    ROOT/weights/DIGEST.weights     the backend's own file of weights
                                    the backend's model, which refers to that file
                                    magic, length of the model      fixed size, big-endian
                                    two MACs                        HMAC-SHA256 of the name, and of
                                                                    the SHA-256 of all before

Networks of several processes that map one file have its pages in memory once. So a file never
changes and is never cut: it is linked to its name when it is whole, and unlinked to make room, and
those that map it keep its pages. Of two writers, the second one's network maps the first one's.

A mapped file could be changed after its check. So the folder must be this user's alone.

The server's key makes the first MAC, and a key that devices' processes have, too, the second one.
So these processes map what the server wrote, and the server maps nothing that they wrote: models
that may harm a process are compiled there.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.entry import EntryRefused
from headrace.runtime.cache.file_notes import FileNotes
from headrace.runtime.cache.room import WEIGHTS, CacheRoom
from headrace.runtime.system.file_identity import FileIdentity
from headrace.runtime.system.scratch import ScratchFolder, remove_left_behind

_FOLDER: Final = "weights"
_KEY_DOMAIN: Final = b"headrace weights, 2\0"
_PROCESS_DOMAIN: Final = b"headrace weights of devices' processes, 1\0"
_MAGIC: Final = b"\x89hrweight\r\n\x1a\n"
_TAIL: Final = struct.Struct(">13sQ")
_MAC_BYTES: Final = 32
_PIECE_BYTES: Final = 2**20
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_CHECKED: Final = "weights that were checked"
_USED_SECONDS: Final = 3600.0
"""How exactly it is known when a file was used last. After a change, others check it again."""


class MappedModel(NamedTuple):
    """
    Attributes:
        model: as the backend wrote it.
        path: the file of weights that the model refers to.
    """

    model: bytes
    path: Path


class WeightFiles:
    """Thread-safe without a lock: files appear and leave whole.

    Args:
        root: the cache's folder. It exists.
        key: signs the files: the server's own, as `derived_key` makes it, or what `to_json` tells.
        max_bytes: the limit for all entries of the cache together.
        room: of the cache; None for its own.
        in_server: whether this is the server's process, and not a device's.
    """

    def __init__(
        self,
        root: Path,
        key: bytes,
        max_bytes: int,
        room: CacheRoom | None = None,
        *,
        in_server: bool = True,
    ) -> None:
        self._root = root
        self._folder = root / _FOLDER
        self._shared_key = hmac.digest(key, _PROCESS_DOMAIN, "sha256") if in_server else key
        self._own_key = key if in_server else b""
        self._max_bytes = max_bytes
        self._room = room or CacheRoom(root, max_bytes)
        self._notes = FileNotes(NetworkCache(root, key, max_bytes, self._room))
        remove_left_behind(self._folder)

    @staticmethod
    def derived_key(key: bytes) -> bytes:
        return hmac.digest(key, _KEY_DOMAIN, "sha256")

    def to_json(self) -> Mapping[str, Any]:
        """Tells another process of this server where the files are."""
        key = self._shared_key.hex()
        return {"root": str(self._root), "key": key, "max_bytes": self._max_bytes}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        key = bytes.fromhex(told["key"])
        return cls(Path(told["root"]), key, told["max_bytes"], in_server=False)

    @staticmethod
    def file_name(digest: str) -> str:
        """How the file of weights is called that the backend writes and maps."""
        return digest + WEIGHTS

    def find(self, digest: str) -> MappedModel | None:
        """A model whose weights can be mapped; None if there is none. The file may leave at any
        time, so that the backend does not find it.

        Args:
            digest: of everything that the file depends on, in hexadecimal.

        Raises:
            EntryRefused: the file is damaged, or signed with another key; it has been removed. Or
                its folder is not this user's alone.
            OSError: it cannot be read.
        """
        path = self._folder / self.file_name(digest)
        try:
            self._check_folder()
            # O_NONBLOCK: if the file is a pipe, opening it must not wait.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            if not path.is_symlink():
                raise
            path.unlink(missing_ok=True)
            raise EntryRefused("it is a symbolic link") from error
        try:
            told = os.fstat(descriptor)
            if not stat.S_ISREG(told.st_mode) or told.st_size > self._max_bytes:
                raise EntryRefused("it is not a file of weights")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                model = self._model(path, file)
                if model is None:
                    path.unlink(missing_ok=True)
                    return None
                if time.time() - told.st_mtime > _USED_SECONDS:
                    with suppress(OSError):  # the folder may be read-only
                        os.utime(descriptor)
                self._note(path, file)
        except EntryRefused:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return MappedModel(model, path)

    def add(self, digest: str, write: Callable[[Path], None]) -> None:
        """Keeps a file of weights if there is none.

        Args:
            write: writes a model to the path that it is given, and its weights beside it, to
                `file_name(digest)`.

        Raises:
            OSError, ValueError: the file cannot be written, or there is no room for it.
            EntryRefused: the folder is not this user's alone.
            What `write` raises.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._check_folder()
        with ScratchFolder(self._folder) as scratch:
            written, model = scratch.path / self.file_name(digest), scratch.path / "model"
            write(model)
            with written.open("a+b") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(model.read_bytes())
                file.write(_TAIL.pack(_MAGIC, model.stat().st_size))
                file.flush()
                file.write(b"".join(self._macs(written.name, file, file.tell())))
                file.flush()
                self._room.make(file.tell())
                with suppress(FileExistsError):
                    (self._folder / written.name).hardlink_to(written)
                    written.unlink()
                    self._note(self._folder / written.name, file)

    # -- inside --

    def _check_folder(self) -> None:
        """
        Raises:
            FileNotFoundError: there is no folder.
            EntryRefused: others may write to it.
        """
        told = self._folder.lstat()
        is_own = stat.S_ISDIR(told.st_mode) and told.st_uid == os.geteuid()
        if not is_own or told.st_mode & _OTHERS_WRITE:
            raise EntryRefused("its folder belongs to others, or others may write to it")

    def _model(self, path: Path, file: IO[bytes]) -> bytes | None:
        """The model of a file; None in the server, if a device's process wrote the file."""
        end = os.fstat(file.fileno()).st_size - 2 * _MAC_BYTES
        if end < _TAIL.size:
            raise EntryRefused("it is not a file of weights")
        if self._notes.get(path, FileIdentity.of(file.fileno())) is None:
            own, shared = self._macs(path.name, file, end)
            file.seek(end)
            of_server, of_process = file.read(_MAC_BYTES), file.read()
            if not hmac.compare_digest(of_process, shared):
                raise EntryRefused("it is damaged, or not signed with this server's key")
            if self._own_key and not hmac.compare_digest(of_server, own):
                return None
        file.seek(end - _TAIL.size)
        _, size = _TAIL.unpack(file.read(_TAIL.size))
        file.seek(end - _TAIL.size - size)
        return file.read(size)

    def _macs(self, name: str, file: IO[bytes], size: int) -> tuple[bytes, bytes]:
        """The MACs of the name and of the file's first `size` bytes. A device's process cannot make
        the first one."""
        sha = hashlib.sha256()
        piece = memoryview(bytearray(_PIECE_BYTES))
        file.seek(0)
        while size and (count := file.readinto(piece[:size])):  # type: ignore[attr-defined]
            sha.update(piece[:count])
            size -= count
        told = name.encode() + sha.digest()
        own = hmac.digest(self._own_key, told, "sha256") if self._own_key else bytes(_MAC_BYTES)
        return own, hmac.digest(self._shared_key, told, "sha256")

    def _note(self, path: Path, file: IO[bytes]) -> None:
        """Notes that the file was checked."""
        identity = FileIdentity.of(file.fileno())
        if self._notes.get(path, identity) is None:
            self._notes.set(path, identity, _CHECKED)
