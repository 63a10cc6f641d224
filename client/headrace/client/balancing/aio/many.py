"""Many requests over one stream, which moves to another server if it must."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.client import errors
from headrace.client.aio.infer_many import InferMany
from headrace.client.balancing.moving import MovingConversation
from headrace.client.balancing.place import Place
from headrace.client.channel.channel import AsyncStream, CallFailed
from headrace.client.errors import Error


class MovingMany(InferMany):
    """Iterates as `InferMany` does. The task that receives moves the stream."""

    _conversation: MovingConversation

    def __init__(
        self, conversation: MovingConversation, inputs: Any, client: Any, network: Any
    ) -> None:
        self._client = client
        self._place = Place(client, network)
        conversation.attempts = client.fleet.options.attempts
        conversation.may_repeat = self._place.may_repeat
        super().__init__(conversation, inputs, self._on_a_server, client.endpoint)

    async def aclose(self) -> None:
        await super().aclose()
        self._place.end()

    async def _on_a_server(self) -> AsyncStream:
        """A stream on the first server that takes one.

        Raises:
            Error: none does.
        """
        while True:
            route = self._place.take()
            try:
                stream: AsyncStream = await route.calls.stream()
                return stream
            except errors.FailedPrecondition:  # the route is closed
                if self._client.group.closed or self._place.lost(errors.cancelled()) is None:
                    raise errors.client_closed() from None
            except CallFailed as failure:
                await asyncio.sleep(self._lost(errors.from_call(failure, route.endpoint)))

    async def _send(self) -> None:
        await self._begun.wait()
        while not self._is_finished:
            await self._outgoing.wait()
            self._outgoing.clear()
            call = self._call
            assert call is not None
            for message in self._conversation.all_messages():
                if not await call.send(message):
                    break  # the stream has ended; the receiver moves it
        if self._call is not None:
            self._call.end()

    @property
    def _is_finished(self) -> bool:
        return self._exhausted and not self._conversation.unanswered

    async def _read(self) -> Any:
        while True:
            try:
                return await super()._read()
            except CallFailed as failure:
                if self._is_finished:
                    return None
                await self._move(self._lost(errors.from_call(failure, self._target)))

    async def _received(self) -> None:
        self._place.heard()
        if self._conversation.must_move:
            await self._move(self._place.leave())

    def _lost(self, error: Error) -> float:
        """After how many seconds the stream begins elsewhere.

        Raises:
            Error: it cannot.
        """
        pause = None if self._closed else self._place.lost(error)
        if pause is None:
            raise error
        return pause

    async def _move(self, pause: float) -> None:
        """Begins a stream elsewhere, and sends there what is unanswered."""
        assert self._call is not None
        self._call.cancel()
        await asyncio.sleep(pause)
        self._call = await self._on_a_server()
        for result in self._conversation.move():
            self._results.put_nowait(result)
        self._room.set()
        self._outgoing.set()
