"""Uploaded models: files named by their digest; for a new one, the least recently used go."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from headrace.runtime.errors import InvalidArgument, NotFound, ResourceExhausted

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Uploads:
    """Thread-safe; `_lock` guards the table. Files vanish with the server.

    Args:
        max_model_bytes: of one model.
        max_total_bytes: of all together, those still on their way included.
    """

    def __init__(self, max_model_bytes: int, max_total_bytes: int) -> None:
        self._max_model_bytes = max_model_bytes
        self._max_total_bytes = max_total_bytes
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-uploads-")
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._total = 0

    async def receive(self, chunks: AsyncIterator[bytes]) -> tuple[str, int]:
        """Writes the chunks to a file; returns its digest and size in bytes.

        Raises:
            InvalidArgument: no bytes came, or more than a model may have.
            ResourceExhausted: there is no room for it.
        """
        sha = hashlib.sha256()
        size = 0
        descriptor, name = tempfile.mkstemp(dir=self._folder.name)
        path = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self._max_model_bytes:
                        raise InvalidArgument(
                            f"the model is larger than the {self._max_model_bytes} bytes allowed",
                            field="chunk",
                        )
                    self._reserve(len(chunk))
                    sha.update(chunk)
                    file.write(chunk)
            if not size:
                raise InvalidArgument("the model is empty", field="chunk")
        except BaseException:
            path.unlink()
            self._give_back(size)
            raise
        digest = f"sha256:{sha.hexdigest()}"
        with self._lock:
            known = self._sizes.pop(digest, None)
            self._sizes[digest] = size
            path.replace(self._path(digest))
        if known is not None:
            self._give_back(size)
        return digest, size

    def read(self, digest: str) -> bytes:
        """The model's bytes.

        Raises:
            InvalidArgument: `digest` is none.
            NotFound: no such model was uploaded, or it has been dropped for newer ones.
        """
        if not _DIGEST.fullmatch(digest):
            raise InvalidArgument(
                "a digest is 'sha256:' and 64 hexadecimal digits", field="model.digest"
            )
        with self._lock:
            size = self._sizes.pop(digest, None)
            if size is None:
                raise NotFound(
                    "no uploaded model has this digest; upload it (again)", field="model.digest"
                )
            self._sizes[digest] = size
            return self._path(digest).read_bytes()

    def close(self) -> None:
        self._folder.cleanup()

    def _reserve(self, size: int) -> None:
        with self._lock:
            while self._total + size > self._max_total_bytes and self._sizes:
                oldest = next(iter(self._sizes))
                self._total -= self._sizes.pop(oldest)
                self._path(oldest).unlink()
            self._total += size
            if self._total > self._max_total_bytes:
                raise ResourceExhausted(
                    f"uploads take more than the {self._max_total_bytes} bytes allowed; try again "
                    f"when others have finished"
                )

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._total -= size

    def _path(self, digest: str) -> Path:
        return Path(self._folder.name) / digest.removeprefix("sha256:")
