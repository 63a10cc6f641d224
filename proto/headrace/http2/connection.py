"""The state machine of one end of a connection (RFC 9113)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.http2 import frames, limits
from headrace.http2.blocks import BlockDecoder, ListTooLarge
from headrace.http2.calls import RESPONSE, RequestHead, ResponseHead, Trailers, trailers_block
from headrace.http2.faults import ConnectionFault, StreamFault
from headrace.http2.frames import ErrorCode, Setting
from headrace.http2.limits import Endless, Limits, Patience, Room
from headrace.http2.messages import (
    BadMessage,
    Message,
    MessageReader,
    TooLarge,
    prefix,
)
from headrace.http2.streams import Buffer, Stream

RESOURCE_EXHAUSTED: Final = 8
INTERNAL: Final = 13

_TINY_BYTES: Final = 64
_WORTH_BYTES: Final = 1024
_DIRECT_BYTES: Final = 64 << 10
_TURN_BYTES: Final = 256 << 10
_RESETS_REMEMBERED: Final = 512
_LARGE_SETTINGS: Final = 64 * 6
_JOINED_BYTES: Final = 16 << 10
_LAST: Final = 2**31 - 1
_DRAIN_PING: Final = b"draining"
_FIXED: Final = {
    frames.PRIORITY: 5,
    frames.RST_STREAM: 4,
    frames.PING: 8,
    frames.WINDOW_UPDATE: 4,
}
_unpack: Final = frames.HEAD.unpack_from
_new: Final = tuple.__new__  # makes a NamedTuple without a call of Python code
_OK: Final = trailers_block(0)


class Opened(NamedTuple):
    """A call begins (at a server)."""

    stream: Stream
    head: RequestHead


class Responded(NamedTuple):
    """A response begins (at a client)."""

    stream: Stream
    head: ResponseHead


class Received(NamedTuple):
    """A message has come. Its reader calls `Connection.read` when it has taken it."""

    stream: Stream
    message: Message


class Refused(NamedTuple):
    """A message is not read, and nothing after it: too large, broken, or without room.

    Attributes:
        code: the number of gRPC's status for it.
    """

    stream: Stream
    code: int
    why: str


class Ended(NamedTuple):
    """The peer sends nothing more on the stream. A server's last words are its trailers."""

    stream: Stream
    trailers: Trailers | None


class Reset(NamedTuple):
    """The stream is over: the peer reset it, or broke the protocol on it."""

    stream: Stream
    code: int
    why: str


class Sent(NamedTuple):
    """Nothing of the stream's data is held back any more."""

    stream: Stream


class GoneAway(NamedTuple):
    """The peer takes no new streams. What it did not process begins above `last`."""

    last: int
    code: int
    why: str


Event: TypeAlias = "Opened | Responded | Received | Refused | Ended | Reset | Sent | GoneAway"


class Connection:
    """One end of a connection, without its socket. Not thread-safe.

    `receive` takes bytes and returns what they mean. `take` returns the bytes to be sent.

    Args:
        now: the time, in seconds of any clock that `receive` gets, too.
        room: takes messages that have begun to come.
        client: whether this is the client's end.

    Attributes:
        streams: those that are open, by their numbers.
        last_stream: the number of the latest stream of the peer.
        fault: why the connection is over. None while it goes on.
        is_acknowledged: whether the peer has agreed to this end's settings.
        paused: whether nothing may be sent but frames that answer others. The owner sets it.
        going: whether this end takes no new streams.
    """

    def __init__(
        self,
        bounds: Limits,
        now: float,
        room: Room | None = None,
        *,
        client: bool = False,
    ) -> None:
        self.streams: dict[int, Stream] = {}
        self.last_stream = 0
        self.fault: ConnectionFault | None = None
        self.is_acknowledged = False
        self.paused = False
        self.going = False
        self.out: list[Buffer] = []
        self._bounds = bounds
        self._room: Room = room or Endless()
        self._client = client
        self._patience = Patience(now)
        self._decoder = BlockDecoder(bounds.header_bytes)
        self._rest = b""
        self._greeted = client  # whether the client's preface has come
        self._settled = False  # whether the peer's SETTINGS have come
        self._next = 1
        self._refuse_above = _LAST
        # Header blocks that continue.
        self._block: bytearray | None = None
        self._block_stream = 0
        self._block_ends = False
        # A DATA frame that has begun to come.
        self._data_left = 0
        self._pad_left = 0
        self._data_stream: Stream | None = None
        self._data_ends = False
        # Flow control.
        self._send_window = frames.DEFAULT_WINDOW
        self._receive_window = frames.DEFAULT_WINDOW
        self._owed = 0
        self._unread = 0
        self._peer_window = frames.DEFAULT_WINDOW
        self.peer_frame_bytes = frames.MIN_FRAME_BYTES
        self.peer_streams = _LAST
        self._blocked: dict[int, Stream] = {}
        self._begun: list[Stream] = []
        self._resets: deque[int] = deque(maxlen=_RESETS_REMEMBERED)
        self._greet()

    def _greet(self) -> None:
        bounds = self._bounds
        values = {
            Setting.MAX_CONCURRENT_STREAMS: bounds.streams,
            Setting.INITIAL_WINDOW_SIZE: bounds.window_bytes,
            Setting.MAX_FRAME_SIZE: bounds.frame_bytes,
            Setting.MAX_HEADER_LIST_SIZE: bounds.header_bytes,
        }
        if self._client:
            self.out.append(frames.PREFACE)
            values[Setting.ENABLE_PUSH] = 0
            del values[Setting.MAX_CONCURRENT_STREAMS]
        self.out.append(frames.settings(values))
        more = bounds.connection_bytes - self._receive_window
        if more > 0:
            self.out.append(frames.window_update(0, more))
            self._receive_window += more

    # -- what comes --

    def receive(self, data: memoryview | bytes, now: float) -> list[Event]:
        """Takes bytes from the peer.

        After a fault, the peer is told in what `take` returns, and the connection has to be closed.
        """
        events: list[Event] = []
        if self.fault is not None:
            return events
        try:
            self._parse(memoryview(data), now, events)
            if self._begun:
                self._make_room(events)
            if self._owed >= self._bounds.connection_bytes // 2:
                self._grant()
        except ConnectionFault as fault:
            self.fail(fault)
        return events

    def space(self) -> memoryview | None:
        """Where the next bytes from the peer belong, if that is a message's own memory.

        Then `filled` takes the place of `receive`.
        """
        stream = self._data_stream
        if self._data_left < _DIRECT_BYTES or stream is None or stream.reader is None:
            return None
        reader = stream.reader
        if not reader.missing:
            return None
        return reader.space()[: self._data_left]

    def filled(self, count: int, now: float) -> list[Event]:
        """Takes bytes that were written into `space`."""
        events: list[Event] = []
        stream = self._data_stream
        assert stream is not None
        assert stream.reader is not None
        self._data_left -= count
        messages: list[Message] = []
        try:
            stream.reader.filled(count, messages)
        except (TooLarge, BadMessage) as error:
            self._refuse(stream, error, events)
        self._received(stream, count, messages, events)
        if not self._data_left and not self._pad_left and self._data_ends:
            self._ended(stream, None, events, now)
        if self._owed >= self._bounds.connection_bytes // 2:
            self._grant()
        return events

    def _parse(self, data: memoryview, now: float, events: list[Event]) -> None:
        if self._rest:
            data = memoryview(self._rest + bytes(data))
            self._rest = b""
        position, end = 0, len(data)
        if not self._greeted:
            position = self._read_preface(data)
            if not position:
                self._rest = bytes(data)
                return
        while True:
            if self._data_left or self._pad_left:
                position = self._read_data(data, position, now, events)
                if self._data_left or self._pad_left:
                    break
            if end - position < frames.HEAD_BYTES:
                break
            high, low, kind, flags, number = _unpack(data, position)
            length, number = high << 8 | low, number & _LAST
            self._check(kind, flags, number, length)
            start = position + frames.HEAD_BYTES
            if kind == frames.DATA or kind > frames.CONTINUATION:
                begun = self._begin_data(data[start:], kind, flags, number, length, now, events)
                if begun is None:
                    break
                position = start + begun
                continue
            if end - start < length:
                break
            position = start + length
            self._frame(kind, flags, number, data[start:position], now, events)
        self._rest = bytes(data[position:])

    def _read_preface(self, data: memoryview) -> int:
        """The length of the preface; 0 if more of it has to come.

        Raises:
            ConnectionFault: the client does not speak HTTP/2.
        """
        start = bytes(data[: len(frames.PREFACE)])
        if not frames.PREFACE.startswith(start):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no preface of HTTP/2")
        self._greeted = len(start) == len(frames.PREFACE)
        return len(start) if self._greeted else 0

    def _check(self, kind: int, flags: int, number: int, length: int) -> None:
        """Checks a frame's head, before any of its payload is kept.

        Raises:
            ConnectionFault: such a frame may not come here.
        """
        if not self._settled and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame has to be SETTINGS")
        if length > self._bounds.frame_bytes:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame is larger than allowed")
        if self._block is not None and (
            kind != frames.CONTINUATION or number != self._block_stream
        ):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        if kind in (frames.HEADERS, frames.CONTINUATION):
            so_far = 0 if self._block is None else len(self._block)
            if so_far + length > 4 * self._bounds.header_bytes:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")
        elif _FIXED.get(kind, length) != length:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame has a wrong size")
        elif kind == frames.SETTINGS and length > _LARGE_SETTINGS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many settings in a frame")
        elif kind == frames.GOAWAY and length > frames.MIN_FRAME_BYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a GOAWAY frame is too large")

    # -- data --

    def _begin_data(
        self,
        data: memoryview,
        kind: int,
        flags: int,
        number: int,
        length: int,
        now: float,
        events: list[Event],
    ) -> int | None:
        """Begins a frame whose payload is read as it comes.

        Returns:
            How many bytes of the payload have been read; None if the first has to come.
        """
        if kind != frames.DATA:  # unknown frames are ignored (RFC 9113, 5.5)
            self._patience.spend(limits.SMALL_COST, now, "frames of unknown types")
            self._data_stream, self._data_left, self._pad_left = None, length, 0
            self._data_ends = False
            return 0
        if not number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA without a stream")
        padding = taken = 0
        if flags & frames.PADDED:
            if not length:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no length of the padding")
            if not len(data):
                return None
            padding, taken = data[0], 1
            if padding >= length:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
        if length > self._receive_window:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
        self._receive_window -= length
        ends = bool(flags & frames.END_STREAM)
        if length < _TINY_BYTES and not ends:
            self._patience.spend(limits.SMALL_COST, now, "tiny DATA frames")
        stream = self._stream_for_data(number, length, now, events)
        self._data_stream, self._data_ends = stream, ends
        self._data_left, self._pad_left = length - taken - padding, padding
        self._owed += taken
        if stream is not None and length:
            stream.receive_window -= length
            if stream.length >= 0:
                stream.received += self._data_left
        if not self._data_left and not self._pad_left and stream is not None and ends:
            self._ended(stream, None, events, now)
        return taken

    def _stream_for_data(
        self, number: int, length: int, now: float, events: list[Event]
    ) -> Stream | None:
        """The stream that takes the data. None if nobody wants them."""
        stream = self.streams.get(number)
        if stream is None:
            if self._is_idle(number):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on a stream never opened")
            if number not in self._resets:
                self._patience.spend(limits.RESET_COST, now, "frames on closed streams")
                self.out.append(frames.rst_stream(number, ErrorCode.STREAM_CLOSED))
            return None
        try:
            if stream.remote_ended:
                raise StreamFault(ErrorCode.STREAM_CLOSED, "data after the end of the stream")
            if self._client and not stream.has_head:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "data before the response")
            if length > stream.receive_window:
                raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
        except StreamFault as fault:
            self._end_faulty(stream, fault, now, events)
            return None
        return stream

    def _read_data(self, data: memoryview, position: int, now: float, events: list[Event]) -> int:
        """Reads what has come of a DATA frame, and returns the position after that."""
        there = len(data) - position
        if not there:
            return position
        stream = self._data_stream
        count = min(self._data_left, there)
        if count:
            self._data_left -= count
            messages: list[Message] = []
            if stream is not None and stream.reader is not None:
                try:
                    stream.reader.feed(data[position : position + count], messages)
                except (TooLarge, BadMessage) as error:
                    self._refuse(stream, error, events)
            self._received(stream, count, messages, events)
        padding = min(self._pad_left, there - count)
        self._pad_left -= padding
        self._owed += padding
        if (
            self._data_ends
            and stream is not None
            and not self._data_left
            and not self._pad_left
            and stream.id in self.streams
        ):
            self._ended(stream, None, events, now)
        return position + count + padding

    def _received(
        self,
        stream: Stream | None,
        count: int,
        messages: list[Message],
        events: list[Event],
    ) -> None:
        """Counts data that have come, with the messages that are whole by that."""
        self._owed += count
        if stream is None or stream.reader is None:
            return
        for message in messages:
            if stream.held:
                self._room.free(stream.held)
                stream.held = 0
            size = len(message)
            stream.unread += size
            self._unread += size
            self._patience.earn(limits.CALL_GAIN)
            events.append(_new(Received, (stream, message)))
        if stream.reader.missing and not stream.held:
            self._begun.append(stream)

    def _make_room(self, events: list[Event]) -> None:
        """Takes the memory for messages of which only a part came with the last bytes."""
        for stream in self._begun:
            reader = stream.reader
            if reader is None or not reader.missing or stream.held or stream.local_ended:
                continue
            size = reader.whole_bytes
            if not self._room.use(size):
                why = "the server has no room for the message beside others that are coming"
                self._refuse(stream, _NoRoom(why), events)
                continue
            stream.held = size
            self._open_window(stream, reader.missing)
        self._begun.clear()

    def _refuse(self, stream: Stream, error: Exception, events: list[Event]) -> None:
        stream.reader = None
        self._forget_message(stream)
        if isinstance(error, TooLarge):
            most = self._bounds.message_bytes
            why = f"a message of {error.size} bytes is larger than {most} bytes"
            events.append(Refused(stream, RESOURCE_EXHAUSTED, why))
        else:
            code = RESOURCE_EXHAUSTED if isinstance(error, _NoRoom) else INTERNAL
            events.append(Refused(stream, code, str(error)))

    def _forget_message(self, stream: Stream) -> None:
        if stream.held:
            self._room.free(stream.held)
            stream.held = 0

    def read(self, stream: Stream, size: int) -> None:
        """Says that a message of `size` bytes has been taken by its reader."""
        if stream.unread >= size:
            stream.unread -= size
            self._unread -= size
        bounds = self._bounds
        if not stream.remote_ended and stream.receive_window < bounds.window_bytes // 2:
            self._open_window(stream, bounds.window_bytes)
        if self._owed >= bounds.connection_bytes // 2:
            self._grant()

    def _open_window(self, stream: Stream, size: int) -> None:
        """Lets the peer send `size` bytes on the stream, if it has not ended."""
        more = size - stream.receive_window
        if more > 0 and not stream.remote_ended and stream.id in self.streams:
            stream.receive_window += more
            self.out.append(frames.window_update(stream.id, more))

    def _grant(self) -> None:
        """Gives the connection's window back, unless too many messages wait for their readers."""
        if self._unread <= self._bounds.connection_bytes:
            self.out.append(frames.window_update(0, self._owed))
            self._receive_window += self._owed
            self._owed = 0

    # -- other frames --

    def _frame(
        self,
        kind: int,
        flags: int,
        number: int,
        payload: memoryview,
        now: float,
        events: list[Event],
    ) -> None:
        if kind == frames.HEADERS:
            self._headers(flags, number, payload, now, events)
        elif kind == frames.WINDOW_UPDATE:
            self._patience.spend(limits.SMALL_COST, now, "WINDOW_UPDATE frames")
            self._window_update(number, payload, now, events)
        elif kind == frames.PING:
            if number:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
            self._patience.spend(limits.PING_COST, now, "PING frames")
            if not flags & frames.ACK:
                self.out.append(frames.frame(frames.PING, frames.ACK, 0, bytes(payload)))
            elif bytes(payload) == _DRAIN_PING and self.going:
                self.finish_going()
        elif kind == frames.RST_STREAM:
            self._rst_stream(number, payload, now, events)
        elif kind == frames.SETTINGS:
            self._patience.spend(limits.SETTINGS_COST, now, "SETTINGS frames")
            self._settings(flags, number, payload, events)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, payload, now, events)
        elif kind == frames.PRIORITY:
            self._patience.spend(limits.SMALL_COST, now, "PRIORITY frames")
            self._priority(number, payload, now, events)
        elif kind == frames.GOAWAY:
            if number:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
            if len(payload) < 8:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY frame is too short")
            last, code = (frames.NUMBER.unpack_from(payload, at)[0] for at in (0, 4))
            why = bytes(payload[8:264]).decode("utf-8", "replace")
            events.append(GoneAway(last & _LAST, code, why))
        else:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE is not expected")

    def _headers(
        self, flags: int, number: int, payload: memoryview, now: float, events: list[Event]
    ) -> None:
        if not number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS without a stream")
        start, end = 0, len(payload)
        if flags & frames.PADDED:
            if not end:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no length of the padding")
            start, end = 1, end - payload[0]
        depends: int | None = None
        if flags & frames.HAS_PRIORITY:
            if end - start < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no room for a priority")
            depends = frames.NUMBER.unpack_from(payload, start)[0] & _LAST
            start += 5
        if end < start:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
        ends = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._block_of(number, bytes(payload[start:end]), ends, depends, now, events)
            return
        self._block, self._block_stream = bytearray(payload[start:end]), number
        self._block_ends = ends

    def _continuation(
        self, flags: int, payload: memoryview, now: float, events: list[Event]
    ) -> None:
        if self._block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        if not payload:
            self._patience.spend(limits.SETTINGS_COST, now, "empty CONTINUATION frames")
        self._patience.spend(limits.SMALL_COST, now, "CONTINUATION frames")
        self._block += payload
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            self._block_of(self._block_stream, block, self._block_ends, None, now, events)

    def _block_of(
        self,
        number: int,
        block: bytes,
        ends: bool,
        depends: int | None,
        now: float,
        events: list[Event],
    ) -> None:
        """Reads a whole header block. It is decoded in any case, since later ones build on it."""
        stream = self.streams.get(number)
        if stream is None:
            if not self._client and number > self.last_stream:
                self._open(number, block, ends, depends, now, events)
            elif number in self._resets or (self._client and not self._is_idle(number)):
                self._decode(block, _Ignored, now)
            elif self._client or number & 1 == 0:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on a wrong stream")
            else:
                raise ConnectionFault(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")
            return
        try:
            if depends == number:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
            if stream.remote_ended:
                self._decode(block, _Ignored, now)
                raise StreamFault(ErrorCode.STREAM_CLOSED, "HEADERS after the end of the stream")
            if self._client and not stream.has_head:
                self._respond(stream, block, ends, now, events)
                return
            trailers = self._decode(block, Trailers, now)
            if not ends:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "trailers do not end the stream")
            self._ended(stream, trailers, events, now)
        except StreamFault as fault:
            self._end_faulty(stream, fault, now, events)

    def _open(
        self,
        number: int,
        block: bytes,
        ends: bool,
        depends: int | None,
        now: float,
        events: list[Event],
    ) -> None:
        """Opens a stream of the client."""
        if number & 1 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client's streams have odd numbers")
        self.last_stream = number
        try:
            head = self._decode(block, RequestHead, now)
            if depends == number:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
            if number > self._refuse_above:
                return  # the peer has been told that this stream will not be processed
            if len(self.streams) >= self._bounds.streams:
                raise StreamFault(ErrorCode.REFUSED_STREAM, "too many streams")
            if head.length >= 0 and ends and head.length:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "less data than content-length says")
        except ListTooLarge as fault:
            self._patience.spend(limits.RESET_COST, now, "large header lists")
            final = RESPONSE + trailers_block(RESOURCE_EXHAUSTED, str(fault))
            self.out.append(frames.header_frames(number, final, len(final), end=True))
            if not ends:
                self._reset(number, ErrorCode.NO_ERROR)
            return
        except StreamFault as fault:
            self._patience.spend(limits.RESET_COST, now, "streams that cannot be opened")
            self._reset(number, fault.code)
            return
        stream = Stream(number, self._peer_window, self._bounds.window_bytes)
        stream.has_head = True
        stream.length = head.length
        if head.http is None and head.refused is None:
            stream.reader = MessageReader(self._bounds.message_bytes, head.encoding)
        self.streams[number] = stream
        events.append(_new(Opened, (stream, head)))
        if ends:
            self._ended(stream, None, events, now)

    def _respond(
        self, stream: Stream, block: bytes, ends: bool, now: float, events: list[Event]
    ) -> None:
        """Reads the beginning of a response."""
        head = self._decode(block, ResponseHead, now)
        if head.status < 200:
            if ends or head.status == 101:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "an interim response that is none")
            self._patience.spend(limits.SETTINGS_COST, now, "interim responses")
            return
        stream.has_head = True
        stream.length = head.length
        if head.is_grpc and head.status == 200:
            stream.reader = MessageReader(self._bounds.message_bytes, head.encoding)
        events.append(Responded(stream, head))
        if ends:
            self._ended(stream, Trailers(head.fields), events, now)

    def _decode(self, block: bytes, meaning: type[Any], now: float) -> Any:
        decoder = self._decoder
        try:
            return decoder.decode(block, meaning)
        finally:
            if decoder.fields:
                cost = limits.DECODE_COST * (1 + decoder.fields / 8)
                self._patience.spend(cost, now, "header blocks that are new each time")

    def _window_update(
        self, number: int, payload: memoryview, now: float, events: list[Event]
    ) -> None:
        more = frames.NUMBER.unpack(payload)[0] & _LAST
        if not number:
            if not more:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a window grows by nothing")
            self._send_window += more
            if self._send_window > frames.MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
        else:
            stream = self.streams.get(number)
            if stream is None:
                if self._is_idle(number):
                    raise ConnectionFault(
                        ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on a stream never opened"
                    )
                return
            stream.send_window += more
            if not more or stream.send_window > frames.MAX_WINDOW:
                code = ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR
                why = "a window is too large" if more else "a window grows by nothing"
                self._end_faulty(stream, StreamFault(code, why), now, events)
                return
        if self._blocked:
            self.flush(events)

    def _rst_stream(
        self, number: int, payload: memoryview, now: float, events: list[Event]
    ) -> None:
        if self._is_idle(number):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on a stream never opened")
        stream = self.streams.get(number)
        self._patience.spend(
            limits.SMALL_COST if stream is None else limits.RESET_COST, now, "resets"
        )
        if stream is not None:
            self._close(stream)
            code = frames.NUMBER.unpack(payload)[0]
            events.append(Reset(stream, code, "the peer reset the stream"))

    def _settings(self, flags: int, number: int, payload: memoryview, events: list[Event]) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an agreement with settings")
            self.is_acknowledged = True
            return
        if len(payload) % frames.ONE_SETTING.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a setting is cut short")
        for name, value in frames.ONE_SETTING.iter_unpack(payload):
            self._set(name, value)
        self._settled = True
        self.out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        if self._blocked:
            self.flush(events)

    def _set(self, name: int, value: int) -> None:
        if name == Setting.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
            change = value - self._peer_window
            self._peer_window = value
            for stream in self.streams.values():
                stream.send_window += change
                if stream.send_window > frames.MAX_WINDOW:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
        elif name == Setting.MAX_FRAME_SIZE:
            if not frames.MIN_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no size for a frame")
            self.peer_frame_bytes = value
        elif name == Setting.MAX_CONCURRENT_STREAMS:
            self.peer_streams = value
        elif name == Setting.ENABLE_PUSH and (value > 1 or (self._client and value)):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is wrong")

    def _priority(self, number: int, payload: memoryview, now: float, events: list[Event]) -> None:
        if not number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
        if frames.NUMBER.unpack_from(payload)[0] & _LAST != number:
            return
        stream = self.streams.get(number)
        fault = StreamFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
        if stream is not None:
            self._end_faulty(stream, fault, now, events)
        elif self._is_idle(number):
            raise ConnectionFault(fault.code, str(fault))

    def _is_idle(self, number: int) -> bool:
        """Whether the stream has never been opened."""
        mine = number & 1 == (1 if self._client else 0)
        if mine:
            return not self._client or number >= self._next
        return number > self.last_stream

    # -- the ends of streams --

    def _ended(
        self, stream: Stream, trailers: Trailers | None, events: list[Event], now: float
    ) -> None:
        """The peer has said that nothing follows."""
        # A response without data, to HEAD for example, may announce some.
        announced = stream.length >= 0 and (stream.received or not self._client)
        if announced and stream.received != stream.length:
            fault = StreamFault(ErrorCode.PROTOCOL_ERROR, "content-length is another")
            self._end_faulty(stream, fault, now, events)
            return
        stream.remote_ended = True
        if stream.reader is not None and stream.reader.has_begun:
            self._refuse(stream, BadMessage("the stream ends within a message"), events)
        events.append(_new(Ended, (stream, trailers)))
        if stream.local_ended:
            self._close(stream)

    def _end_faulty(
        self, stream: Stream, fault: StreamFault, now: float, events: list[Event]
    ) -> None:
        """Resets a stream whose peer broke the protocol."""
        self._close(stream)
        self._reset(stream.id, fault.code)
        events.append(Reset(stream, fault.code, str(fault)))
        self._patience.spend(limits.RESET_COST, now, "faults of streams")

    def _reset(self, number: int, code: int) -> None:
        self._resets.append(number)
        self.out.append(frames.rst_stream(number, code))

    def _close(self, stream: Stream) -> None:
        """Forgets a stream."""
        self.streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        self._forget_message(stream)
        stream.reader = None
        stream.pending.clear()
        stream.pending_bytes = 0
        self._unread -= stream.unread
        stream.unread = 0
        if self._data_stream is stream:
            self._data_stream = None

    # -- what goes --

    def take(self) -> list[Buffer]:
        """The bytes to be sent now, in order. Small ones are joined."""
        out, self.out = self.out, []
        if len(out) < 2:
            return out
        joined: list[Buffer] = []
        small: list[Buffer] = []
        for each in out:
            if len(each) <= _JOINED_BYTES:
                small.append(each)
                continue
            if small:
                joined.append(b"".join(small))
                small = []
            joined.append(each)
        if small:
            joined.append(b"".join(small))
        return joined

    def open(self, block: bytes, now: float) -> Stream:
        """Opens a stream (at a client), by the block of a call."""
        del now
        number = self._next
        self._next += 2
        stream = Stream(number, self._peer_window, self._bounds.window_bytes)
        self.streams[number] = stream
        self.out.append(frames.header_frames(number, block, self.peer_frame_bytes, end=False))
        return stream

    def send_head(self, stream: Stream, block: bytes = RESPONSE) -> None:
        """Sends the beginning of a response."""
        self.out.append(frames.header_frames(stream.id, block, self.peer_frame_bytes, end=False))
        stream.answered = True

    def send_message(self, stream: Stream, message: Buffer, *, last: bool = False) -> bool:
        """Sends a message, as far as the windows allow.

        Args:
            last: whether nothing follows (at a client).

        Returns:
            Whether all of it goes out at once. Otherwise `Sent` comes when it has.
        """
        size = len(message)
        whole = size + 5
        if (
            not stream.pending
            and not self.paused
            and whole <= self._send_window
            and whole <= stream.send_window
            and whole <= self.peer_frame_bytes
        ):
            self._send_window -= whole
            stream.send_window -= whole
            flags = frames.END_STREAM if last else 0
            start = frames.head(whole, frames.DATA, flags, stream.id) + prefix(size)
            if size <= _JOINED_BYTES:
                self.out.append(start + message)
            else:
                self.out.append(start)
                self.out.append(message)
            if last:
                self._local_end(stream)
            return True
        stream.pending.append(prefix(size))
        if size:
            stream.pending.append(message)
        stream.pending_bytes += whole
        stream.ends = stream.ends or last
        self._blocked[stream.id] = stream
        if not self.paused:
            self._send_pending(stream)
        return not stream.pending

    def end(self, stream: Stream) -> None:
        """Says that nothing follows (at a client)."""
        if stream.pending:
            stream.ends = True
            return
        self.out.append(frames.head(0, frames.DATA, frames.END_STREAM, stream.id))
        self._local_end(stream)

    def finish(self, stream: Stream, block: bytes = _OK) -> bool:
        """Ends a response by its trailers, after its data.

        Returns:
            Whether that goes out at once. Otherwise `Sent` comes when it has.
        """
        if stream.id not in self.streams:
            return True
        if stream.pending:
            stream.final = block
            return False
        self._finish(stream, block)
        return True

    def _finish(self, stream: Stream, block: bytes) -> None:
        number = stream.id
        if not stream.answered:
            block = RESPONSE + block
        self.out.append(frames.header_frames(number, block, self.peer_frame_bytes, end=True))
        self._patience.earn(limits.CALL_GAIN)
        self._local_end(stream)

    def finish_plain(self, stream: Stream, block: bytes, text: bytes) -> None:
        """Ends a stream by a whole response that is not gRPC's. Its text is short."""
        number = stream.id
        fits = len(text) <= min(self._send_window, stream.send_window)
        end = not text or not fits
        self.out.append(frames.header_frames(number, block, self.peer_frame_bytes, end=end))
        if not end:
            self._send_window -= len(text)
            self.out.append(frames.frame(frames.DATA, frames.END_STREAM, number, text))
        self._local_end(stream)

    def _local_end(self, stream: Stream) -> None:
        stream.local_ended = True
        if stream.remote_ended:
            self._close(stream)
        elif not self._client:  # the client shall not send what nobody reads
            self._close(stream)
            self._reset(stream.id, ErrorCode.NO_ERROR)

    def reset(self, stream: Stream, code: int = ErrorCode.CANCEL) -> None:
        """Ends a stream at once."""
        if self.streams.get(stream.id) is stream:
            self._close(stream)
            self._reset(stream.id, code)

    def flush(self, events: list[Event]) -> None:
        """Sends what was held back, some of each stream in turn, as far as the windows allow."""
        if self.paused:
            return
        sent = 0
        for stream in list(self._blocked.values()):
            if self._send_window <= 0 or sent >= _TURN_BYTES * 4:
                return
            if stream.send_window > 0 or not stream.pending:
                # To the end of the line, so that all have their turn.
                del self._blocked[stream.id]
                self._blocked[stream.id] = stream
                sent += self._send_pending(stream)
                if not stream.pending:
                    events.append(Sent(stream))

    @property
    def has_more(self) -> bool:
        """Whether data are held back that `flush` would send."""
        return (
            not self.paused
            and self._send_window > 0
            and any(each.send_window > 0 for each in self._blocked.values())
        )

    def _send_pending(self, stream: Stream) -> int:
        """Sends a stream's data that were held back, up to some size."""
        sent = 0
        pending, out = stream.pending, self.out
        while pending and sent < _TURN_BYTES:
            size = min(
                self.peer_frame_bytes,
                self._send_window,
                stream.send_window,
                stream.pending_bytes,
            )
            if size <= 0:
                return sent
            parts: list[Buffer] = []
            left = size
            while left:
                part = pending[0]
                if len(part) <= left:
                    parts.append(pending.popleft())
                    left -= len(part)
                else:
                    view = memoryview(part)
                    parts.append(view[:left])
                    pending[0] = view[left:]
                    left = 0
            stream.pending_bytes -= size
            stream.send_window -= size
            self._send_window -= size
            sent += size
            ends = stream.ends and not pending
            flags = frames.END_STREAM if ends else 0
            out.append(frames.head(size, frames.DATA, flags, stream.id))
            out.extend(parts)
            if size >= _WORTH_BYTES:
                self._patience.earn(limits.SMALL_COST * 2)
            if ends:
                self._local_end(stream)
        if not pending:
            self._blocked.pop(stream.id, None)
            if stream.final is not None and stream.id in self.streams:
                self._finish(stream, stream.final)
        return sent

    def ping(self, payload: bytes) -> None:
        """Sends a PING of eight bytes."""
        self.out.append(frames.frame(frames.PING, 0, 0, payload))

    def go_away(self) -> None:
        """Tells the peer to open no more streams here, and goes on with those that come meanwhile.

        When the peer has read that, or when `finish_going` is called, later streams are not
        processed, and the peer knows it (RFC 9113, 6.8).
        """
        if not self.going and self.fault is None:
            self.going = True
            self.out.append(frames.goaway(_LAST, ErrorCode.NO_ERROR))
            self.ping(_DRAIN_PING)

    def finish_going(self) -> None:
        """Tells the peer which stream is the last that is processed."""
        if self._refuse_above == _LAST and self.fault is None:
            self._refuse_above = self.last_stream
            self.out.append(frames.goaway(self.last_stream, ErrorCode.NO_ERROR))

    def fail(self, fault: ConnectionFault) -> None:
        """Ends the connection. Its streams are forgotten."""
        if self.fault is None:
            self.fault = fault
            self.out.append(frames.goaway(self.last_stream, fault.code, str(fault)))
            self.close()

    def close(self) -> Sequence[Stream]:
        """Forgets all streams, and returns those that were open."""
        streams = list(self.streams.values())
        for stream in streams:
            self._close(stream)
        return streams


class _NoRoom(Exception):
    """There is no memory for a message."""


class _Ignored:
    """What a block means on a stream that is over."""

    def __init__(self, _: object) -> None:
        pass
