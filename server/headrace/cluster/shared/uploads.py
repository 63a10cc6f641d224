"""Uploads that all replicas of a cluster can read, whichever replica a client sent them to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import quote

from headrace.cluster.shared.archive import UPLOADS
from headrace.cluster.shared.objects import Objects
from headrace.runtime.errors import NotFound
from headrace.server.services.uploads import Uploads

_PIECE_BYTES = 1 << 20


class SharedUploads(Uploads):
    """Also writes each upload to the cluster's store, and reads there what other replicas took.

    Args:
        objects: the store. The keeper removes old uploads from it.
    """

    def __init__(self, objects: Objects, *limits: int) -> None:
        super().__init__(*limits)
        self._objects = objects

    async def receive(self, chunks: AsyncIterator[bytes], owner: str = "") -> tuple[str, int]:
        digest, size = await super().receive(chunks, owner)
        data = super().read(digest, owner)
        pieces = (data[start : start + _PIECE_BYTES] for start in range(0, size, _PIECE_BYTES))
        await asyncio.to_thread(self._objects.write, _name(digest, owner), pieces)
        return digest, size

    def read(self, digest: str, owner: str = "") -> memoryview:
        """As `Uploads.read`. It may wait for the store, so the event loop may not call it."""
        try:
            return super().read(digest, owner)
        except NotFound as error:
            try:
                return memoryview(self._objects.read(_name(digest, owner)))
            except NotFound:
                raise error from None


def _name(digest: str, owner: str) -> str:
    plain = digest.removeprefix("sha256:")
    return f"{UPLOADS}/{plain}.{quote(owner, safe='')}" if owner else f"{UPLOADS}/{plain}"
