"""An ASGI application that hands gRPC calls to the methods of the services."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from headrace.runtime.errors import HeadraceError
from headrace.server.logs import log_internal_error
from headrace.server.transport.asgi.call import AsgiCall, CallEnded, Event, Receive, Send
from headrace.server.transport.asgi.metadata import Metadata, seconds_of
from headrace.server.transport.asgi.open_calls import OpenCalls
from headrace.server.transport.boundary import Call
from headrace.server.transport.connections import shown_peer

_PLAIN_TEXT = (b"content-type", b"text/plain; charset=utf-8")


class GrpcApplication:
    """The application. Belongs to the event loop's thread. Each call is a task.

    The server in front has to pass trailers, to give one event after another, and to say in the
    scope who the caller is.

    Args:
        handlers: finds the handler of a call, as for grpc.aio.
        largest_request, largest_reply: the most bytes of a message.
    """

    def __init__(
        self, handlers: grpc.GenericRpcHandler, *, largest_request: int, largest_reply: int
    ) -> None:
        self._handlers = handlers
        self._limits = largest_request, largest_reply
        self.calls = OpenCalls()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        content, timeout, trailers = b"", None, False
        for name, value in headers:
            if name == b"content-type":
                content = value
            elif name == b"grpc-timeout":
                timeout = value
            elif name == b"te":
                trailers = value == b"trailers"
        if not content.startswith(b"application/grpc") or not trailers:
            await _refuse(send, 415, "this port speaks gRPC; use a gRPC client")
            return
        if scope["method"] != "POST":
            await _refuse(send, 405, "a gRPC call is a POST; use a gRPC client")
            return
        peer = shown_peer(*(scope["client"] or ("", 0)))
        try:
            seconds = None if timeout is None else seconds_of(timeout)
        except HeadraceError as error:
            call = AsgiCall(headers, receive, send, peer, self._limits, None)
            await call.fail(grpc.StatusCode[error.status], f"{error.field}: {error.message}")
            return
        call = AsgiCall(headers, receive, send, peer, self._limits, seconds)
        path = scope["path"]
        handler = self._handlers.service(Call(path, Metadata(headers)))
        if handler is None:
            await call.fail(grpc.StatusCode.UNIMPLEMENTED, "the server has no such method")
            return
        self.calls.add(call)
        try:
            await _run(handler, call)
        except Exception as error:  # noqa: BLE001 - the boundary maps all that it sees
            log_internal_error(error, where=path)
            await call.fail(grpc.StatusCode.INTERNAL, "internal error; the server's log has it")
        finally:
            call.close()
            self.calls.remove(call)


async def _run(handler: grpc.RpcMethodHandler, call: AsgiCall) -> None:
    """Runs a method to its end, and sends its status."""
    try:
        if handler.response_streaming:
            await handler.stream_stream(None, call)
            reply = None
        else:
            reply = await handler.stream_unary(None, call)
            if handler.response_serializer is not None:
                reply = handler.response_serializer(reply)
        await call.reply(reply)
    except CallEnded:
        await call.fail(grpc.StatusCode.UNKNOWN, "")
    except HeadraceError as error:
        await call.fail(grpc.StatusCode[error.status], error.message)
    except asyncio.CancelledError:
        if call.lost:
            return
        remaining = call.time_remaining()
        if remaining is not None and remaining <= 0:
            await call.fail(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        else:
            await call.fail(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")


async def _refuse(send: Send, status: int, text: str) -> None:
    """Answers a request that is not a gRPC call."""
    start: Event = {"type": "http.response.start", "status": status, "headers": [_PLAIN_TEXT]}
    await send(start)
    await send({"type": "http.response.body", "body": f"{text}\n".encode()})
