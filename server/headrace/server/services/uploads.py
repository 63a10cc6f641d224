"""Uploaded models, by owner and digest, and blobs while they are imported.

A new model replaces the least recently used ones.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from headrace.runtime.errors import InvalidArgument, NotFound, ResourceExhausted

MAX_MODELS = 256
"""The most models that are kept at a time. Each is an open file."""

_BLOB_HEADER_BYTES = 8 * 2**20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Uploads:
    """Keeps uploads in files without a name, so that they vanish however the server ends.

    Thread-safe: `_lock` guards the table. No file is read while `_lock` is held, because new
    uploads take it on the event loop's thread.

    Args:
        max_model_bytes: the limit for one model.
        max_total_bytes: the limit for all models together, including uploads in progress.
        max_owner_bytes: the limit for the models of one owner, including uploads in progress. 0
            means no limit.
    """

    def __init__(
        self, max_model_bytes: int, max_total_bytes: int, max_owner_bytes: int = 0
    ) -> None:
        self._max_model_bytes = max_model_bytes
        self._max_total_bytes = max_total_bytes
        self._lock = threading.Lock()
        # File and size by owner and digest, the least recent first.
        self._models: dict[tuple[str, str], tuple[Any, int]] = {}
        self._max_owner_bytes = max_owner_bytes
        self._total = 0
        self._of_owner: Counter[str] = Counter()  # the bytes of each owner

    async def receive(self, chunks: AsyncIterator[bytes], owner: str = "") -> tuple[str, int]:
        """Writes the chunks of a model to a file, and returns its digest and size in bytes.

        Args:
            owner: the client that may read the upload; empty if all clients may.

        Raises:
            InvalidArgument: no bytes came, or more than a model may have.
            ResourceExhausted: there is no room for the upload.
        """
        file, digest, size = await self._write(chunks, owner, "model", self._max_model_bytes)
        key = owner, digest
        with self._lock:
            if key in self._models:
                self._drop(key)
            elif len(self._models) >= MAX_MODELS:
                self._drop(self._oldest(owner))
            self._models[key] = file, size
        return digest, size

    @asynccontextmanager
    async def blob(
        self, chunks: AsyncIterator[bytes], owner: str = ""
    ) -> AsyncGenerator[memoryview]:
        """Writes the chunks of an exported network to a file, and gives its bytes. The file counts
        as an upload for as long as the context lasts. Nobody can ask for it again, so it is not
        kept. The bytes stay mapped as long as there are references to them.

        Raises:
            InvalidArgument, ResourceExhausted: as `receive`. A blob may be larger than a model,
                because it also holds the backend's own bytes.
        """
        allowed = 2 * self._max_model_bytes + _BLOB_HEADER_BYTES
        file, _, size = await self._write(chunks, owner, "blob", allowed)
        try:
            yield _mapped(file, size)
        finally:
            file.close()
            self._give_back(owner, size)

    async def _write(
        self, chunks: AsyncIterator[bytes], owner: str, what: str, allowed: int
    ) -> tuple[Any, str, int]:
        """The file, its digest and its size, which is reserved."""
        sha = hashlib.sha256()
        size = reserved = 0
        file: Any = None  # opened at the first chunk, so that idle calls hold no descriptor
        try:
            async for chunk in chunks:
                size += len(chunk)
                if size > allowed:
                    raise InvalidArgument(
                        f"the {what} is larger than the {allowed} bytes allowed; the server's "
                        f"max_model_bytes sets that, and its model repository takes larger models, "
                        f"their weights as external data",
                        field="chunk",
                    )
                self._reserve(owner, len(chunk))
                reserved = size
                sha.update(chunk)
                file = file or _open()
                _write(file, chunk)
            if not size:
                raise InvalidArgument(f"the {what} is empty", field="chunk")
        except BaseException:
            if file is not None:
                with suppress(OSError):  # a full disk may raise again
                    file.close()
            self._give_back(owner, reserved)
            raise
        return file, f"sha256:{sha.hexdigest()}", size

    def read(self, digest: str, owner: str = "") -> memoryview:
        """The model's bytes. They stay mapped as long as there are references to them.

        Raises:
            InvalidArgument: `digest` is not a digest.
            NotFound: no such model was uploaded, or it has been dropped for newer ones.
        """
        if not _DIGEST.fullmatch(digest):
            raise InvalidArgument(
                "a digest is 'sha256:' and 64 hexadecimal digits", field="model.digest"
            )
        with self._lock:
            if (owner, digest) not in self._models:
                raise NotFound(
                    "no uploaded model has this digest; upload it (again)", field="model.digest"
                )
            file, size = self._models[owner, digest] = self._models.pop((owner, digest))
            return _mapped(file, size)

    def close(self) -> None:
        with self._lock:
            for key in list(self._models):
                self._drop(key)

    def _reserve(self, owner: str, size: int) -> None:
        own, most = self._of_owner, self._max_owner_bytes if owner else 0
        with self._lock:
            while most and own[owner] + size > most and any(o == owner for o, _ in self._models):
                self._drop(self._oldest(owner))
            if most and own[owner] + size > most:
                raise ResourceExhausted(
                    f"your uploads take more than the {most} bytes that one client may have "
                    "(--max-model-bytes-per-client); try again when others of yours have finished"
                )
            while self._total + size > self._max_total_bytes and self._models:
                self._drop(self._oldest(owner))
            if self._total + size > self._max_total_bytes:
                raise ResourceExhausted(
                    f"uploads take more than the {self._max_total_bytes} bytes allowed; try again "
                    f"when others have finished"
                )
            self._count(owner, size)

    def _give_back(self, owner: str, size: int) -> None:
        with self._lock:
            self._count(owner, -size)

    def _oldest(self, owner: str) -> tuple[str, str]:
        """The upload that makes room for one of `owner`: its own oldest one, so that nobody drops
        the uploads of others while it has some, otherwise the oldest one of all."""
        own = (key for key in self._models if key[0] == owner)
        return next(own, None) or next(iter(self._models))

    def _drop(self, key: tuple[str, str]) -> None:
        file, size = self._models.pop(key)
        file.close()
        self._count(key[0], -size)

    def _count(self, owner: str, size: int) -> None:
        self._total += size
        self._of_owner[owner] += size
        if not self._of_owner[owner]:
            del self._of_owner[owner]


def _mapped(file: Any, size: int) -> memoryview:
    return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))


def _open() -> Any:
    try:
        return tempfile.TemporaryFile(buffering=0)
    except OSError as error:
        raise _no_room(error) from error


def _write(file: Any, data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(file.fileno(), rest) :]
    except OSError as error:
        raise _no_room(error) from error


def _no_room(error: OSError) -> ResourceExhausted:
    # If no temporary folder can be used, the error's own text names all of them.
    why = os.strerror(error.errno) if error.errno else "it has no temporary file"
    return ResourceExhausted(f"there is no room for an upload on the server: {why}")
