"""Collects and inflates the bodies of requests within bounds."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request

from headrace.runtime.errors import FailedPrecondition, ResourceExhausted, did_you_mean
from headrace.server.access.identity import holder_of
from headrace.server.http.rest.documents import leave_out_null, parse_object
from headrace.server.transport.shares import Shares, StreamMemory, release_soon
from headrace.wire.codec import CodecError

LENGTH_HEADER: Final = "inference-header-content-length"

_ALIGNMENT: Final = 64
_MEMBERS: Final = 4096

_FIRST_STEP: Final = 1 << 18
"""Bytes that are inflated on the event loop's thread."""
_STEP: Final = 4 << 20
"""Bytes that are inflated at a time on another thread, without holding the interpreter."""

ENCODINGS: Final[Mapping[str, int]] = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""The number that zlib uses for each encoding."""


class Body:
    """A request's whole body.

    Attributes:
        text: the JSON.
        binary: the bytes behind the JSON.
    """

    def __init__(self, buffer: bytearray, padding: int, text_bytes: int | None) -> None:
        whole = memoryview(buffer).toreadonly()[padding:]
        if text_bytes is None:
            text_bytes = len(whole)
        elif text_bytes > len(whole):
            raise CodecError(
                "", f"the header {LENGTH_HEADER} says {text_bytes}; the body has {len(whole)} bytes"
            )
        self.text = bytes(whole[:text_bytes])
        self.binary = whole[text_bytes:]


class Bodies:
    """Limits the memory that the bodies of all connections share. Belongs to the loop's thread.

    Args:
        limit: the most bytes of one body, before and after it is inflated.
        capacity: the most bytes of all bodies together, of requests and replies.
    """

    def __init__(self, limit: int, capacity: int) -> None:
        self._limit = limit
        self._shares = Shares(capacity)

    @asynccontextmanager
    async def collected(
        self, request: Request, *, required: bool = True
    ) -> AsyncIterator[tuple[Body, StreamMemory]]:
        """The request's body and its memory. The memory is given back at the end.

        Args:
            required: whether a request without a body is refused.

        Raises:
            HTTPException: 411 if there is no length, 413 if the body is too large, 415 if its
                encoding is unknown.
            ResourceExhausted: other bodies take the memory.
            CodecError: the body does not match its encoding, or is shorter than the stated length
                of its JSON.
        """
        encoding = self._check(request, required)
        text_bytes = _text_bytes(request)
        host, port = request.client or ("", 0)
        memory = StreamMemory(self._shares, holder_of(f"{host}:{port}"))
        try:
            # Aligns the first tensor behind the JSON, so that it can be used in place.
            padding = -(text_bytes or 0) % _ALIGNMENT
            buffer = bytearray(padding)
            async for chunk in request.stream():
                self._add(buffer, chunk, memory)
            if encoding is not None:
                packed = bytes(memoryview(buffer)[padding:])
                buffer = bytearray(padding)
                async for chunk in _inflated(packed, encoding):
                    self._add(buffer, chunk, memory)
                memory.free(len(packed))
            yield Body(buffer, padding, text_bytes), memory
        finally:
            memory.free_all()
            release_soon(self._shares)

    def check_reply(self, size: int, more: int, memory: StreamMemory) -> None:
        """Takes the memory of a reply.

        Args:
            size: the bytes of the reply so far.
            more: how many of these bytes are new.

        Raises:
            FailedPrecondition: the reply is larger than a message may be.
            ResourceExhausted: other bodies take the memory.
        """
        if size > self._limit:
            raise FailedPrecondition(
                f"the reply takes more than --max-message-bytes {self._limit}; ask for fewer "
                "outputs at a time, or for binary data"
            )
        self._take(more, memory)

    def _check(self, request: Request, required: bool) -> int | None:
        """Checks the headers, and returns zlib's number for the encoding, or None."""
        headers = request.headers
        length = headers.get("content-length")
        if required and length is None and "transfer-encoding" not in headers:
            raise HTTPException(
                HTTPStatus.LENGTH_REQUIRED, "send a body, with its length in Content-Length"
            )
        if length is not None and int(length) > self._limit:
            raise self._too_large()
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("", "identity"):
            return None
        found = ENCODINGS.get(encoding)
        if found is None:
            raise HTTPException(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "the body's Content-Encoding is unknown; gzip and deflate are known",
            )
        return found

    def _add(self, buffer: bytearray, chunk: bytes, memory: StreamMemory) -> None:
        if len(buffer) + len(chunk) > self._limit + _ALIGNMENT:
            raise self._too_large()
        self._take(len(chunk), memory)
        buffer += chunk

    @staticmethod
    def _take(size: int, memory: StreamMemory) -> None:
        if not memory.use(size):
            raise ResourceExhausted(
                "other HTTP requests use all the memory for bodies; try again later, or "
                "send less at a time"
            )

    def _too_large(self) -> HTTPException:
        return HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body takes more than --max-message-bytes {self._limit}",
        )


def _text_bytes(request: Request) -> int | None:
    given = request.headers.get(LENGTH_HEADER)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= 12):
        raise CodecError("", f"the header {LENGTH_HEADER} is not a number of bytes")
    return int(given)


async def _inflated(packed: bytes, encoding: int) -> AsyncIterator[bytes]:
    inflater = zlib.decompressobj(encoding)
    try:
        yield inflater.decompress(packed, _FIRST_STEP)
        while inflater.unconsumed_tail:
            rest = inflater.unconsumed_tail
            yield await anyio.to_thread.run_sync(inflater.decompress, rest, _STEP)
        while chunk := inflater.decompress(b"", _STEP):
            yield chunk
    except zlib.error:
        raise CodecError("", "the body is not compressed as its Content-Encoding says") from None
    if not inflater.eof or inflater.unused_data:
        raise CodecError("", "the body does not end where its Content-Encoding says")


async def read_object(
    bodies: Bodies, request: Request, known: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """The JSON object in the body of a request other than inference. Empty without a body.

    Such a body may contain large files. So this does not bound its bytes, but the number of its
    members.

    Args:
        known: the members that the object may have. None allows any.

    Raises:
        HTTPException, ResourceExhausted: as `Bodies.collected`.
        CodecError: as `Bodies.collected` and `parse_object`, or a member is not known.
    """
    async with bodies.collected(request, required=False) as (body, _):
        if body.text.count(b",") > _MEMBERS:
            raise HTTPException(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the JSON has more than {_MEMBERS} members"
            )
        document = parse_object(body.text, limit=len(body.text))
    for name in document if known is not None else ():
        if known is not None and name not in known:
            raise CodecError(name[:100], f"is not known{did_you_mean(name[:100], known)}")
    if known is not None:
        leave_out_null(document)
    return document
