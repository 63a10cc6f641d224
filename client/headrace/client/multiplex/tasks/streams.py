"""The shared streams of the asyncio client. All of it belongs to one event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from headrace.client.multiplex.choice import Choice, Step
from headrace.client.multiplex.gathering import MAX_REQUEST_BYTES, Gathering, Item
from headrace.client.multiplex.outcome import Closed, Expired, Failure, Lost, Outcome
from headrace.wire.codec import CodecError
from headrace.wire.stream import parse_infer_stream_reply

Metadata: TypeAlias = tuple[tuple[str, str], ...]
_MAX_TIMER_SECONDS: Final = 86400.0
"""How far ahead a timer is set: event loops do not take every number."""


class Streams:
    """The shared streams of one client: one at a time, and those that end.

    Args:
        start: gRPC's callable of InferStream.
        metadata: gives the metadata of a call. A stream is used while they stay the same.
    """

    def __init__(
        self,
        start: Callable[..., Any],
        metadata: Callable[[], Metadata],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._metadata = metadata
        self._stream: Stream | None = None
        self._all: set[Stream] = set()
        self._closed = False
        self.clock = clock
        self.choice = Choice()

    def submit(self, item: Awaited) -> bool:
        """Sends a request over the stream. Returns False if it needs a call of its own."""
        timeout = item.timeout_seconds
        if len(item.data) > MAX_REQUEST_BYTES or item.trace is None or timeout == 0:
            return False
        metadata, stream = self._metadata(), self._stream
        if stream is not None and stream.metadata != metadata:
            self._stream = None
            stream.retire()
            self.choice.replaced(self.clock(), stream.gathering.carried)
        step = Step.UNARY if self._closed else self.choice.step(self.clock())
        stream = self._stream
        if step is Step.STREAM and stream is not None:
            return stream.add(item)
        if step is Step.GIVE_UP and stream is not None:
            self._stream = None
            stream.cancel()
        elif step is Step.OPEN:
            self._stream = Stream(self, metadata, self._start(metadata=metadata))
            self._all.add(self._stream)
        return False

    def is_current(self, stream: Stream) -> bool:
        return stream is self._stream

    def ended(self, stream: Stream) -> None:
        """A stream has ended."""
        self._all.discard(stream)
        if stream is self._stream:
            self._stream = None
            self.choice.ended(self.clock())

    def close(self) -> None:
        """Ends the streams; requests in flight are cancelled. Idempotent."""
        self._closed = True
        for stream in list(self._all):
            stream.end(Closed())
            stream.cancel()


class Stream:
    """One stream: a task reads results, and while there is something to send, another one writes
    messages. What waits when a message has been written shares the next one."""

    def __init__(self, owner: Streams, metadata: Metadata, call: Any) -> None:
        self.metadata = metadata
        self.gathering: Gathering[Awaited] = Gathering()
        self._owner = owner
        self._call = call
        self._retired = False
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf  # when the timer looks for requests whose time is up
        self._writer: asyncio.Task[None] | None = None
        self._reader = asyncio.ensure_future(self._read())
        self._wake()

    def add(self, item: Awaited) -> bool:
        """Takes a request if there is room."""
        if self._ended or self._retired or not self.gathering.takes(item.data):
            return False
        self.gathering.add(item)
        item.stream = self
        if item.timeout_seconds is not None:
            item.deadline = self._owner.clock() + item.timeout_seconds
            self._watch(item.deadline)
        self._wake()
        return True

    def give_up(self, item: Awaited, *, late: bool = False) -> bool:
        """Waits for a request no longer. Returns False if it has been settled.

        Args:
            late: its time is up. The server is then asked whether it still answers.
        """
        if not self.gathering.give_up(item):
            return False
        owner = self._owner
        if late and owner.is_current(self) and owner.choice.doubted(owner.clock()):
            self.gathering.ask()
        self._wake()
        return True

    def retire(self) -> None:
        """Ends the stream when all its requests have ended."""
        self._retired = True
        self._wake()

    def cancel(self) -> None:
        self._call.cancel()

    def end(self, outcome: Outcome) -> None:
        """Settles all requests with this outcome. Idempotent."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._owner.ended(self)
        for item in self.gathering.end():
            item.settle(outcome)

    def _watch(self, deadline: float) -> None:
        """Makes sure that the timer looks at this time. All requests share it, because one for each
        would be set and cancelled with each."""
        if deadline >= self._looks_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = deadline
        seconds = min(deadline - self._owner.clock(), _MAX_TIMER_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        """Ends requests whose time is up."""
        self._looks_at, now = math.inf, self._owner.clock()
        for item in self.gathering.in_flight:
            if item.deadline is not None and item.deadline <= now and self.give_up(item, late=True):
                item.settle(Expired())
        left = [each.deadline for each in self.gathering.in_flight if each.deadline is not None]
        if left:
            self._watch(min(left))

    def _wake(self) -> None:
        if self._writer is None and not self._ended:
            self._writer = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        clock = self._owner.clock
        try:
            while (message := self.gathering.next_message(clock())) is not None:
                await self._call.write(message)
            if self._retired and self.gathering.is_idle:
                await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the stream has ended; the reader is told why
        finally:
            self._writer = None

    async def _read(self) -> None:
        status: Failure | None = None
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:
                self._received(data)
            status = await self._status()
        except grpc.aio.AioRpcError as error:
            trailing = tuple(error.trailing_metadata() or ())
            status = Failure(error.code(), error.details() or "", trailing)
        except CodecError:
            self._call.cancel()
        finally:
            self.end(Lost(status))

    async def _status(self) -> Failure:
        trailing = tuple(await self._call.trailing_metadata() or ())
        return Failure(await self._call.code(), await self._call.details() or "", trailing)

    def _received(self, data: bytes) -> None:
        reply = parse_infer_stream_reply(data)
        settled = self.gathering.receive(reply, self._owner.clock())
        if reply.limits is not None and self._owner.is_current(self):
            self._owner.choice.answered()
        if self._retired or self.gathering.waiting:
            self._wake()
        for item, result in settled:
            item.settle(result)


class Awaited(Item):
    """A request that a task waits for."""

    __slots__ = ("outcome", "stream")

    def __init__(
        self,
        data: bytes,
        timeout_seconds: float | None = None,
        trace: Mapping[str, str] | None = None,
        *,
        once: bool = False,
    ) -> None:
        super().__init__(data, timeout_seconds, trace, once=once)
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.stream: Stream | None = None

    def settle(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def give_up(self) -> None:
        """Tells the server that nobody waits any more."""
        if self.stream is not None:
            self.stream.give_up(self)
