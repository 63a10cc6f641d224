"""Uploaded models and blobs by their digest; for a new one, the least recently used go."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from headrace.runtime.errors import InvalidArgument, NotFound, ResourceExhausted

MAX_MODELS = 256
"""Kept at a time: each is an open file."""

_BLOB_HEADER_BYTES = 8 * 2**20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Uploads:
    """Files without a name, so that they vanish with the server, however it ends.

    Thread-safe; `_lock` guards the table. No file is read under it, for uploads to come take it on
    the event loop's thread.

    Args:
        max_model_bytes: of one model.
        max_total_bytes: of all together, those still on their way included.
    """

    def __init__(self, max_model_bytes: int, max_total_bytes: int) -> None:
        self._max_model_bytes = max_model_bytes
        self._max_total_bytes = max_total_bytes
        self._lock = threading.Lock()
        self._models: dict[str, tuple[Any, int]] = {}  # file and size, the least recent first
        self._total = 0

    async def receive(self, chunks: AsyncIterator[bytes], *, blob: bool = False) -> tuple[str, int]:
        """Writes the chunks to a file; returns its digest and size in bytes.

        Args:
            blob: it is an exported network, which holds the backend's own bytes as well.

        Raises:
            InvalidArgument: no bytes came, or more than a model may have.
            ResourceExhausted: there is no room for it.
        """
        what, allowed = "model", self._max_model_bytes
        if blob:
            what, allowed = "blob", 2 * allowed + _BLOB_HEADER_BYTES
        sha = hashlib.sha256()
        size = reserved = 0
        file: Any = None  # until there is something to write: idle calls hold no descriptors
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
                self._reserve(len(chunk))
                reserved = size
                sha.update(chunk)
                file = file or _open()
                _write(file, chunk)
            if not size:
                raise InvalidArgument(f"the {what} is empty", field="chunk")
        except BaseException:
            if file is not None:
                with suppress(OSError):  # a full disk may say so once more
                    file.close()
            self._give_back(reserved)
            raise
        digest = f"sha256:{sha.hexdigest()}"
        with self._lock:
            if digest in self._models:
                self._drop(digest)
            elif len(self._models) >= MAX_MODELS:
                self._drop(next(iter(self._models)))
            self._models[digest] = file, size
        return digest, size

    def read(self, digest: str) -> memoryview:
        """The model's bytes, mapped for as long as somebody refers to them.

        Raises:
            InvalidArgument: `digest` is none.
            NotFound: no such model was uploaded, or it has been dropped for newer ones.
        """
        if not _DIGEST.fullmatch(digest):
            raise InvalidArgument(
                "a digest is 'sha256:' and 64 hexadecimal digits", field="model.digest"
            )
        with self._lock:
            if digest not in self._models:
                raise NotFound(
                    "no uploaded model has this digest; upload it (again)", field="model.digest"
                )
            file, size = self._models[digest] = self._models.pop(digest)
            return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))

    def close(self) -> None:
        with self._lock:
            for digest in list(self._models):
                self._drop(digest)

    def _reserve(self, size: int) -> None:
        with self._lock:
            while self._total + size > self._max_total_bytes and self._models:
                self._drop(next(iter(self._models)))
            if self._total + size > self._max_total_bytes:
                raise ResourceExhausted(
                    f"uploads take more than the {self._max_total_bytes} bytes allowed; try again "
                    f"when others have finished"
                )
            self._total += size

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._total -= size

    def _drop(self, digest: str) -> None:
        file, size = self._models.pop(digest)
        file.close()
        self._total -= size


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
    # Where no folder for temporary files can be used, the error's own text names all of them.
    why = os.strerror(error.errno) if error.errno else "it has no temporary file"
    return ResourceExhausted(f"there is no room for an upload on the server: {why}")
