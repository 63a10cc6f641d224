"""One call on a connection of our own."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from headrace.http2.calls import RequestHead, trailers_block
from headrace.http2.messages import BadMessage, CompressedMessage, Message, TooLarge
from headrace.http2.streams import Stream
from headrace.runtime.errors import HeadraceError, InvalidArgument, ResourceExhausted
from headrace.server.begun import Remainder, cancel_soon
from headrace.server.transport.call import BoundMethod, CallOver, Metadata, Reply, Take

if TYPE_CHECKING:
    from headrace.server.transport.native.connection import NativeConnection

_log = logging.getLogger(__name__)

_UNPACKED_HERE_BYTES: Final = 1024
"""A compressed message of at most this size becomes at most a thousand times as large, which takes
some milliseconds. Larger ones are unpacked on another thread."""

_DEADLINE_EXCEEDED: Final = trailers_block(4, "Deadline Exceeded")
_STOPPED: Final = trailers_block(14, "the server has stopped")
_OK: Final = trailers_block(0)
_BUG: Final = trailers_block(13, "internal error; the server's log explains it")


class Aborted(Exception):
    """Ends a handler whose call got its status."""


@dataclass(slots=True, eq=False, repr=False)
class NativeCall:
    """Implements `Call`. Belongs to the event loop's thread.

    Its handler runs at once, in the callback that read the last of its message. It gets a task only
    if it has to wait.

    Attributes:
        stream, head: the call's stream, and how the call began.
        deadline: the time of the event loop's clock at which it ends; None for no end.
        waits: whether it has not begun, because its message has still to come.
        has_begun: whether its handler was started.
    """

    _connection: NativeConnection
    stream: Stream
    head: RequestHead
    _bound: BoundMethod
    deadline: float | None
    waits: bool = False
    has_begun: bool = False
    _messages: deque[Message] = field(default_factory=deque)
    _ended: bool = False  # the caller sends no more
    _left: bool = False  # the stream is gone
    _expired: bool = False
    _is_over: bool = False
    _has_head: bool = False
    _fault: HeadraceError | None = None
    _trailing: Metadata = ()
    _unpacked_bytes: int = 0  # of the last message that was compressed
    _callbacks: list[Callable[[], object]] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _reader: asyncio.Future[Any] | None = None
    _take: Take | None = None  # takes what comes while the task waits for it
    _context: Context = field(init=False)
    _writer: asyncio.Future[None] | None = None

    # -- what the methods see --

    @property
    def method(self) -> str:
        return self.head.path

    def peer(self) -> str:
        return self._connection.peer

    def invocation_metadata(self) -> Metadata:
        return self.head.metadata

    def certificate(self) -> bytes | None:
        return self._connection.certificate()

    def time_remaining(self) -> float | None:
        deadline = self.deadline
        if deadline is None:
            return None
        return max(deadline - self._connection.loop.time(), 0.0)

    async def user(self) -> int | None:
        return await self._connection.user()

    def show_credential(self) -> None:
        self._connection.has_credential = True

    async def read(self) -> bytes | None:
        while not self._messages:
            if self._fault is not None:
                raise self._fault
            if self._ended or self._left:
                return None
            self._reader = self._connection.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message = self._messages.popleft()
        self._connection.has_read(self.stream, len(message))
        if type(message) is CompressedMessage:
            return await self._unpacked(message)
        return message  # type: ignore[return-value] # a view serves as well

    async def deliver(self, take: Take) -> None:
        messages = self._messages
        while True:
            rest: Awaitable[object] | None
            if messages and type(messages[0]) is not CompressedMessage:
                rest = take(self._come())
            elif messages or self._ended or self._left or self._fault is not None:
                message = await self.read()
                if message is None:
                    return
                rest = take(iter((message,)))
            else:
                self._take = take
                self._reader = self._connection.loop.create_future()
                try:
                    rest = await self._reader
                finally:
                    self._reader = self._take = None
            if rest is not None:
                await rest

    def _come(self) -> Iterator[bytes]:
        """The messages that have come. The caller may send as much again as is taken from it."""
        messages, connection, stream = self._messages, self._connection, self.stream
        while messages and type(messages[0]) is not CompressedMessage:
            message = messages.popleft()
            connection.has_read(stream, len(message))
            yield message  # type: ignore[misc] # a view serves as well

    async def _unpacked(self, message: CompressedMessage) -> bytes:
        """A message that was compressed. It has its room until the next one is read: by then a
        stream has counted its requests."""
        self._free_unpacked()
        try:
            if len(message) <= _UNPACKED_HERE_BYTES:
                return message.unpack()
            unpacked = await self._connection.unpack(message)
        except TooLarge:
            raise ResourceExhausted("a compressed message is larger than allowed") from None
        except BadMessage as error:
            raise InvalidArgument(str(error)) from None
        size = len(unpacked)
        if not self._connection.memory.use(size):
            raise ResourceExhausted(
                f"the server has no room for a message of {size} bytes beside others; "
                "try again later"
            )
        self._unpacked_bytes = size
        return unpacked

    def _free_unpacked(self) -> None:
        size, self._unpacked_bytes = self._unpacked_bytes, 0
        if size:
            self._connection.memory.free(size)

    async def write(self, message: bytes) -> None:
        if self._left or self._is_over:
            raise CallOver
        connection = self._connection
        if not self._has_head:
            self._has_head = True
            connection.wire.send_head(self.stream)
        sent = connection.wire.send_message(self.stream, message)
        connection.flush_soon()
        while not sent and not self._left:
            self._writer = connection.loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None
            sent = not self.stream.pending
        if self._left:
            raise CallOver

    def try_write(self, message: bytes) -> bool:
        if self._left or self._is_over:
            raise CallOver
        connection, stream = self._connection, self.stream
        if not self._has_head:
            self._has_head = True
            connection.wire.send_head(stream)
        sent = connection.wire.send_message(stream, message, whole=True)
        connection.flush_soon()
        return sent

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._trailing = metadata

    async def abort(self, code: grpc.StatusCode, message: str, metadata: Metadata) -> NoReturn:
        self._finish(trailers_block(code.value[0], message, metadata))
        raise Aborted

    def cancel(self) -> None:
        if self._task is not None:
            cancel_soon(self._task)

    def when_over(self, callback: Callable[[], object]) -> None:
        self._callbacks.append(callback)

    # -- what its connection says --

    @property
    def may_begin(self) -> bool:
        """Whether its handler has something to do: a message to read, or a credential to check.
        That of a stream always has."""
        bound = self._bound
        return bool(
            self._messages
            or self._ended
            or self._fault is not None
            or not bound.is_unary
            or bound.begins_early
        )

    def add(self, message: Message) -> bool:
        """Takes a message from the caller. Returns whether `hand_over` has to be called, when all
        that was read has been added."""
        self._messages.append(message)
        if self._take is not None and type(message) is not CompressedMessage:
            return True
        if self._reader is not None:
            self._wake(self._reader)
        return False

    def hand_over(self) -> None:
        """Has the messages taken that have come, by a handler that waits for them."""
        take, reader = self._take, self._reader
        if take is None or reader is None or reader.done() or not self._messages:
            return
        try:
            rest = self._context.run(take, self._come())
        except Exception as error:  # noqa: BLE001 - the handler's
            if not reader.done():
                reader.set_exception(error)
            reader = None  # the error keeps this frame, which would keep the future with the error
            return
        if (rest is not None or self._messages) and not reader.done():
            reader.set_result(rest)

    def end(self) -> None:
        """Notes that the caller sends no more."""
        self._ended = True
        if self._reader is not None:
            self._wake(self._reader)

    def refuse(self, code: int, why: str) -> None:
        """Notes that what the caller sends cannot be read."""
        known = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        self._fault = ResourceExhausted(why) if code == known else InvalidArgument(why)
        self._wake(self._reader)

    def sent(self) -> None:
        """Notes that nothing is held back any more."""
        self._wake(self._writer)
        if self.stream.local_ended:
            self._over()

    def leave(self) -> None:
        """Notes that the stream is gone: the caller has reset it, or the connection is lost."""
        self._left = True
        self._messages.clear()
        if self._task is not None:
            self.cancel()
        else:  # no handler waits
            self._over()

    def stop(self) -> None:
        """Ends the call, because the server has stopped."""
        if not self._left:
            self.cancel()

    def begin(self, context: Context) -> None:
        """Starts the handler, in a context of its own. That of a call with one message and one
        reply runs here until it has to wait."""
        self.has_begun = True
        work: Any = self._bound.handle(self)
        self._context = context
        if self._bound.is_unary:
            try:
                waiting = context.run(work.send, None)
            except StopIteration as done:
                self._reply(done.value)
                return
            except BaseException as error:  # noqa: BLE001 - `_failed` tells them apart
                self._failed(error)
                return
            work = Remainder(work, waiting)
        loop = self._connection.loop
        if self.deadline is not None:
            self._timer = loop.call_at(self.deadline, self._expire)
        self._task = loop.create_task(self._run(work), context=context)

    async def _run(self, work: Any) -> None:
        try:
            reply = await work
        except BaseException as error:  # noqa: BLE001 - as above
            self._failed(error)
        else:
            self._reply(reply)
        finally:
            self._task = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._left:
                self._over()

    def _expire(self) -> None:
        self._timer = None
        self._expired = True
        self.cancel()

    def _reply(self, reply: Reply | None) -> None:
        if self._left:
            return
        wire, stream = self._connection.wire, self.stream
        trailers = trailers_block(0, "", self._trailing) if self._trailing else _OK
        if type(reply) is list:
            if wire.fits(stream, sum(map(len, reply))):
                wire.send_head(stream)
                wire.send_parts(stream, reply)
                self._finish(trailers)
                return
            # It waits for its reader, and must not keep memory that a backend could use again.
            reply = b"".join(reply)
        if reply is None:
            self._finish(trailers)
            return
        done = wire.answer(stream, reply, trailers)  # type: ignore[arg-type] # bytes
        self._connection.flush_soon()
        if done:
            self._over()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, Aborted):
            return
        if isinstance(error, asyncio.CancelledError):
            self._finish(_DEADLINE_EXCEEDED if self._expired else _STOPPED)
            return
        if isinstance(error, CallOver):
            return
        _log.error("the handler of %s failed", self.method, exc_info=error)
        self._finish(_BUG)

    def _finish(self, block: bytes) -> None:
        """Sends the status. A call gets one."""
        if self._left or self.stream.local_ended or self.stream.final is not None:
            return
        done = self._connection.wire.finish(self.stream, block)
        self._connection.flush_soon()
        if done:
            self._over()

    def _over(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self.stream.owner = None  # otherwise both would wait for the collector of garbage
        self._free_unpacked()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    @staticmethod
    def _wake(waiting: asyncio.Future[None] | None) -> None:
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
