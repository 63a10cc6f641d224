"""Server reflection whose open calls end with the work, not with the server's grace period, and
whose questions are short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from headrace.runtime.errors import InvalidArgument
from headrace.wire.message import parse_request

REFLECTION: Final = reflection.SERVICE_NAME

MAX_QUESTION_BYTES: Final = 1 << 16
"""Of a name; as an object a message takes up to eight times its size."""


class ReflectionService(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """grpcio's, which can be closed. Belongs to the event loop's thread."""

    def __init__(self, services: Iterable[str]) -> None:
        super().__init__([*services, REFLECTION])
        self._waiting: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def serve(self, context: Any) -> None:
        """Handles one call from its first question to its last answer."""
        async with aclosing(self.ServerReflectionInfo(_questions(context), context)) as replies:
            async for reply in replies:
                await context.write(reply.SerializeToString())

    def close(self) -> None:
        """Ends every call: at once if it waits for its caller, else when it has answered."""
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
                # A call that is cancelled while it writes is one that grpc.aio never ends.
                self._waiting.discard(call)
            yield _question(data)


async def _questions(context: Any) -> AsyncIterator[bytes]:
    while (data := await context.read()) is not grpc.aio.EOF:
        yield data


def _question(data: bytes) -> reflection_pb2.ServerReflectionRequest:
    if len(data) > MAX_QUESTION_BYTES:
        raise InvalidArgument(
            f"a question has at most {MAX_QUESTION_BYTES} bytes; this one has {len(data)}"
        )
    return parse_request(reflection_pb2.ServerReflectionRequest, data)
