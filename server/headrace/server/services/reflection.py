"""Server reflection, versions v1 and v1alpha.

Open calls end when the server's work ends, not at the end of the grace period. Questions are short.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2

from headrace.runtime.errors import InvalidArgument
from headrace.server.transport.boundary import write_all
from headrace.wire.message import parse_request

_OLD, _NEW = "grpc.reflection.v1alpha", "grpc.reflection.v1"

SERVICES: Final = (reflection.SERVICE_NAME, f"{_NEW}.ServerReflection")
"""The two versions differ only in the name. Current tools ask for the second one first."""

MAX_QUESTION_BYTES: Final = 1 << 16
"""The limit for a name in a question. A parsed message takes up to eight times its size."""


class ReflectionService(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """grpcio's reflection servicer, with a `close`. Belongs to the event loop's thread."""

    def __init__(self, services: Iterable[str]) -> None:
        _describe_new()
        super().__init__([*services, *SERVICES])
        self._waiting: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def serve(self, context: Any) -> None:
        """Handles one call from its first question to its last answer."""
        async with aclosing(self.ServerReflectionInfo(_questions(context), context)) as replies:
            await write_all(context, (reply.SerializeToString() async for reply in replies))

    def close(self) -> None:
        """Ends each call: at once if it waits for its caller, otherwise after its answer."""
        self._closed = True
        for call in self._waiting:
            call.cancel()

    def _is_closed(self) -> bool:
        return self._closed

    async def ServerReflectionInfo(  # noqa: N802 - the protocol's name
        self, requests: AsyncIterable[bytes], context: Any
    ) -> AsyncGenerator[Any, None]:
        questions = self._until_closed(requests)
        async for reply in super().ServerReflectionInfo(questions, context):
            yield reply

    async def _until_closed(self, requests: AsyncIterable[bytes]) -> AsyncIterator[Any]:
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
                # A call that is cancelled while it writes would lose the rest of its answer.
                self._waiting.discard(call)
            yield _question(data)


def _describe_new() -> None:
    """Adds the description of v1 to the pool that the answers come from. grpcio lacks it."""
    pool, name = descriptor_pool.Default(), "grpc/reflection/v1/reflection.proto"
    try:
        pool.FindFileByName(name)
    except KeyError:
        file = descriptor_pb2.FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(file)
        file.name, file.package = name, _NEW
        for field in (field for message in file.message_type for field in message.field):
            if field.type_name:
                field.type_name = field.type_name.replace(_OLD, _NEW)
        for method in (method for service in file.service for method in service.method):
            method.input_type = method.input_type.replace(_OLD, _NEW)
            method.output_type = method.output_type.replace(_OLD, _NEW)
        pool.AddSerializedFile(file.SerializeToString())


async def _questions(context: Any) -> AsyncIterator[bytes]:
    while (data := await context.read()) is not None:
        yield data


def _question(data: bytes) -> reflection_pb2.ServerReflectionRequest:
    if len(data) > MAX_QUESTION_BYTES:
        raise InvalidArgument(
            f"a question has at most {MAX_QUESTION_BYTES} bytes; this one has {len(data)}"
        )
    return parse_request(reflection_pb2.ServerReflectionRequest, data)
