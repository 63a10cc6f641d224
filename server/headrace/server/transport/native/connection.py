"""One connection: its socket, its calls, its share of the loop's time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from headrace.http2.calls import UNIMPLEMENTED, RequestHead, plain_block, trailers_block
from headrace.http2.connection import (
    CallOpened,
    Connection,
    DataSent,
    Event,
    GoneAway,
    MessageReceived,
    MessageRefused,
    Reset,
)
from headrace.http2.faults import ConnectionFault
from headrace.http2.frames import ErrorCode
from headrace.http2.messages import CompressedMessage
from headrace.http2.streams import Stream
from headrace.server.transport.native.call import NativeCall
from headrace.server.transport.shares import StreamMemory

if TYPE_CHECKING:
    from headrace.server.transport.native.connections import Connections

READ_BYTES: Final = 64 << 10
"""What one read brings at most, unless it goes on with a large message. With 16 KiB, requests of 32
KB cost a third more, because each comes in two reads."""
_AT_ONCE_SECONDS: Final = 0.005
"""How long one connection may keep the loop, before all others have their turn. One read may bring
hundreds of calls."""
_HIGH_BYTES: Final = 512 << 10
_CLOSE_SECONDS: Final = 10.0
_UNREAD_BYTES: Final = 64 << 10
"""What a connection's messages may take that wait to be read, beside the memory that all share."""
_LINE_BYTES: Final = 8 << 10
"""How long the first line of a request of HTTP/1 may be."""

_UNKNOWN: Final = trailers_block(UNIMPLEMENTED, "Method not found!")
_SENTENCE: Final = (
    "This port speaks gRPC over HTTP/2. Use a gRPC client here, or send REST requests to the HTTP "
    "port.\n"
)
_HTTP1: Final = (
    f"HTTP/1.1 415 Unsupported Media Type\r\ncontent-type: text/plain; charset=utf-8\r\n"
    f"content-length: {len(_SENTENCE)}\r\nconnection: close\r\n\r\n{_SENTENCE}"
).encode()


def _or_ends(step: Callable[[NativeConnection], None]) -> Callable[[NativeConnection], None]:
    """A step that is taken in a turn of the loop. A connection whose step fails, for example
    because memory has run out, ends: nothing else would go on with it."""

    @wraps(step)
    def taken(connection: NativeConnection) -> None:
        try:
            step(connection)
        except BaseException:
            connection.abort()
            raise

    return taken


class NativeConnection(asyncio.BufferedProtocol):
    """Reads and writes one socket. Belongs to the event loop's thread.

    Each read is parsed whole, its calls run, and all that they send leaves in one write. Calls that
    would keep the loop for too long run in its next turns, before anything more is read.

    Attributes:
        wire: the state of the protocol.
        peer: the other end, as `Call.peer` names it.
        since: when the connection was accepted, in seconds of the loop's clock.
        heard: when the last bytes came.
        pinged: whether the client was asked if it is still there, and has not answered.
        looks: how often the server has looked for that, or for the end of the handshake.
        has_credential: whether a call on it has shown a valid credential.
        memory: what the connection holds of the memory for messages that are coming.
    """

    def __init__(
        self, owner: Connections, peer: str, user: Callable[[], Awaitable[int | None]]
    ) -> None:
        self.loop = owner.loop
        self.peer = peer
        self.user = user
        self.memory = StreamMemory(owner.memory, peer)
        self.since = self.heard = self.loop.time()
        self.has_credential = False
        self.pinged = False
        self.looks = 0
        self._owner = owner
        self.wire = Connection(owner.bounds, self.since, self.memory)
        self._transport: Any = None
        self._unread = StreamMemory(owner.unread, peer)
        self._counted = 0  # how much of it is used
        self._unpacking = asyncio.Lock()
        self._flushing = False
        self._direct = False  # whether the next bytes go into a message
        self._is_first = True
        self._is_closing = False
        self._cut_off: asyncio.TimerHandle | None = None
        self._rests = False
        self._ready: deque[NativeCall] = deque()  # what has come for them has still to run

    def certificate(self) -> bytes | None:
        """The certificate that the client has shown."""
        secure = self._transport.get_extra_info("ssl_object")
        return secure.getpeercert(binary_form=True) if secure is not None else None

    async def unpack(self, message: CompressedMessage) -> bytes:
        """A compressed message, unpacked on another thread, one after the other. Connections take
        turns."""
        async with self._unpacking:
            return await self.loop.run_in_executor(self._owner.unpacker, message.unpack)

    # -- the socket --

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(_HIGH_BYTES)
        self._owner.entered(self)  # the client speaks first, since it may speak HTTP/1

    def connection_lost(self, _: Exception | None) -> None:
        self._owner.left(self)
        for stream in self.wire.close():
            call: NativeCall | None = stream.owner
            if call is not None:
                self._left(call)
        self._ready.clear()
        self.memory.free_all()
        self._unread.free_all()
        self._transport = None
        if self._cut_off is not None:  # it would keep this for seconds
            self._cut_off.cancel()

    def get_buffer(self, _: int) -> memoryview:
        space = self.wire.space()
        self._direct = space is not None
        return self._owner.buffer if space is None else space

    def buffer_updated(self, count: int) -> None:
        now = self.heard = self.loop.time()
        self.pinged = False
        if self._direct:
            events = self.wire.filled(count, now)
        else:
            data = self._owner.buffer[:count]
            if self._is_first and not self._begins_well(data):
                return
            events = self.wire.receive(data, now)
        if events:
            self._flushing = True  # below; a callback would cost a turn of the loop
            self._handle(events, now)
            self._flushing = False
            if self._counted:
                self._forget_read()
            if self.wire.unread > _UNREAD_BYTES:
                self._count_unread()
        self._flush()
        if self.loop.time() - now > _AT_ONCE_SECONDS and self._transport is not None:
            self._rest()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.wire.paused = True

    def resume_writing(self) -> None:
        self.wire.paused = False
        events: list[Event] = []
        self.wire.flush(events)
        self._handle(events, self.loop.time())
        self._flush()

    def _begins_well(self, data: memoryview) -> bool:
        """Answers a client that speaks HTTP/1."""
        self._is_first = False
        if b" HTTP/1." not in bytes(data[:_LINE_BYTES]).split(b"\n", 1)[0]:
            return True
        self._transport.write(_HTTP1)
        self._transport.close()
        return False

    def _rest(self) -> None:
        """Does not read before the loop's next turn."""
        if not self._rests:
            self._rests = True
            self._transport.pause_reading()
            self.loop.call_soon(self._go_on)

    @_or_ends
    def _go_on(self) -> None:
        self._rests = False
        if self._transport is None or self._transport.is_closing():
            return
        self._flushing = True
        self._run(self.loop.time())
        self._flushing = False
        self._flush()
        if not self._rests and self._transport is not None:
            self._transport.resume_reading()

    # -- calls --

    def _handle(self, events: list[Event], now: float) -> None:
        """Tells calls what has come.

        Calls begin last. By then new ones mostly have their message, so that they run to their end
        without a task. Those that were reset meanwhile do not run at all. One whose message has
        still to come begins when it has; until then it takes no slot.
        """
        new: list[NativeCall] = []
        whole: list[NativeCall] = []
        taking: list[NativeCall] = []
        for event in events:
            if isinstance(event, GoneAway):
                continue
            stream = event.stream
            if type(event) is CallOpened:
                if stream.is_open:
                    self._open(stream, event.head, now, new)
                continue
            owner: NativeCall | None = stream.owner
            if owner is None:
                continue
            if type(event) is Reset:
                self._left(owner)
            elif type(event) is DataSent:
                owner.sent()
            elif stream.is_open:  # it may have been reset meanwhile
                if type(event) is MessageReceived:
                    if owner.add(event.message):
                        taking.append(owner)
                elif type(event) is MessageRefused:
                    owner.refuse(event.code, event.why)
                else:
                    owner.end()
                if owner.waits:
                    owner.waits = False
                    whole.append(owner)
        ready = self._ready
        ready.extend(taking)
        for call in new:
            if not call.stream.is_open:
                continue
            if call.may_begin:
                ready.append(call)
            elif self._owner.coming.take(self.peer):
                call.waits = True
            else:
                self.wire.reset(call.stream, ErrorCode.REFUSED_STREAM)
        for call in whole:
            self._owner.coming.give_back(self.peer)
            ready.append(call)
        if not self._rests:
            self._run(now)

    def _run(self, since: float) -> None:
        """Runs what is ready, in order, until the connection has kept the loop for long enough."""
        ready = self._ready
        while ready:
            call = ready.popleft()
            if call.has_begun:
                call.hand_over()
            elif call.stream.is_open:
                call.begin(self._owner.context.copy())
            if ready and self.loop.time() - since > _AT_ONCE_SECONDS:
                self._rest()
                return

    def _left(self, call: NativeCall) -> None:
        """Tells a call that its stream is gone."""
        if call.waits:
            call.waits = False
            self._owner.coming.give_back(self.peer)
        call.leave()

    def _open(self, stream: Stream, head: RequestHead, now: float, new: list[NativeCall]) -> None:
        wire = self.wire
        if head.http is not None:
            status, why = head.http
            text = f"{why}\n".encode()
            wire.finish_plain(stream, plain_block(status, len(text)), text)
            return
        if head.refused is not None:
            wire.finish(stream, trailers_block(*head.refused))
            return
        bound = self._owner.methods.find(head.path)
        if bound is None:
            wire.finish(stream, _UNKNOWN)
            return
        deadline = None if head.timeout is None else now + head.timeout
        stream.owner = NativeCall(self, stream, head, bound, deadline)
        new.append(stream.owner)

    def _count_unread(self) -> None:
        """Takes room for the messages that calls have not read yet. While there is none, it resets
        the call with the most bytes to read, which gRPC's clients see as RESOURCE_EXHAUSTED."""
        wire = self.wire
        while (more := wire.unread - _UNREAD_BYTES - self._counted) > 0:
            if self._unread.use(more):
                self._counted += more
                return
            stream = max(wire.streams.values(), key=lambda each: each.unread)
            call: NativeCall | None = stream.owner
            wire.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)
            if call is not None:
                self._left(call)

    def _forget_read(self) -> None:
        """Gives the room of messages back that were read, or whose call is over."""
        spare = self._counted - max(self.wire.unread - _UNREAD_BYTES, 0)
        if spare > 0:
            self._counted -= spare
            self._unread.free(spare)

    def has_read(self, stream: Stream, size: int) -> None:
        """Notes that a message was taken by its reader."""
        self.wire.read(stream, size)
        if self._counted:
            self._forget_read()
        if self.wire.out:
            self.flush_soon()

    # -- what goes --

    def flush_soon(self) -> None:
        """Sends what waits, together with all that is added in this turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush_now)

    @_or_ends
    def _flush_now(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        wire, transport = self.wire, self._transport
        if transport is None:
            return
        while True:
            out = wire.take()
            if len(out) == 1:
                transport.write(out[0])
            elif out:
                transport.writelines(out)
            if not wire.has_more:
                break
            events: list[Event] = []
            wire.flush(events)
            if events:
                self._handle(events, self.loop.time())
        if wire.fault is not None and not self._is_closing:
            self._owner.broken(self, wire.fault)
            self._close()
        elif wire.has_gone and not wire.streams:
            self._close()

    # -- ends --

    def go_away(self) -> None:
        """Tells the client to open no more calls here."""
        self.wire.go_away()
        self._flush()

    def end(self, why: str) -> None:
        """Ends the connection and its calls at once."""
        streams = list(self.wire.streams.values())
        self.wire.fail(ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, why))
        for stream in streams:
            if stream.owner is not None:
                self._left(stream.owner)
        self._flush()

    def stop(self) -> None:
        """Cancels the calls that go on. The connection closes when they have their statuses."""
        self.wire.finish_going()
        for stream in list(self.wire.streams.values()):
            call: NativeCall | None = stream.owner
            if call is not None and call.waits:
                self.wire.reset(stream, ErrorCode.REFUSED_STREAM)
                self._left(call)
            elif call is not None:
                call.stop()
        self._flush()

    def _close(self) -> None:
        """Closes the socket when all has been sent. A client that does not read is cut off."""
        if self._transport is not None and not self._is_closing:
            self._is_closing = True
            self._transport.close()
            self._cut_off = self.loop.call_later(_CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        """Ends the connection without a word."""
        if self._transport is not None:
            self._transport.abort()

    def ping(self) -> None:
        """Asks whether the client is still there."""
        self.pinged, self.looks = True, 0
        self.wire.ping(b"headrace")
        self._flush()
