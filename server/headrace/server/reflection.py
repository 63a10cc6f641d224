"""Server reflection whose open calls end with the work, not with the server's grace period, and
whose questions are short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection, reflection_pb2

MAX_QUESTION_BYTES: Final = 1 << 16
"""Of a name; as an object a message takes up to eight times its size."""


class ReflectionService(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """grpcio's, which can be closed. Belongs to the event loop's thread."""

    def __init__(self, services: Iterable[str]) -> None:
        super().__init__([*services, reflection.SERVICE_NAME])
        self._waiting: set[asyncio.Task[Any]] = set()
        self._closed = False

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to a server that has not started."""
        call = grpc.stream_stream_rpc_method_handler(
            self.ServerReflectionInfo,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        methods = {"ServerReflectionInfo": call}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, methods),)
        )

    def close(self) -> None:
        """Ends every call: at once if it waits for its caller, else when it has answered."""
        self._closed = True
        for call in self._waiting:
            call.cancel()

    def _is_closed(self) -> bool:
        return self._closed

    async def ServerReflectionInfo(  # noqa: N802 - the protocol's name
        self, requests: AsyncIterable[bytes], context: Any
    ) -> AsyncIterator[Any]:
        questions = self._until_closed(requests, context)
        async for reply in super().ServerReflectionInfo(questions, context):
            yield reply

    async def _until_closed(
        self, requests: AsyncIterable[bytes], context: Any
    ) -> AsyncIterator[Any]:
        call = asyncio.current_task()
        assert call is not None
        messages = aiter(requests)
        while not self._is_closed():
            self._waiting.add(call)
            try:
                data = await anext(messages)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                if not self._is_closed():
                    raise
                call.uncancel()
                return
            finally:
                # A call that is cancelled while it writes is one that grpc.aio never ends.
                self._waiting.discard(call)
            yield await _question(data, context)


async def _question(data: bytes, context: Any) -> reflection_pb2.ServerReflectionRequest:
    if len(data) > MAX_QUESTION_BYTES:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"a question has at most {MAX_QUESTION_BYTES} bytes; this one has {len(data)}",
        )
    try:
        return reflection_pb2.ServerReflectionRequest.FromString(data)
    except DecodeError:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, "the message is no ServerReflectionRequest"
        )
        raise
