"""Many requests over one stream, which moves to another server if it must."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc.aio

from headrace.client import errors
from headrace.client.aio.infer_many import InferMany
from headrace.client.balancing.moving import MovingConversation
from headrace.client.balancing.place import Place
from headrace.client.errors import Error


class MovingMany(InferMany):
    """Iterates as `InferMany` does. The task that receives moves the stream, and each stream has a
    task that writes."""

    _conversation: MovingConversation

    def __init__(
        self, conversation: MovingConversation, inputs: Any, client: Any, network: Any
    ) -> None:
        self._client = client
        self._place = Place(client, network)
        self._writing: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        conversation.attempts = client.fleet.options.attempts
        conversation.may_repeat = self._place.may_repeat
        super().__init__(conversation, inputs, self._begin, client.endpoint)

    async def aclose(self) -> None:
        await super().aclose()
        self._place.end()

    def _begin(self) -> Any:
        while True:
            route = self._place.take()
            try:
                call = route.callable("InferStream")()
            except (errors.FailedPrecondition, grpc.aio.UsageError):  # the route is closed
                if self._client.group.closed or self._place.lost(errors.cancelled()) is None:
                    raise errors.client_closed() from None
                continue
            assert self._place.server is not None
            streams = self._place.server.streams
            streams.add(call)
            call.add_done_callback(streams.discard)
            return call

    async def _send(self) -> None:
        while not self._is_finished:
            call = self._call
            self._moved.clear()
            self._writing = asyncio.ensure_future(self._write_to(call))
            try:
                await asyncio.wait({self._writing})
            finally:
                self._writing.cancel()
            if call is self._call and not self._is_finished:
                await self._moved.wait()  # the stream has ended; the receiver is told why

    @property
    def _is_finished(self) -> bool:
        return self._exhausted and not self._conversation.unanswered

    async def _write_to(self, call: Any) -> None:
        """Sends what was drawn on this stream. gRPC never ends a write on a stream that is
        cancelled early, so a task of its own writes."""
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            while not self._is_finished:
                await self._outgoing.wait()
                self._outgoing.clear()
                for message in self._conversation.all_messages():
                    await call.write(message)
            await call.done_writing()

    async def _read(self) -> Any:
        while True:
            try:
                return await self._call.read()
            except grpc.aio.AioRpcError as error:
                if self._is_finished:
                    return grpc.aio.EOF
                await self._broke(await errors.from_aio_call(error, self._target))
            except asyncio.CancelledError:
                if self._is_cancelled():
                    raise
                await self._broke(await errors.from_cancelled(self._call, self._target))

    async def _received(self) -> None:
        self._place.heard()
        if self._conversation.must_move:
            await self._move(self._place.leave())

    def _is_cancelled(self) -> bool:
        task = asyncio.current_task()
        return self._closed or (task is not None and task.cancelling() > 0)

    async def _broke(self, error: Error) -> None:
        """
        Raises:
            Error: the stream cannot go on elsewhere.
        """
        pause = self._place.lost(error)
        if pause is None:
            raise error
        await self._move(pause)

    async def _move(self, pause: float) -> None:
        """Begins a stream elsewhere, and sends there what is unanswered."""
        self._call.cancel()
        await asyncio.sleep(pause)
        for result in self._conversation.move():
            self._results.put_nowait(result)
        self._call = self._begin()
        if self._writing is not None:
            self._writing.cancel()
        self._moved.set()
        self._room.set()
        self._outgoing.set()
