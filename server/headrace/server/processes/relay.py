"""The front end's side of calls: hands each to the engine, and gives the caller what comes back."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import grpc

from headrace.runtime.errors import Unauthenticated
from headrace.server.access.authenticator import Authenticator
from headrace.server.access.certificates import names_of_call
from headrace.server.access.entrance import authorization
from headrace.server.processes import frames, heads
from headrace.server.processes.frames import Broken, Frame
from headrace.server.processes.heads import Caller, Callers, Status
from headrace.server.processes.link import Link
from headrace.server.transport.front_end import one_reply
from headrace.server.transport.shares import Shares

_DETAILS: ContextVar[Any] = ContextVar("details")
"""What gRPC says of the call that this task handles."""

SHUTTING_DOWN = "the server is shutting down; use another one"

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_MOST_NUMBERS = 1 << 32


Coming: TypeAlias = "bytes | tuple[Status, bytes | None] | None"
"""A message, or the status and perhaps a message. None: the engine wants to read."""


class Row(NamedTuple):
    """One method of the engine's table.

    Attributes:
        streams: whether the method has a stream of replies.
        reads_one: whether the method takes one message.
    """

    path: str
    streams: bool
    reads_one: bool


class _Call:
    """A call that the engine handles.

    Attributes:
        room: the bytes of messages that the engine takes now.
        begun: whether the engine knows of the call.
        ended: whether the engine has sent its status.
        place: the peer whose place the call has taken to be read ahead, if it has.
    """

    __slots__ = ("_coming", "_waiter", "begun", "ended", "place", "room", "roomy", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._coming: deque[Coming] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.room = 0
        self.roomy: Callable[[], None] | None = None
        self.begun = self.ended = False
        self.place: str | None = None
        self.task = task

    def put(self, what: Coming) -> None:
        self._coming.append(what)
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def give_room(self, size: int) -> None:
        self.room += size
        if self.roomy is not None:
            self.roomy()
        else:
            self.put(None)

    async def next(self) -> Coming:
        """What the engine says next."""
        if not self._coming:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._coming.popleft()


class Relay(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds methods by their path, and relays their calls. Belongs to the event loop's thread.

    Args:
        table: the methods.
        authenticator: knows valid credentials; None if callers need none. The engine decides who
            may call what. The relay only reads no message of a stranger unless the engine asks for
            it, so that strangers cannot fill the memory.
        certificates: whether callers have certificates.
        met: called with the peer of each call with a valid credential.
        places: how many calls with one message are read without asking the engine first.
    """

    def __init__(
        self,
        link: Link,
        table: list[Row],
        authenticator: Authenticator | None,
        *,
        certificates: bool,
        met: Callable[[str], object],
        places: int,
    ) -> None:
        self._link = link
        self._authenticator = authenticator
        self._certificates = certificates
        self._met = met
        self._places = Shares(places)
        self._callers = Callers()
        self._numbers = 0
        self._open: dict[int, _Call] = {}
        self._handlers: Mapping[str, Any] = {
            row.path: self._handler(number, row) for number, row in enumerate(table)
        }
        self.stopping = False

    def service(self, details: Any) -> Any:
        """The handler of a call."""
        _DETAILS.set(details)
        return self._handlers.get(details.method)

    def take(self, frame: Frame) -> None:
        """Handles what the engine says of a call. Late frames are ignored."""
        call = self._open.get(frame.call)
        if frame.kind == frames.END:
            status = heads.parse_status(frame.body)
            message = self._link.message(frame, status.offset)
            if call is not None:
                call.ended = True
                call.put((status, message))
        elif frame.kind == frames.MESSAGE:
            message = self._link.message(frame)
            if call is not None and message is not None:
                call.put(message)
        elif frame.kind == frames.ROOM:
            if call is not None:
                call.give_room(frames.parse_number(frame.body))
        else:
            raise Broken(f"a frame of kind {frame.kind}")

    async def finish(self) -> None:
        """Takes no more calls. Returns when the callers have the statuses that have come."""
        self.stopping = True
        ended = [call.task for call in self._open.values() if call.ended]
        if ended:
            await asyncio.wait(ended)

    # -- calls --

    def _handler(self, number: int, row: Row) -> Any:
        if row.reads_one and not row.streams:
            return one_reply(partial(self._unary, number))
        if row.streams:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, number))
        return one_reply(partial(self._stream, number))

    async def _unary(self, method: int, _: Any, context: Any) -> bytes | None:
        await self._refuse_if_stopping(context)
        number, call = self._begin()
        caller, peer, eager = self._caller(context)
        message = None
        if eager and self._places.take(peer):
            call.place = peer
            message = await context.read()
        body = heads.begin(_deadline(context), method, caller)
        call.begun = True
        self._send(frames.BEGIN, number, body, message)
        coming = await call.next()
        while coming is None:  # the engine asks for the message
            self._send(frames.MESSAGE, number, b"", await context.read())
            coming = await call.next()
        assert not isinstance(coming, bytes)
        return await _end(context, *coming)

    def _send(self, kind: int, number: int, body: bytes, message: Any) -> None:
        """Sends a message, or that there is none. None: it has not been read."""
        if message is None:
            self._link.send(kind, number, body)
        elif message is grpc.aio.EOF:
            kind = kind if kind == frames.BEGIN else frames.END
            self._link.send(kind, number, body, frames.LAST)
        else:
            flags = frames.EAGER if kind == frames.BEGIN else 0
            self._link.send_message(kind, number, body, message, flags)

    async def _stream(self, method: int, _: Any, context: Any) -> bytes | None:
        await self._refuse_if_stopping(context)
        number, call = self._begin()
        reading = None
        try:
            caller, _, eager = self._caller(context)
            body = heads.begin(_deadline(context), method, caller)
            call.begun = True
            self._link.send(frames.BEGIN, number, body, frames.EAGER if eager else 0)
            call.room = frames.WINDOW_BYTES if eager else 0
            reading = asyncio.get_running_loop().create_task(self._read(number, call, context))
            while True:
                coming = await call.next()
                if isinstance(coming, bytes):
                    await context.write(coming)
                    self._link.send(frames.ROOM, number, frames.number(1))
                elif coming is not None:
                    return await _end(context, *coming)
        finally:
            if reading is not None:
                reading.cancel()

    async def _read(self, number: int, call: _Call, context: Any) -> None:
        """Reads the messages of a call while the engine has room for them."""
        changed = asyncio.Event()
        call.roomy = changed.set
        while True:
            while call.room <= 0:
                changed.clear()
                await changed.wait()
            try:
                message = await context.read()
            except Exception:  # noqa: BLE001 - the caller has gone, and gRPC cancels the call
                return
            self._send(frames.MESSAGE, number, b"", message)
            if message is grpc.aio.EOF:
                return
            call.room -= len(message) + frames.OVERHEAD

    async def _refuse_if_stopping(self, context: Any) -> None:
        if self.stopping:
            await context.abort(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)

    def _begin(self) -> tuple[int, _Call]:
        task = asyncio.current_task()
        assert task is not None
        number = self._numbers
        while number in self._open:  # a call that began four thousand million calls ago
            number = (number + 1) % _MOST_NUMBERS
        self._numbers = (number + 1) % _MOST_NUMBERS
        call = self._open[number] = _Call(task)
        # gRPC's task of a call ends when the caller has its status, or has left.
        task.add_done_callback(partial(self._leave, number, call))
        return number, call

    def _leave(self, number: int, call: _Call, _: asyncio.Task[Any]) -> None:
        del self._open[number]
        if call.place is not None:
            self._places.give_back(call.place)
        if call.begun:
            self._link.send(frames.DONE if call.ended else frames.CANCEL, number)

    def _caller(self, context: Any) -> tuple[bytes, str, bool]:
        """The caller as bytes, its peer, and whether its credential is valid."""
        peer = context.peer()
        metadata = _DETAILS.get().invocation_metadata
        certificate = ""
        if self._certificates:
            found = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
            certificate = found.decode("ascii", "replace")
        caller = self._callers.to_bytes(Caller(peer, tuple(metadata), certificate))
        eager = True
        if self._authenticator is not None:
            try:
                names = partial(names_of_call, context)
                self._authenticator.grant(authorization(metadata), names)
            except Unauthenticated:
                eager = False
            else:
                self._met(peer)
        return caller, peer, eager


async def _end(context: Any, status: Status, message: bytes | None) -> bytes | None:
    if status.code:
        try:
            await context.abort(_CODES[status.code], status.details, status.trailing)
        except grpc.aio.InternalError:
            # The call has just ended by itself. gRPC would cancel this task in a moment.
            raise asyncio.CancelledError from None
    if status.trailing:
        context.set_trailing_metadata(status.trailing)
    return message


def _deadline(context: Any) -> float | None:
    remaining = context.time_remaining()
    return None if remaining is None else time.monotonic() + remaining
