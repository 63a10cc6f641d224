"""Many requests over one stream, of the asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final

from headrace.client import errors
from headrace.client.channel.channel import AsyncStream, CallFailed, late
from headrace.client.conversation import SLACK_SECONDS, Conversation, Result

_LOOK_SECONDS: Final = 1.0

_Inputs = Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]


class InferMany(AsyncIterator[Result]):
    """Iterates over (index, outputs or error) in the order in which requests finish.

    Tasks share the conversation: one draws inputs while there is room, one sends what was drawn
    meanwhile, one receives, and moves the stream to another server if it must.
    """

    def __init__(self, conversation: Conversation, inputs: _Inputs) -> None:
        self._conversation = conversation
        self._place = conversation.place
        self._inputs = inputs
        self._server: Any = None  # the client of the stream's server
        self._call: AsyncStream | None = None
        self._begun = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._results: asyncio.Queue[Result | BaseException | None] = asyncio.Queue()
        self._room = asyncio.Event()  # a result has come
        self._outgoing = asyncio.Event()  # there is something to send, or the inputs have ended
        self._exhausted = False
        self._closed = False

    def __aiter__(self) -> InferMany:
        return self

    async def __anext__(self) -> Result:
        if self._closed:
            raise StopAsyncIteration
        if not self._tasks:
            steps = [self._feed, self._send, self._receive]
            if self._conversation.has_limit:
                steps.append(self._watch)
            self._tasks = [asyncio.ensure_future(self._guarded(step)) for step in steps]
        result = await self._results.get()
        if isinstance(result, tuple):
            return result
        await self.aclose()
        if result is None:
            raise StopAsyncIteration
        raise result

    def cancel(self, index: int | None = None) -> None:
        """Cancels one request, or all in flight: their results are `Cancelled`.

        Inputs that are not drawn yet are still sent; `aclose` stops that.
        """
        self._conversation.cancel(index)
        self._outgoing.set()

    async def aclose(self) -> None:
        """Cancels the requests in flight and ends the iteration. Idempotent."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._call is not None:
            self._call.cancel()
        self._conversation.close()
        self._place.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> InferMany:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _guarded(self, step: Callable[[], Any]) -> None:
        """Passes the error that stops a task to the iterating task."""
        try:
            await step()
        except Exception as error:  # noqa: BLE001 - the user's own iterable may raise anything
            self._results.put_nowait(error)

    async def _feed(self) -> None:
        if isinstance(self._inputs, AsyncIterable):
            async for inputs in self._inputs:
                await self._submit(inputs)
        else:
            for inputs in self._inputs:
                await self._submit(inputs)
        self._exhausted = True
        self._outgoing.set()

    async def _submit(self, inputs: Mapping[str, Any]) -> None:
        while not self._conversation.has_room:
            self._room.clear()
            await self._room.wait()
        failed = self._conversation.submit(inputs)
        if failed is not None:
            self._results.put_nowait(failed)
        self._outgoing.set()
        if self._conversation.has_full_message:
            await asyncio.sleep(0)  # let it go out before the next is drawn

    async def _begin(self) -> None:
        """Begins a stream at the first server that takes one.

        Raises:
            Error: none does.
        """
        while True:
            self._server = self._place.take()
            try:
                self._call = await self._server.calls.stream()
                return
            except CallFailed as failure:
                broke: errors.Error = errors.from_call(failure, self._server.endpoint)
            except errors.FailedPrecondition as error:  # the server's client is closed
                broke = error
            await asyncio.sleep(self._place.pause_after(broke, closed=self._closed))

    async def _move(self, pause: float) -> None:
        """Begins a stream elsewhere, and sends there what is unanswered."""
        assert self._call is not None
        self._call.cancel()
        await asyncio.sleep(pause)
        await self._begin()
        for result in self._conversation.move():
            self._results.put_nowait(result)

    @property
    def _is_finished(self) -> bool:
        return self._exhausted and not self._conversation.unanswered

    async def _send(self) -> None:
        await self._begun.wait()
        while not self._is_finished:
            await self._outgoing.wait()
            self._outgoing.clear()
            call = self._call
            assert call is not None
            for message in self._conversation.all_messages():
                if not await call.send(message):
                    break  # the stream has ended; the receiver is told why
        assert self._call is not None
        self._call.end()
        await asyncio.sleep(SLACK_SECONDS)
        self._results.put_nowait(None)  # the server does not end the stream, but all have results

    async def _watch(self) -> None:
        """Ends the iteration if the server does not answer in time."""
        while (left := self._conversation.seconds_left) is None or left > 0:
            await asyncio.sleep(_LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS))
        raise errors.from_call(late(), self._server.endpoint)

    async def _receive(self) -> None:
        await self._begin()
        self._begun.set()
        while (data := await self._read()) is not None:
            for result in self._conversation.receive(data):
                self._results.put_nowait(result)
            self._place.heard()
            if self._conversation.must_move:
                await self._move(self._place.leave())
            self._room.set()
            self._outgoing.set()  # perhaps this was the last, or one is sent again
        self._results.put_nowait(self._conversation.ended())

    async def _read(self) -> Any:
        """The next message of results, from wherever the stream is. None at the end."""
        while True:
            assert self._call is not None
            try:
                return await self._call.read()
            except CallFailed as failure:
                if self._is_finished:  # there is nothing to end
                    return None
                error = errors.from_call(failure, self._server.endpoint)
            await self._move(self._place.pause_after(error, closed=self._closed))
            self._room.set()
            self._outgoing.set()
