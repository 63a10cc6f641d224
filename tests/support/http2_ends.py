"""Ends of HTTP/2 connections without sockets: raw frames go in, frames and events come out."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from hpack.hpack import encode_integer

from headrace.http2.calls import plain_block
from headrace.http2.connection import CallOpened, Connection, Event, MessageReceived, StreamEnded
from headrace.http2.limits import ConnectionLimits, Room
from headrace.http2.messages import CompressedMessage
from headrace.http2.streams import Stream

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
ACK = END_STREAM = 1
END_HEADERS, PADDED, HAS_PRIORITY = 4, 8, 32
LAST_HEADERS = END_STREAM | END_HEADERS
CODES = {
    name: number
    for number, name in enumerate(
        (
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
        )
    )
}
PLAIN = b"this port speaks gRPC"
CALL = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/package.Service/Method"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


class Frame(NamedTuple):
    """A frame, taken apart."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> str:
        """The error code of RST_STREAM or GOAWAY."""
        at = 0 if self.kind == RST_STREAM else 4
        (number,) = struct.unpack_from(">I", self.payload, at)
        return next(name for name, each in CODES.items() if each == number)


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """A frame's bytes."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def frames_of(data: bytes) -> Iterator[Frame]:
    """The frames in what one end has sent, all of which are whole."""
    data = data.removeprefix(PREFACE)
    while data:
        length = int.from_bytes(data[:3], "big")
        kind, flags, stream = struct.unpack_from(">BBI", data, 3)
        assert len(data) >= 9 + length
        yield Frame(kind, flags, stream, data[9 : 9 + length])
        data = data[9 + length :]


def settings(*values: tuple[int, int]) -> bytes:
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", *each) for each in values))


def number(value: int) -> bytes:
    return struct.pack(">I", value)


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, number(more))


def reset(stream: int, code: str = "CANCEL") -> bytes:
    return frame(RST_STREAM, 0, stream, number(CODES[code]))


def field(name: bytes, value: bytes) -> bytes:
    """A field that is written out and changes no table."""
    length = encode_integer(len(value), 7)
    return b"\0" + encode_integer(len(name), 7) + name + length + value


def block(*fields: tuple[bytes, bytes]) -> bytes:
    return b"".join(field(*each) for each in fields)


def headers(
    stream: int,
    *more: tuple[bytes, bytes],
    flags: int = LAST_HEADERS,
    call: tuple[tuple[bytes, bytes], ...] = CALL,
) -> bytes:
    """HEADERS of a call, with more fields."""
    return frame(HEADERS, flags, stream, block(*call, *more))


def message(data: bytes = b"", flags: int = 0) -> bytes:
    """A message of gRPC."""
    return struct.pack(">BI", flags, len(data)) + data


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(DATA, flags, stream, payload)


class Memory:
    """Room that counts what is taken."""

    def __init__(self, most: int = 1 << 40) -> None:
        self.most = most
        self.used = 0

    def use(self, size: int) -> bool:
        if self.used + size > self.most:
            return False
        self.used += size
        return True

    def free(self, size: int) -> None:
        self.used -= size
        assert self.used >= 0


class End:
    """One end under test, whose peer is the test.

    Attributes:
        wire: the connection.
        room: its memory for messages.
        now: its time. Tests set it.
    """

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        *,
        room: Room | None = None,
        client: bool = False,
    ) -> None:
        self.now = 0.0
        self.room = room or Memory()
        self.wire = Connection(limits or ConnectionLimits(), self.now, self.room, client=client)

    def read(self, *data: bytes) -> list[Event]:
        """Lets it read bytes."""
        return self.wire.receive(b"".join(data), self.now)

    def sent(self) -> list[Frame]:
        """The frames that it has sent since the last call."""
        return list(frames_of(b"".join(map(bytes, self.wire.take()))))

    def sent_of(self, kind: int) -> list[Frame]:
        return [each for each in self.sent() if each.kind == kind]

    @property
    def fault(self) -> str | None:
        """The error code for which the connection is over."""
        return self.wire.fault.code.name if self.wire.fault is not None else None


class Server(End):
    """A server's end that has met its client."""

    def __init__(self, limits: ConnectionLimits | None = None, *, room: Room | None = None) -> None:
        super().__init__(limits, room=room)
        self.read(PREFACE, settings())
        self.sent()

    def open(self, stream: int = 1, *more: tuple[bytes, bytes], end: bool = False) -> Stream:
        """Lets the client open a stream."""
        flags = LAST_HEADERS if end else END_HEADERS
        (opened,) = of(CallOpened, self.read(headers(stream, *more, flags=flags)))
        assert isinstance(opened, CallOpened)
        return opened.stream

    def serve(self, *data: bytes) -> list[Event]:
        """Reads bytes, and answers each call that ends: by an empty message, or a sentence."""
        events = self.read(*data)
        for event in events:
            if isinstance(event, CallOpened):
                event.stream.owner = event.head
            elif isinstance(event, StreamEnded) and event.stream.owner is not None:
                if event.stream.owner.http is None:
                    self.wire.answer(event.stream, b"")
                else:
                    self.wire.finish_plain(event.stream, plain_block(415, len(PLAIN)), PLAIN)
        return events


class Client(End):
    """A client's end that has met its server."""

    def __init__(self, limits: ConnectionLimits | None = None, *, room: Room | None = None) -> None:
        super().__init__(limits, room=room, client=True)
        self.read(settings())
        self.sent()


def of(kind: type[Any], events: list[Event]) -> list[Any]:
    """The events of a kind."""
    return [each for each in events if isinstance(each, kind)]


def messages(events: list[Event]) -> list[bytes]:
    """The messages that have come."""
    return [plain(each) for each in of(MessageReceived, events)]


def plain(event: MessageReceived) -> bytes:
    """A message that is not compressed."""
    assert not isinstance(event.message, CompressedMessage)
    return bytes(event.message)
