"""The shared store: objects by name in a folder, on NFS, or in a store that speaks S3."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from headrace.runtime.errors import FailedPrecondition, NotFound, Unavailable
from headrace.runtime.system.buffers import Buffer
from headrace.server.repository.remote import open_store


class Objects:
    """Reads and writes whole objects. Thread-safe. All methods wait for the store.

    Args:
        url: a folder, or what fsspec opens: ``s3://bucket/folder``, ``gs://...``.

    Raises:
        InvalidArgument: no installed package opens the address.
        All methods raise Unavailable if the store cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self._files, self._root = open_store(url, "store")
        self._local = "file" in _names(self._files)

    def read(self, name: str) -> bytes:
        """
        Raises:
            NotFound: there is no such object.
        """
        with _reaching():
            try:
                data: bytes = self._files.cat_file(self._path(name))
            except FileNotFoundError as error:
                raise NotFound(f"the store has no {name}") from error
            return data

    def has(self, name: str) -> bool:
        with _reaching():
            self._files.invalidate_cache()
            return bool(self._files.exists(self._path(name)))

    def write(self, name: str, chunks: Iterable[Buffer]) -> None:
        """Writes an object. Others see it whole or not at all."""
        path = self._path(name)
        with _reaching():
            if not self._local:  # such stores show an object when it is complete
                with self._files.open(path, "wb") as file:
                    _write(file, chunks)
                return
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            partial = f"{path}.{secrets.token_hex(8)}.part"
            try:
                with self._files.open(partial, "wb") as file:
                    _write(file, chunks)
                self._files.mv(partial, path)
            except BaseException:
                with suppress(OSError):
                    self._files.rm_file(partial)
                raise

    def age(self, name: str) -> float:
        """The seconds since the object was written; 0 if it is not there."""
        with _reaching():
            try:
                modified: datetime = self._files.modified(self._path(name))
            except FileNotFoundError:
                return 0.0
        return (datetime.now(UTC) - modified.astimezone(UTC)).total_seconds()

    def remove(self, name: str) -> None:
        """Removes an object, if it is there."""
        with _reaching(), suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def names(self, folder: str) -> list[str]:
        """The objects in a folder, by their names inside it."""
        with _reaching():
            try:
                self._files.invalidate_cache()
                paths = self._files.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
        names = (str(path).rpartition("/")[2] for path in paths)
        return sorted(name for name in names if name and not name.endswith(".part"))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


def _names(files: Any) -> tuple[str, ...]:
    protocol = files.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _write(file: Any, chunks: Iterable[Buffer]) -> None:
    for chunk in chunks:
        file.write(chunk)


@contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise FailedPrecondition("the replica may not use the cluster's store") from error
    except OSError as error:
        raise Unavailable(
            f"the cluster's store cannot be reached: {error.strerror or type(error).__name__}"
        ) from error
