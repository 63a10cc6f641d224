"""Calls of Infer over the shared stream of the asyncio client, in the form of gRPC's calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import grpc
import grpc.aio

from headrace.client.multiplex.outcome import Failure, resolve, trace_of
from headrace.client.multiplex.tasks.streams import Awaited, Metadata, Streams
from headrace.wire.message import Parsed


class SharedStreams(Streams):
    """The streams that the requests of one client share."""

    def infer(self, unary: Any, *, once: bool) -> Infer:
        """A callable of Infer that uses a stream where that is possible, and `unary` elsewhere."""
        return Infer(self, unary, once=once)


class Infer:
    """gRPC's callable of Infer, over the shared stream where that is possible."""

    __slots__ = ("_once", "_streams", "_unary")

    def __init__(self, streams: Streams, unary: Any, *, once: bool) -> None:
        self._streams = streams
        self._unary = unary
        self._once = once

    def __call__(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> Any:
        again = partial(self._unary, request, metadata=metadata)
        item = Awaited(request, timeout, trace_of(metadata), once=self._once)
        if not self._streams.submit(item):
            return again(timeout=timeout)
        return StreamCall(item, again, self._streams.clock)


class StreamCall:
    """A request as gRPC's call, as far as the client needs it. It is awaited once."""

    __slots__ = ("_again", "_callbacks", "_clock", "_deadline", "_failure", "_item", "_unary")

    def __init__(
        self, item: Awaited, again: Callable[..., Any], clock: Callable[[], float]
    ) -> None:
        self._item = item
        self._again = again
        self._clock = clock
        self._deadline = item.deadline
        self._unary: Any = None
        self._failure: Failure | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def __await__(self) -> Generator[Any, None, Any]:
        return self._reply().__await__()

    async def _reply(self) -> Any:
        found: Parsed | Failure | None = Failure(grpc.StatusCode.CANCELLED, "Locally cancelled")
        try:
            try:
                outcome = await self._item.outcome
            except asyncio.CancelledError:
                self._item.give_up()
                raise
            deadline = self._deadline
            left = None if deadline is None else max(deadline - self._clock(), 0.0)
            found = resolve(self._item, outcome, left)
            if found is None:
                self._unary = self._again(timeout=left)
                return await self._unary
            if isinstance(found, Failure):
                metadata = grpc.aio.Metadata()
                trailing = grpc.aio.Metadata(*found.trailing)
                raise grpc.aio.AioRpcError(found.code, metadata, trailing, found.message)
            return found
        finally:
            self._failure = found if isinstance(found, Failure) else None
            for callback in self._callbacks:
                callback(self)

    def done(self) -> bool:
        return bool(self._unary.done()) if self._unary is not None else self._item.outcome.done()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    async def code(self) -> grpc.StatusCode:
        if self._unary is not None:
            code: grpc.StatusCode = await self._unary.code()
            return code
        return grpc.StatusCode.OK if self._failure is None else self._failure.code

    async def details(self) -> str:
        if self._unary is not None:
            return str(await self._unary.details() or "")
        return "" if self._failure is None else self._failure.message

    async def trailing_metadata(self) -> Any:
        if self._unary is not None:
            return await self._unary.trailing_metadata()
        return () if self._failure is None else self._failure.trailing
