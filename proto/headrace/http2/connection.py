"""The state machine of one end of a connection (RFC 9113)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

from headrace.http2 import frames, limits
from headrace.http2.blocks import BlockDecoder, ListTooLarge
from headrace.http2.calls import RESPONSE, RequestHead, ResponseHead, Trailers, trailers_block
from headrace.http2.events import (
    CallOpened,
    DataSent,
    Event,
    GoneAway,
    MessageReceived,
    MessageRefused,
    Reset,
    ResponseStarted,
    StreamEnded,
)
from headrace.http2.faults import ConnectionFault, StreamFault
from headrace.http2.frames import ErrorCode, Setting
from headrace.http2.limits import ConnectionLimits, Endless, Room
from headrace.http2.messages import Message
from headrace.http2.receiving import RESOURCE_EXHAUSTED, Receiving
from headrace.http2.sending import MAX_STREAM
from headrace.http2.streams import Stream

__all__ = [
    "CallOpened",
    "Connection",
    "DataSent",
    "Event",
    "GoneAway",
    "MessageReceived",
    "MessageRefused",
    "Reset",
    "ResponseStarted",
    "StreamEnded",
]

_LARGE_SETTINGS: Final = 64 * 6
_UNSENT_BYTES: Final = 1 << 20
_UNSENT_PIECES: Final = 10_000
_DRAIN_PING: Final = b"draining"
_BLOCK_FLAGS: Final = frames.PADDED | frames.HAS_PRIORITY | frames.END_HEADERS
_FIXED: Final = {
    frames.PRIORITY: 5,
    frames.RST_STREAM: 4,
    frames.PING: 8,
    frames.WINDOW_UPDATE: 4,
}
_unpack: Final = frames.HEAD.unpack_from
_new: Final = tuple.__new__  # makes a NamedTuple without a call of Python code


class Connection(Receiving):
    """One end of a connection, without its socket. Not thread-safe.

    `receive` takes bytes and returns what they mean. `take` returns the bytes to be sent.

    Args:
        now: the time, in seconds of any clock that `receive` gets, too.
        room: takes messages that have begun to come.
        client: whether this is the client's end.

    Attributes:
        fault: why the connection is over. None while it goes on.
        is_acknowledged: whether the peer has agreed to this end's settings.
        going: whether this end takes no new streams.
        settled: whether the peer's SETTINGS have come.
    """

    __slots__ = (
        "_block",
        "_block_ends",
        "_block_stream",
        "_decode_cost",
        "_decoder",
        "_greeted",
        "_is_plain",
        "_most_block",
        "_need",
        "_plain_bytes",
        "_rest",
        "_skip_left",
        "_widened",
        "_window_change",
        "fault",
        "going",
        "is_acknowledged",
        "settled",
    )

    def __init__(
        self,
        bounds: ConnectionLimits,
        now: float,
        room: Room | None = None,
        *,
        client: bool = False,
    ) -> None:
        super().__init__(bounds, now, room or Endless(), client=client)
        self.fault: ConnectionFault | None = None
        self.is_acknowledged = False
        self.going = False
        self._decoder = BlockDecoder(bounds.header_bytes)
        self._most_block = 4 * bounds.header_bytes
        self._plain_bytes = min(bounds.frame_bytes, self._most_block)
        self._rest = bytearray()  # of a frame that has begun to come
        self._need = frames.HEAD_BYTES  # how many bytes of it are needed to go on
        self._skip_left = 0  # of a frame of an unknown type
        self._greeted = client  # whether the client's preface has come
        self.settled = False
        self._is_plain = False  # whether any frame may come
        self._window_change = 0  # of all streams, by SETTINGS
        self._widened = False  # whether data that were held back may go now
        self._decode_cost = 0.0  # of the last header block
        # A header block that continues.
        self._block: bytearray | None = None
        self._block_stream = 0
        self._block_ends = False
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
        self._owed = bounds.connection_bytes - self._receive_window
        if self._owed:
            self._grant()

    # -- what comes --

    def receive(self, data: memoryview | bytes, now: float) -> list[Event]:
        """Takes bytes from the peer.

        After a fault, the peer is told in what `take` returns, and the connection has to be closed.
        Each stream that was open then ends by `Reset`.
        """
        events: list[Event] = []
        if self.fault is not None:
            return events
        self._events, self._now = events, now
        try:
            if self.paused:
                self._check_unsent()
            view = memoryview(data)
            if self._rest:
                view = self._complete(view)
            position = self._parse(view)
            if position < len(view):
                self._rest += view[position:]
            self._settle()
        except ConnectionFault as fault:
            self._break(fault)
        self._events = []
        return events

    def filled(self, count: int, now: float) -> list[Event]:
        """Takes bytes that were written into `space`."""
        events: list[Event] = []
        self._events, self._now = events, now
        self._data_left -= count
        self._owed += count
        stream = self._data_stream  # None if it was reset meanwhile
        try:
            if stream is not None and stream.reader is not None:
                messages: list[Message] = []
                stream.reader.filled(count, messages)
                if messages:
                    self._received(stream, messages)
            if not self._data_left and not self._pad_left:
                self._end_data()
            self._settle()
        except ConnectionFault as fault:
            self._break(fault)
        self._events = []
        return events

    def _settle(self) -> None:
        """Does what is done once for all frames of a read."""
        if self._window_change:
            self._change_windows()
        if self._widened:
            self._widened = False
            self.flush(self._events)
        if self._owed >= self._worth_granting:
            self._grant()
        # Windows and `Room` bound the bytes of messages, not their number.
        if self._waiting > self._most_waiting:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many messages are not read")

    def _check_unsent(self) -> None:
        """
        Raises:
            ConnectionFault: the peer asks for answers and does not read them.
        """
        if self._unsent > _UNSENT_BYTES or len(self.out) > _UNSENT_PIECES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many answers are not read")

    def _complete(self, data: memoryview) -> memoryview:
        """Reads the frame that has begun to come, and returns the bytes after it."""
        rest = self._rest
        while rest:
            lacking = self._need - len(rest)
            rest += data[:lacking]
            data = data[lacking:]
            if len(rest) < self._need:
                break
            whole = bytes(rest)
            rest.clear()
            rest += whole[self._parse(memoryview(whole)) :]
        return data

    def _parse(self, data: memoryview) -> int:
        """Reads all frames that are whole, and of DATA what has come.

        Returns:
            The position of the first byte that has to wait for others, of which `_need` tells how
            many there must be.
        """
        position, end = 0, len(data)
        if not self._greeted:
            position = self._read_preface(data)
            if not position:
                return 0
        while True:
            if self._data_left or self._pad_left:
                position = self._read_data(data, position)
            if self._skip_left:
                skipped = min(self._skip_left, end - position)
                self._skip_left -= skipped
                position += skipped
            start = position + frames.HEAD_BYTES
            if start > end:
                self._need = frames.HEAD_BYTES
                return position
            high, low, kind, flags, number = _unpack(data, position)
            length = high << 8 | low
            number &= MAX_STREAM
            stop = start + length
            if not self._is_plain or kind > frames.HEADERS or length > self._plain_bytes:
                self._check(kind, flags, number, length)
            if kind == frames.DATA:
                if (
                    stop <= end
                    and not flags & frames.PADDED
                    and self._whole_frame(number, flags, data, start, length)
                ):
                    position = stop
                    continue
                taken = self._begin_data(number, flags, data, start, length)
                if taken is None:
                    self._need = frames.HEAD_BYTES + 1
                    return position
                position = start + taken
            elif kind > frames.CONTINUATION:  # it is ignored (RFC 9113, 5.5)
                self._patience.spend(limits.SMALL_COST, self._now, "frames of unknown types")
                self._skip_left = length
                position = start
            elif stop > end:
                self._need = frames.HEAD_BYTES + length
                return position
            else:
                position = stop
                if kind == frames.HEADERS and flags & _BLOCK_FLAGS == frames.END_HEADERS:
                    self._read_block(number, bytes(data[start:stop]), flags & frames.END_STREAM)
                else:
                    self._frame(kind, flags, number, data[start:stop])

    def _read_preface(self, data: memoryview) -> int:
        """The length of the preface; 0 if more of it has to come.

        Raises:
            ConnectionFault: the client does not speak HTTP/2.
        """
        start = bytes(data[: len(frames.PREFACE)])
        if not frames.PREFACE.startswith(start):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no preface of HTTP/2")
        self._greeted = len(start) == len(frames.PREFACE)
        # Each byte is looked at, so that another protocol is told apart at once.
        self._need = len(start) + 1
        return len(start) if self._greeted else 0

    def _check(self, kind: int, flags: int, number: int, length: int) -> None:
        """Checks a frame's head, before any of its payload is kept.

        Raises:
            ConnectionFault: such a frame may not come here.
        """
        if not self.settled and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame has to be SETTINGS")
        if length > self._bounds.frame_bytes:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame is larger than allowed")
        if self._block is not None and (
            kind != frames.CONTINUATION or number != self._block_stream
        ):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        if kind in (frames.HEADERS, frames.CONTINUATION):
            so_far = 0 if self._block is None else len(self._block)
            if so_far + length > self._most_block:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")
        elif _FIXED.get(kind, length) != length:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame has a wrong size")
        elif kind == frames.SETTINGS and length > _LARGE_SETTINGS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many settings in a frame")
        elif kind == frames.GOAWAY and length > frames.MIN_FRAME_BYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a GOAWAY frame is too large")
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE is not expected")

    def _frame(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        """Reads a whole frame that is not DATA."""
        if kind == frames.HEADERS:
            self._headers(flags, number, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == frames.PING:
            self._ping(flags, number, payload)
        elif kind == frames.RST_STREAM:
            self._rst_stream(number, payload)
        elif kind == frames.SETTINGS:
            self._settings(flags, number, payload)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, payload)
        elif kind == frames.PRIORITY:
            self._priority(number, payload)
        else:
            self._goaway(number, payload)

    # -- header blocks --

    def _headers(self, flags: int, number: int, payload: memoryview) -> None:
        start, end = 0, len(payload)
        if flags & frames.PADDED:
            if not end:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no length of the padding")
            start, end = 1, end - payload[0]
        depends: int | None = None
        if flags & frames.HAS_PRIORITY:
            if len(payload) - start < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no room for a priority")
            depends = frames.NUMBER.unpack_from(payload, start)[0] & MAX_STREAM
            start += 5
        if end < start:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
        ends = flags & frames.END_STREAM
        if flags & frames.END_HEADERS:
            self._read_block(number, bytes(payload[start:end]), ends, depends)
            return
        if not number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS without a stream")
        self._block, self._block_stream = bytearray(payload[start:end]), number
        self._block_ends = bool(ends)
        self._is_plain = False

    def _continuation(self, flags: int, payload: memoryview) -> None:
        if self._block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        cost = limits.SMALL_COST if payload else limits.SETTINGS_COST
        self._patience.spend(cost, self._now, "CONTINUATION frames")
        self._block += payload
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            self._is_plain = True
            self._read_block(self._block_stream, block, self._block_ends)

    def _read_block(self, number: int, block: bytes, ends: int, depends: int | None = None) -> None:
        """Reads a whole header block. It is decoded in any case, since later ones build on it."""
        stream = self.streams.get(number)
        if stream is None:
            if number > self.last_stream and not self._client:
                self._open(number, block, ends, depends)
            elif number in self._over or (self._client and not self._is_idle(number)):
                self._ignore(block)
            elif self._client or number & 1 == 0:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on a wrong stream")
            else:
                raise ConnectionFault(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")
            return
        try:
            if stream.remote_ended or depends == number:
                self._ignore(block)
                if depends == number:
                    raise StreamFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
                raise StreamFault(ErrorCode.STREAM_CLOSED, "HEADERS after the end of the stream")
            if not stream.has_head:
                self._respond(stream, block, ends)
                return
            trailers = self._decode(block, Trailers)
            if not ends:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "trailers do not end the stream")
            self._ended(stream, trailers)
        except StreamFault as fault:
            self._end_faulty(stream, fault)

    def _open(self, number: int, block: bytes, ends: int, depends: int | None) -> None:
        """Opens a stream of the client."""
        if number & 1 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client's streams have odd numbers")
        self.last_stream = number
        head = self._decoder.known.get(block)
        cost = 0.0
        try:
            if type(head) is not RequestHead:
                head = self._decode(block, RequestHead)
                cost = self._decode_cost
            if depends == number:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
            if number > self._refuse_above:  # the peer was told that it will not be processed
                self._forget(number)
                return
            if len(self.streams) >= self._bounds.streams:
                raise StreamFault(ErrorCode.REFUSED_STREAM, "too many streams")
            if ends and head.length > 0:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "less data than content-length says")
        except ListTooLarge as fault:
            self._patience.spend(limits.RESET_COST, self._now, "large header lists")
            final = RESPONSE + trailers_block(RESOURCE_EXHAUSTED, str(fault))
            self._send_block(number, final, end=True)
            if not ends:
                self._reset(number, ErrorCode.NO_ERROR)
            return
        except StreamFault as fault:
            self._patience.spend(limits.RESET_COST, self._now, "streams that cannot be opened")
            self._reset(number, fault.code)
            return
        window = self._peer_window - self._window_change
        stream = Stream(number, window, self._bounds.window_bytes, self._now)
        stream.has_head = True
        stream.cost = cost
        stream.length = head.length
        stream.encoding = head.encoding
        stream.reads = head.http is None and head.refused is None
        self.streams[number] = stream
        if head.http is not None and not ends:
            self._plain[number] = head
            return
        self._events.append(_new(CallOpened, (stream, head)))
        if ends:
            stream.remote_ended = True
            self._events.append(_new(StreamEnded, (stream, None)))

    def _respond(self, stream: Stream, block: bytes, ends: int) -> None:
        """Reads the beginning of a response."""
        head = self._decode(block, ResponseHead)
        if head.status < 200:
            if ends or head.status == 101:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "an interim response that is none")
            self._patience.spend(limits.SETTINGS_COST, self._now, "interim responses")
            return
        stream.has_head = True
        stream.length = head.length
        stream.encoding = head.encoding
        stream.reads = head.is_grpc and head.status == 200
        self._events.append(_new(ResponseStarted, (stream, head)))
        if ends:
            self._ended(stream, Trailers(head.fields))

    def _ignore(self, block: bytes) -> None:
        """Decodes a block that means nothing any more, for the sake of later ones."""
        with contextlib.suppress(ListTooLarge):
            self._decode(block, _Ignored)

    def _decode(self, block: bytes, meaning: type[Any]) -> Any:
        decoder = self._decoder
        known = decoder.known.get(block)
        if type(known) is meaning:
            self._decode_cost = 0.0
            return known
        try:
            return decoder.decode(block, meaning)
        finally:
            self._decode_cost = limits.decoding(decoder.fields, len(block))
            if self._decode_cost:
                what = "header blocks that are new each time"
                self._patience.spend(self._decode_cost, self._now, what)

    # -- other frames --

    def _window_update(self, number: int, payload: memoryview) -> None:
        self._patience.spend(limits.SMALL_COST, self._now, "WINDOW_UPDATE frames")
        more = frames.NUMBER.unpack(payload)[0] & MAX_STREAM
        fault = StreamFault(ErrorCode.PROTOCOL_ERROR, "a window grows by nothing")
        if not number:
            if not more:
                raise ConnectionFault(fault.code, str(fault))
            if not self._widen(more):
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
        else:
            stream = self.streams.get(number)
            if stream is None:
                if self._is_idle(number):
                    why = "WINDOW_UPDATE on a stream never opened"
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, why)
                return
            if not more:
                self._end_faulty(stream, fault)
            elif not self._widen_stream(stream, more, self._window_change):
                fault = StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
                self._end_faulty(stream, fault)
        self._widened = True

    def _ping(self, flags: int, number: int, payload: memoryview) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        self._patience.spend(limits.PING_COST, self._now, "PING frames")
        if not flags & frames.ACK:
            self.out.append(frames.frame(frames.PING, frames.ACK, 0, bytes(payload)))
        elif self.going and bytes(payload) == _DRAIN_PING:
            self.finish_going()

    def _rst_stream(self, number: int, payload: memoryview) -> None:
        if self._is_idle(number):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on a stream never opened")
        stream = self.streams.get(number)
        is_rapid = stream is not None and self._now - stream.opened < limits.RAPID_SECONDS
        cost = limits.RESET_COST if is_rapid else limits.SMALL_COST
        self._patience.spend(cost, self._now, "resets")
        if stream is not None:
            self._close(stream)
            code = frames.NUMBER.unpack(payload)[0]
            self._events.append(Reset(stream, code, "the peer reset the stream"))

    def _settings(self, flags: int, number: int, payload: memoryview) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        self._patience.spend(limits.SETTINGS_COST, self._now, "SETTINGS frames")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an agreement with settings")
            self.is_acknowledged = True
            return
        if len(payload) % frames.ONE_SETTING.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a setting is cut short")
        window = self._peer_window
        for name, value in frames.ONE_SETTING.iter_unpack(payload):
            self._set(name, value)
        self._window_change += self._peer_window - window
        self.settled = self._is_plain = True
        self.out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._widened = True

    def _set(self, name: int, value: int) -> None:
        if name == Setting.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
            self._peer_window = value
        elif name == Setting.MAX_FRAME_SIZE:
            if not frames.MIN_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no size for a frame")
            self.peer_frame_bytes = value
        elif name == Setting.MAX_CONCURRENT_STREAMS:
            self.peer_streams = value
        elif name == Setting.HEADER_TABLE_SIZE and value < self._table_bytes:
            self._table_bytes, self._shrinks_table = 0, True
        elif name == Setting.ENABLE_PUSH and (value > 1 or (self._client and value)):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is wrong")

    def _change_windows(self) -> None:
        """Changes the windows of all streams (RFC 9113, 6.9.2), once for all SETTINGS of a read."""
        change, self._window_change = self._window_change, 0
        cost = limits.SMALL_COST * len(self.streams) / 8
        self._patience.spend(cost, self._now, "changes of the streams' windows")
        for stream in self.streams.values():
            if not self._widen_stream(stream, change):
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")

    def _priority(self, number: int, payload: memoryview) -> None:
        if not number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
        self._patience.spend(limits.SMALL_COST, self._now, "PRIORITY frames")
        if frames.NUMBER.unpack_from(payload)[0] & MAX_STREAM != number:
            return
        stream = self.streams.get(number)
        fault = StreamFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
        if stream is not None:
            self._end_faulty(stream, fault)
        elif self._is_idle(number):
            raise ConnectionFault(fault.code, str(fault))

    def _goaway(self, number: int, payload: memoryview) -> None:
        if number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY frame is too short")
        self._patience.spend(limits.SETTINGS_COST, self._now, "GOAWAY frames")
        last, code = (frames.NUMBER.unpack_from(payload, at)[0] for at in (0, 4))
        why = bytes(payload[8:264]).decode("utf-8", "replace")
        self._events.append(GoneAway(last & MAX_STREAM, code, why))

    # -- the end --

    def go_away(self) -> None:
        """Tells the peer to open no more streams here, and goes on with those that come meanwhile.

        When the peer has read that, or when `finish_going` is called, later streams are not
        processed, and the peer knows it (RFC 9113, 6.8).
        """
        if not self.going and self.fault is None:
            self.going = True
            self.out.append(frames.goaway(MAX_STREAM, ErrorCode.NO_ERROR))
            self.ping(_DRAIN_PING)

    def finish_going(self) -> None:
        """Tells the peer which stream is the last that is processed."""
        if self._refuse_above == MAX_STREAM and self.fault is None:
            self._refuse_above = self.last_stream
            self.out.append(frames.goaway(self.last_stream, ErrorCode.NO_ERROR))

    @property
    def has_gone(self) -> bool:
        """Whether the peer knows which of its streams is the last that is processed."""
        return self._refuse_above != MAX_STREAM

    def fail(self, fault: ConnectionFault) -> None:
        """Ends the connection. Its streams are forgotten."""
        if self.fault is None:
            self.fault = fault
            self.close()
            last = min(self.last_stream, self._refuse_above)
            self.out.append(frames.goaway(last, fault.code, str(fault)))

    def close(self) -> Sequence[Stream]:
        """Forgets all streams, and returns those that were open."""
        streams = list(self.streams.values())
        for stream in streams:
            self._close(stream)
        return streams

    def _break(self, fault: ConnectionFault) -> None:
        """Ends the connection by the peer's fault, and tells so for each stream."""
        for stream in self.streams.values():
            self._events.append(Reset(stream, fault.code, str(fault)))
        self.fail(fault)


class _Ignored:
    """What a block means on a stream that is over."""

    def __init__(self, _: object) -> None:
        pass
