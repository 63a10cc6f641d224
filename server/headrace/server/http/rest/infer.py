"""Handles POST .../infer: collects, decodes, computes and encodes."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.server.http.rest.bodies import LENGTH_HEADER, Bodies, Body
from headrace.server.http.rest.messages import RestReply, decode
from headrace.server.http.rest.passing import request_of, result_of
from headrace.server.http.rest.replies import Pieces, accepted_encoding, deflated
from headrace.server.services.open_inference.datatypes import BYTES
from headrace.server.services.open_inference.messages import MODEL_INFER
from headrace.server.serving.call import InferCall
from headrace.server.serving.serving import Serving
from headrace.server.shared_memory.users import peer_of
from headrace.server.transport.call import Metadata
from headrace.server.transport.shares import StreamMemory
from headrace.wire.codec import Buffer

_LARGE: Final = 64 << 10
"""From this many bytes on, JSON and text are decoded on a thread: it takes milliseconds."""
_DECODERS: Final = 2
_TOLD: Final = ("authorization", "traceparent", "tracestate")


class HttpCall:
    """A request of HTTP as a `serving.Context`."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def time_remaining(self) -> None:
        """HTTP has no deadline of its own."""

    def peer(self) -> str:
        assert self._request.client is not None  # a TCP connection has one
        return peer_of(*self._request.client)

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """What another server is told of the caller."""
        headers = self._request.headers
        return [(name, value) for name in _TOLD for value in headers.getlist(name)]

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """A reply of HTTP has no room for what another server says besides its own."""

    async def user(self) -> int | None:
        user: int | None = await self._request.scope["state"]["connection"].user()
        return user


class Infer:
    """Belongs to the thread of the HTTP server's loop."""

    def __init__(self, serving: Serving, bodies: Bodies) -> None:
        self._serving = serving
        self._bodies = bodies
        self._decoders = anyio.CapacityLimiter(_DECODERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Raises:
            HTTPException, CodecError: as `Bodies.collected` and `messages.decode`.
            Also raises as `Serving.run`.
        """
        request = Request(scope, receive)
        async with self._bodies.collected(request) as (body, memory):
            response = await self._computed(request, body, memory)
            await response(scope, receive, send)

    async def _computed(self, request: Request, body: Body, memory: StreamMemory) -> Response:
        """The reply. Nothing else keeps the outputs: a client may read it slowly."""
        call, context = await self._decoded(request, body), HttpCall(request)
        write = partial(request_of, call)
        passed = await self._serving.passed_on(call, MODEL_INFER, write, context)
        if passed is None:
            result = await self._serving.run(call, context)
        else:
            result = await anyio.to_thread.run_sync(result_of, call, passed)
        reply = await self._reply(request, RestReply(result), memory)
        result.job.drop_values()
        return reply

    async def _decoded(self, request: Request, body: Body) -> InferCall:
        path = request.path_params
        read = partial(decode, path["model"], path.get("version", ""), body.text, body.binary)
        slow = len(body.text) + (len(body.binary) if BYTES.encode() in body.text else 0)
        if slow < _LARGE:
            return read()
        return await anyio.to_thread.run_sync(read, limiter=self._decoders)

    async def _reply(self, request: Request, reply: RestReply, memory: StreamMemory) -> Response:
        text: list[bytes] = []
        size = 0
        async for piece in reply.text():
            size += len(piece)
            self._bodies.check_reply(size, len(piece), memory)
            text.append(piece)
        headers: dict[str, Any] = {"content-type": "application/json"}
        parts: list[Buffer] = [b"".join(text)]
        if reply.binary:
            headers = {"content-type": "application/octet-stream", LENGTH_HEADER: str(size)}
            parts += reply.binary
            behind = sum(map(len, reply.binary))
            self._bodies.check_reply(size + behind, behind, memory)
        parts, encoding = await deflated(parts, accepted_encoding(request))
        if encoding is not None:
            headers["content-encoding"] = encoding
            headers["vary"] = "accept-encoding"
        return Pieces(parts, headers)
