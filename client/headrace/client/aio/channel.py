"""gRPC's asyncio channels, with calls that keep the status that the server gave.

If a call ends while the client is writing a message, gRPC's asyncio client replaces the status of
the call by INTERNAL, "Internal error from Core" (grpc/grpc#36066). A server that refuses an upload
or a stream before it has read all of it ends the call in this way, and its reason would be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio

from headrace.client.errors import UNWRITTEN

_STATUS_SECONDS: Final = 5.0
"""How much later than the write that failed the server's status may come."""


def insecure_channel(address: str, options: Any) -> Any:
    return _Channel(grpc.aio.insecure_channel(address, options))


def secure_channel(address: str, credentials: grpc.ChannelCredentials, options: Any) -> Any:
    return _Channel(grpc.aio.secure_channel(address, credentials, options))


class _Channel:
    """A channel. Only the callables of streams from the client differ from gRPC's own."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def stream_unary(self, *args: Any, **options: Any) -> Callable[..., Any]:
        return _keeping(self._channel.stream_unary(*args, **options))

    def stream_stream(self, *args: Any, **options: Any) -> Callable[..., Any]:
        return _keeping(self._channel.stream_stream(*args, **options))


def _keeping(start: Callable[..., Any]) -> Callable[..., Any]:
    def started(*request: Any, **options: Any) -> _Call:
        return _Call(start(*request, **options))

    return started


class _Call:
    """A call. Its errors have the first status that is not due to a write."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._error: grpc.aio.AioRpcError | None = None
        self._known = asyncio.Event()
        call.add_done_callback(self._ended)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._told(self._reply()).__await__()

    async def read(self) -> Any:
        return await self._told(self._call.read())

    async def write(self, message: bytes) -> None:
        await self._told(self._call.write(message))

    async def _reply(self) -> Any:
        return await self._call

    async def _told(self, outcome: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await outcome
        except grpc.aio.AioRpcError as error:
            if error.details() != UNWRITTEN:
                raise
            with suppress(TimeoutError):
                await asyncio.wait_for(self._known.wait(), _STATUS_SECONDS)
            raise self._error or error from None

    def _ended(self, call: Any) -> None:
        """Called at each status. The call has one now, so that its coroutines end at once."""
        if self._error is not None:
            return
        details = _at_once(call.details())
        if details != UNWRITTEN:
            metadata = grpc.aio.Metadata()
            trailing = _at_once(call.trailing_metadata())
            code = _at_once(call.code())
            self._error = grpc.aio.AioRpcError(code, metadata, trailing, details)
            self._known.set()


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise AssertionError("the coroutine waits")
