"""One connection of a client: the protocol, TLS, and the calls, without a way to wait."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from typing import Any, Final

import grpc

from headrace.client.channel import bounds
from headrace.client.channel.answers import Answer, StreamAnswer
from headrace.client.channel.channel import Buffer, CallFailed, Request, cancelled
from headrace.client.channel.cipher import Cipher
from headrace.http2.connection import Connection as Wire
from headrace.http2.events import (
    DataSent,
    Event,
    GoneAway,
    MessageReceived,
    MessageRefused,
    Reset,
    ResponseStarted,
    StreamEnded,
)
from headrace.http2.faults import ConnectionFault
from headrace.http2.limits import ConnectionLimits

NOW: Final = socket.MSG_DONTWAIT
"""The flag to receive what has come, and not to wait."""
_SEND: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_MOST_PARTS: Final = 512
_FIRST_BYTES: Final = 64
_GOODBYE: Final = "the server has said goodbye"


class ChannelConnection:
    """One connection. Not thread-safe; a subclass knows who owns it, and how to wait.

    Args:
        connected: a connected socket, which the connection owns.
        cipher: its TLS, after the handshake; None for plain text.

    Attributes:
        is_open: whether it takes new calls.
        lost: why it carries nothing any more.
        broke: the error of the socket or of TLS, if that is why.
        first: the server's first bytes, until it has greeted.
    """

    def __init__(
        self, connected: socket.socket, cipher: Cipher | None, limits: ConnectionLimits
    ) -> None:
        self.is_open = True
        self.lost: CallFailed | None = None
        self.broke: OSError | None = None
        self.first = b""
        self._socket = connected
        self._cipher = cipher
        self._wire = Wire(limits, time.monotonic(), client=True)
        self._buffer = memoryview(bytearray(bounds.READ_BYTES))
        self._line: deque[Answer[Any]] = deque()  # beyond the streams that the server allows
        self._unsent: deque[Buffer] = deque()
        self._used_at = bounds.clock()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_calls(self) -> bool:
        """Whether calls go on."""
        return bool(self._wire.streams or self._line)

    # -- calls --

    def _add(self, answer: Answer[Any]) -> None:
        """Opens a stream for a call, as soon as the server allows one more."""
        wire = self._wire
        if self._line or len(wire.streams) >= wire.peer_streams:
            self._line.append(answer)
        else:
            self._open(answer)

    def _open(self, answer: Answer[Any]) -> None:
        wire, request = self._wire, answer.request
        now = time.monotonic()
        try:
            if type(request) is bytes:
                stream = wire.call(answer.block, request, now)
            else:
                stream = wire.open(answer.block, now)
        except OverflowError:
            answer.refused("the connection has carried as many calls as it can")
            answer.told()
            self._retire()
            return
        stream.owner = answer
        answer.stream = stream
        if type(request) is bytes:
            return
        if isinstance(answer, StreamAnswer):
            for message in answer.early:
                self._message(answer, message)
            answer.early.clear()
            if answer.ends:
                wire.end(stream)
            if not stream.pending:  # no event will say so
                answer.sent()
        elif request is not None:
            self._message(answer, request, last=True)

    def _message(self, answer: Answer[Any], message: Request, *, last: bool = False) -> None:
        assert answer.stream is not None
        if isinstance(message, bytes | bytearray | memoryview):
            self._wire.send_message(answer.stream, message, last=last)
            return
        self._wire.send_parts(answer.stream, message)
        if last:
            self._wire.end(answer.stream)

    def _say(self, answer: StreamAnswer[Any], message: Request) -> None:
        """Sends a message of a stream, unless it is over."""
        if answer.is_over:
            return
        if answer.stream is None:
            answer.early.append(message)
        else:
            self._message(answer, message)

    def _finish(self, answer: StreamAnswer[Any]) -> None:
        """Says that a stream has no more messages."""
        if not answer.is_over:
            answer.ends = True
            if answer.stream is not None:
                self._wire.end(answer.stream)

    def _next_message(self, answer: StreamAnswer[Any]) -> object | None:
        """The next message of a stream that has come; None if none has. The server may send more
        then."""
        if not answer.messages:
            return None
        message = answer.messages.popleft()
        if answer.stream is not None:
            self._wire.read(answer.stream, len(message))
        return message

    def _give_up(self, answer: Answer[Any], failure: CallFailed) -> bool:
        """Ends a call from this side. Returns False if it has ended."""
        if answer.is_over:
            return False
        answer.fail(failure)
        if answer.stream is None:
            with contextlib.suppress(ValueError):
                self._line.remove(answer)
        elif answer.stream.is_open:
            self._wire.reset(answer.stream)
            self._open_next()
        answer.told()
        return True

    def _open_next(self) -> None:
        """Opens calls that stand in line. Ends the connection when it has none and takes none."""
        wire = self._wire
        while self._line and len(wire.streams) < wire.peer_streams and self.is_open:
            self._open(self._line.popleft())
        if not self.is_open and not wire.streams:
            self._lose(_GOODBYE)

    # -- what comes --

    def _target(self) -> tuple[memoryview, bool]:
        """Where bytes from the socket belong, and whether that is within a message."""
        space = self._wire.space() if self._cipher is None else None
        return (self._buffer, False) if space is None else (space, True)

    def _came(self, count: int, *, direct: bool) -> None:
        """Takes so many bytes that were received into `_target`."""
        now = time.monotonic()
        if not count:
            self._lose("the server has closed the connection")
        elif direct:
            self._handle(self._wire.filled(count, now))
        elif self._cipher is None:
            if self._wire.settled:
                self._handle(self._wire.receive(self._buffer[:count], now))
            else:
                self._take(self._buffer[:count], now)
        else:
            self._decrypt(self._cipher, self._buffer[:count], now)
        if self._wire.fault is not None:
            self._end(_broken(self._wire.fault))
        elif self._line:  # perhaps the server allows more streams now
            self._open_next()

    def _take(self, data: memoryview, now: float) -> None:
        if not self._wire.settled and len(self.first) < _FIRST_BYTES:
            self.first += bytes(data[:_FIRST_BYTES])
        self._handle(self._wire.receive(data, now))

    def _decrypt(self, cipher: Cipher, data: memoryview, now: float) -> None:
        wire = self._wire
        cipher.feed(data)
        try:
            while wire.fault is None:
                space = wire.space()
                target = self._buffer if space is None else space
                count = cipher.read_into(target)
                if not count:
                    return
                if space is None:
                    self._take(target[:count], now)
                else:
                    self._handle(wire.filled(count, now))
        except OSError as error:
            self._break(error)

    def _handle(self, events: list[Event]) -> None:
        """Tells calls what has come."""
        over = False
        event: Any  # mypy cannot tell it by its type's identity, the quickest way to ask
        answer: Any
        for event in events:
            kind = type(event)
            if kind is GoneAway:
                self._go(event)
                continue
            stream = event.stream
            answer = stream.owner
            if answer is None:
                continue
            if kind is DataSent:
                answer.sent()
                continue
            if answer.is_over:
                continue
            if kind is MessageReceived:
                if answer.received(event.message) and stream.is_open:
                    self._wire.read(stream, len(event.message))
            elif kind is StreamEnded:
                answer.ended(event.trailers)
            elif kind is ResponseStarted:
                answer.responded(event.head, alone=stream.remote_ended)
            else:
                self._broke_off(answer, event)
            if answer.is_over:
                over = True
                stream.owner = None  # each would keep the other, and the reply
                if stream.is_open:
                    self._wire.reset(stream)
                answer.told()
        if over and (self._line or not self.is_open):
            self._open_next()

    def _broke_off(self, answer: Answer[Any], event: Reset | MessageRefused) -> None:
        fault = self._wire.fault
        if isinstance(event, Reset) and fault is not None and event.why == str(fault):
            answer.fail(_broken(fault))
        else:
            answer.broke_off(event)

    # -- what goes --

    def _flush(self) -> bool:
        """Takes what is to be sent. Returns whether there is anything."""
        wire = self._wire
        while True:
            if self._cipher is not None:
                encrypted = self._cipher.encrypt(wire.take())
                if encrypted:
                    self._unsent.append(encrypted)
            elif wire.out:
                self._unsent += wire.take()
            if not wire.ready or not wire.has_more:
                return bool(self._unsent)
            events: list[Event] = []
            wire.flush(events)
            self._handle(events)

    def _send(self) -> None:
        """Sends of that what the socket takes.

        Raises:
            BlockingIOError: it takes nothing now.
            OSError: it takes nothing any more.
        """
        unsent = self._unsent
        if len(unsent) == 1:
            count = self._socket.send(unsent[0], _SEND)
            if count == len(unsent[0]):
                unsent.clear()
                return
        else:
            parts = [unsent[at] for at in range(min(len(unsent), _MOST_PARTS))]
            count = self._socket.sendmsg(parts, (), _SEND)
        while count:
            first = unsent[0]
            if len(first) > count:
                unsent[0] = memoryview(first)[count:]
                return
            count -= len(first)
            unsent.popleft()
        while unsent and not len(unsent[0]):
            unsent.popleft()

    def _unblock(self) -> None:
        """The socket takes bytes again."""
        self._wire.paused = False
        events: list[Event] = []
        self._wire.flush(events)
        self._handle(events)

    def greet_now(self) -> bool:
        """Sends and receives what can be at once, before the connection has calls. Returns whether
        there is nothing to wait for: the server has greeted, or the connection is lost."""
        try:
            if self._flush():
                self._send()
            target, direct = self._target()
            self._came(self._socket.recv_into(target, 0, NOW), direct=direct)
            if self._flush():
                self._send()
        except BlockingIOError:
            pass
        except OSError as error:
            self._break(error)
        return self._wire.settled or self.lost is not None

    # -- the end --

    def _retire(self) -> None:
        """Takes no more calls. Those that go on have their time."""
        self.is_open = False
        self._open_next()

    def _go(self, event: GoneAway) -> None:
        """The server takes no new calls. Those that it will not begin are told."""
        self.is_open = False
        for stream in list(self._wire.streams.values()):
            if stream.id > event.last and stream.owner is not None:
                self._wire.reset(stream)
                stream.owner.refused(_GOODBYE)
                stream.owner.told()
        self._refuse_line(_GOODBYE)
        self._open_next()

    def _refuse_line(self, why: str) -> None:
        line, self._line = self._line, deque()
        for answer in line:
            answer.refused(why)
            answer.told()

    def _break(self, error: OSError) -> None:
        """Ends the connection because the socket or TLS did."""
        self.broke = error
        self._lose(f"the connection broke: {error.strerror or error}")

    def _lose(self, why: str) -> None:
        """Ends the connection and its calls."""
        self._end(CallFailed(grpc.StatusCode.UNAVAILABLE, why))

    def _end(self, failure: CallFailed) -> None:
        if self.lost is not None:
            return
        self.is_open = False
        self.lost = failure
        for stream in list(self._wire.streams.values()):
            # A proxy may go on with a call of whose end only the connection's tells.
            self._wire.reset(stream)
            if stream.owner is not None and not stream.owner.is_over:
                stream.owner.fail(failure)
                stream.owner.told()
        self._refuse_line(failure.message)
        self._tell_end()
        with contextlib.suppress(OSError):  # a thread may be reading, and another one writing
            self._socket.shutdown(socket.SHUT_RD)
        self._ended()

    def _tell_end(self) -> None:
        """Tells the server which calls end, and why, if that can be done at once."""
        with contextlib.suppress(OSError):
            if self._flush():
                self._send()

    def _ended(self) -> None:
        """Closes the socket when nobody uses it any more."""
        self._socket.close()

    def abandon(self) -> None:
        """Leaves the connection to the process that this one was forked from. Takes no lock."""
        self.is_open = False
        self.lost = cancelled()
        for stream in list(self._wire.streams.values()):
            if stream.owner is not None:
                stream.owner.fail(self.lost)
        self._socket.close()


def _broken(fault: ConnectionFault) -> CallFailed:
    """The failure of calls on a connection whose server broke the protocol."""
    return CallFailed(grpc.StatusCode.UNAVAILABLE, f"the server broke HTTP/2: {fault}")
