"""Sends the bodies of replies in pieces, and deflates them if the client accepts that."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.server.http.rest.bodies import ENCODINGS
from headrace.wire.codec import Buffer

_STEP: Final = 1 << 18
"""The most bytes that are deflated on the event loop's thread, or written at a time."""
_WORTH_DEFLATING: Final = 1 << 10
_FAST: Final = 1


class Pieces(Response):
    """A reply of several buffers. The buffers are not copied into one."""

    def __init__(self, parts: Iterable[Buffer], headers: Mapping[str, str]) -> None:
        self._parts = [memoryview(part) for part in parts]
        length = sum(map(len, self._parts))
        super().__init__(None, headers={**headers, "content-length": str(length)})

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        start: dict[str, Any] = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        for piece in _pieces(self._parts):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def accepted_encoding(request: Request) -> str | None:
    """The encoding that the client accepts for large replies: gzip, deflate or None."""
    given = request.headers.get("accept-encoding", "")
    wanted = {}
    for each in given.lower().split(","):
        name, _, quality = each.partition(";")
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
