"""Sends the bodies of replies in pieces, and deflates them if the client accepts that."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import anyio.to_thread
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.server.http.connection import HttpConnection
from headrace.server.http.rest.bodies import ENCODINGS
from headrace.wire.codec import Buffer

_STEP: Final = 1 << 18
"""The most bytes that are deflated on the event loop's thread, or written at a time."""
_WORTH_DEFLATING: Final = 1 << 10
_FAST: Final = 1


class Pieces(Response):
    """A reply of several buffers. They are not copied into one, unless the client is slow to read.

    Then the rest is copied into memory of its own, so that a backend gets its memory back: what a
    backend has taken for outputs, it may keep for as long as the network is loaded.

    May be sent once.
    """

    def __init__(self, parts: Iterable[Buffer], headers: Mapping[str, str]) -> None:
        views = [memoryview(part) for part in parts]
        length = sum(map(len, views))
        self._left = deque(_pieces(views))
        super().__init__(None, headers={**headers, "content-length": str(length)})

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        connection: HttpConnection = scope["state"]["connection"]
        start: dict[str, Any] = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        left, is_copied = self._left, False
        self._left = deque()
        while left:
            if connection.is_behind and not is_copied:
                copy = await anyio.to_thread.run_sync(_joined, left)
                left, is_copied = deque(_pieces([copy])), True
            # Copied, because the connection keeps what the socket does not take at once.
            piece = bytes(left.popleft())
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _joined(pieces: Iterable[memoryview]) -> Buffer:
    # Not `bytes.join`, which would hold the interpreter.
    return np.concatenate([np.frombuffer(piece, np.uint8) for piece in pieces]).data


def accepted_encoding(request: Request) -> str | None:
    """The encoding that the client accepts for large replies: gzip, deflate or None."""
    given = request.headers.get("accept-encoding", "")
    wanted = {}
    for coding in given.lower().split(","):
        name, _, quality = coding.partition(";")
        wanted[name.strip()] = quality.strip() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return next((name for name in ENCODINGS if wanted.get(name)), None)


async def deflated(parts: list[Buffer], encoding: str | None) -> tuple[list[Buffer], str | None]:
    """The deflated parts and the encoding. Unchanged parts if deflating does not pay."""
    size = sum(map(len, parts))
    if encoding is None or size < _WORTH_DEFLATING:
        return parts, None

    def deflate() -> bytes:
        deflater = zlib.compressobj(_FAST, zlib.DEFLATED, ENCODINGS[encoding])
        return b"".join([*map(deflater.compress, _pieces(parts)), deflater.flush()])

    if size < _STEP:
        return [deflate()], encoding
    return [await anyio.to_thread.run_sync(deflate)], encoding


def _pieces(parts: Iterable[Buffer]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _STEP):
            yield view[start : start + _STEP]
