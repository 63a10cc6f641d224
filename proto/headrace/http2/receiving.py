"""The data that a peer sends: messages, and the windows that they go through."""

from __future__ import annotations

import struct
from typing import Final

from headrace.http2 import frames, limits
from headrace.http2.calls import RequestHead, Trailers
from headrace.http2.events import (
    CallOpened,
    Event,
    MessageReceived,
    MessageRefused,
    Reset,
    StreamEnded,
)
from headrace.http2.faults import ConnectionFault, StreamFault
from headrace.http2.frames import ErrorCode
from headrace.http2.limits import ConnectionLimits, Room
from headrace.http2.messages import (
    PREFIX_BYTES,
    BadMessage,
    Message,
    MessageReader,
    TooLarge,
)
from headrace.http2.sending import MAX_STREAM, Sending
from headrace.http2.streams import Stream

RESOURCE_EXHAUSTED: Final = 8
INTERNAL: Final = 13

_TINY_BYTES: Final = 64
_MESSAGE_BYTES: Final = 64
"""What a message takes beside its own bytes, of which it may have none."""
_WAITING_WINDOWS: Final = 4
"""How many of a connection's windows messages without bytes may take."""
_PLAIN_BYTES: Final = 32 << 10
_DIRECT_BYTES: Final = 16 << 10
_MAX_MESSAGE: Final = 2**32 - 1
_prefix: Final = struct.Struct(">BI").unpack_from
_new: Final = tuple.__new__  # makes a NamedTuple without a call of Python code


class Receiving(Sending):
    """What comes in DATA frames. A part of `Connection`, which reads all other frames.

    A stream's window is given back when its messages are read, and the connection's when its bytes
    have come, unless too many messages wait for their readers. A message that does not fit into its
    stream's window gets a larger one, if there is room for it.

    Attributes:
        unread: how many bytes messages take that wait for their readers.
    """

    __slots__ = (
        "_data_ends",
        "_data_is_tiny",
        "_data_left",
        "_data_pads",
        "_data_stream",
        "_events",
        "_low_window",
        "_most_bytes",
        "_most_waiting",
        "_owed",
        "_pad_left",
        "_plain",
        "_receive_window",
        "_refuse_above",
        "_room",
        "_waiting",
        "_worth_granting",
        "unread",
    )

    def __init__(self, bounds: ConnectionLimits, now: float, room: Room, *, client: bool) -> None:
        super().__init__(bounds, now, client=client)
        self._room = room
        self._events: list[Event] = []  # of the bytes that are being read
        self._most_bytes = bounds.message_bytes or _MAX_MESSAGE
        self._refuse_above = MAX_STREAM
        # The DATA frame that has begun to come.
        self._data_left = 0
        self._pad_left = 0
        self._data_stream: Stream | None = None
        self._data_ends = False
        self._data_pads = False
        self._data_is_tiny = False
        # Flow control.
        self._receive_window = frames.DEFAULT_WINDOW
        self._owed = 0  # bytes of the connection's window that have to be given back
        self._worth_granting = bounds.connection_bytes // 2
        self._low_window = bounds.window_bytes - bounds.window_bytes // 2
        self.unread = 0
        self._waiting = 0
        self._most_waiting = _WAITING_WINDOWS * bounds.connection_bytes // _MESSAGE_BYTES
        # Requests that are no calls of gRPC, until they have ended or are long: an answer before
        # would hide what is wrong with them.
        self._plain: dict[int, RequestHead] = {}

    def space(self) -> memoryview | None:
        """Where the next bytes from the peer belong, if that is a message's own memory.

        Then `filled` takes the place of `receive`.
        """
        stream = self._data_stream
        if self._data_left < _DIRECT_BYTES or stream is None or stream.reader is None:
            return None
        if not stream.reader.missing:
            return None
        return stream.reader.space()[: self._data_left]

    def read(self, stream: Stream, size: int) -> None:
        """Says that a message of `size` bytes has been taken by its reader."""
        size += _MESSAGE_BYTES
        if stream.unread >= size:
            stream.unread -= size
            stream.waiting -= 1
            self.unread -= size
            self._waiting -= 1
        if stream.receive_window <= self._low_window or stream.reader is not None:
            self._reopen(stream)
        if self._owed >= self._worth_granting:
            self._grant()

    # -- frames --

    def _whole_frame(
        self, number: int, flags: int, data: memoryview, start: int, length: int
    ) -> bool:
        """Reads a DATA frame that is one whole message, or lies within one, as most do.

        Returns:
            False if the frame does not, or is not in order. Nothing has been done then.
        """
        stream = self.streams.get(number)
        if (
            stream is None
            or not stream.reads
            or stream.remote_ended
            or length < PREFIX_BYTES
            or length > stream.receive_window
            or length > self._receive_window
            or stream.length >= 0
        ):
            return False
        reader = stream.reader
        if reader is not None and reader.has_begun:
            if length >= reader.missing or length < _TINY_BYTES or flags & frames.END_STREAM:
                return False
            reader.fill(data[start : start + length])
        else:
            packed, size = _prefix(data, start)
            if packed or size != length - PREFIX_BYTES or size > self._most_bytes:
                return False
            stream.unread += size + _MESSAGE_BYTES
            stream.waiting += 1
            self.unread += size + _MESSAGE_BYTES
            self._waiting += 1
            message = bytes(data[start + PREFIX_BYTES : start + length])
            self._events.append(_new(MessageReceived, (stream, message)))
        self._receive_window -= length
        self._owed += length
        stream.receive_window -= length
        if flags & frames.END_STREAM:
            stream.remote_ended = True
            self._events.append(_new(StreamEnded, (stream, None)))
            if stream.local_ended:
                self._close(stream)
        return True

    def _begin_data(
        self, number: int, flags: int, data: memoryview, start: int, length: int
    ) -> int | None:
        """Begins a DATA frame, whose payload is read as it comes.

        Returns:
            How many bytes of the payload have been read; None if the first has to come.
        """
        if not number:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA without a stream")
        padding = taken = 0
        if flags & frames.PADDED:
            if not length:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no length of the padding")
            if start == len(data):
                return None
            padding, taken = data[start], 1
            if padding >= length:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
        if length > self._receive_window:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
        self._receive_window -= length
        self._owed += taken
        ends = bool(flags & frames.END_STREAM)
        size = length - taken - padding
        stream = self._stream_for_data(number, length, size)
        self._data_is_tiny = size < _TINY_BYTES and (stream is None or not ends)
        if self._data_is_tiny:
            self._patience.spend(limits.SMALL_COST, self._now, "tiny DATA frames")
        self._data_stream, self._data_ends, self._data_pads = stream, ends, taken > 0
        self._data_left, self._pad_left = size, padding
        if not self._data_left and not self._pad_left:
            self._end_data()
        return taken

    def _stream_for_data(self, number: int, length: int, size: int) -> Stream | None:
        """The stream that takes a frame of `length` bytes, `size` of them data.

        Returns:
            None if nobody wants them.
        """
        stream = self.streams.get(number)
        if stream is None:
            if self._is_idle(number):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on a stream never opened")
            if number not in self._over:
                self._patience.spend(limits.RESET_COST, self._now, "frames on closed streams")
                self._reset(number, ErrorCode.STREAM_CLOSED)
            return None
        stream.received += size
        try:
            if stream.remote_ended:
                raise StreamFault(ErrorCode.STREAM_CLOSED, "data after the end of the stream")
            if not stream.has_head:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "data before the response")
            if length > stream.receive_window:
                raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
            if 0 <= stream.length < stream.received:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "more data than content-length says")
        except StreamFault as fault:
            self._end_faulty(stream, fault)
            return None
        stream.receive_window -= length
        return stream

    def _read_data(self, data: memoryview, position: int) -> int:
        """Reads what has come of a DATA frame, and returns the position after that."""
        there = len(data) - position
        count = min(self._data_left, there)
        if count:
            self._data_left -= count
            self._owed += count
            stream = self._data_stream
            if stream is not None and stream.reads:
                self._feed(stream, data[position : position + count])
        padding = min(self._pad_left, there - count)
        self._pad_left -= padding
        self._owed += padding
        if not self._data_left and not self._pad_left:
            self._end_data()
        return position + count + padding

    def _end_data(self) -> None:
        """Ends a DATA frame."""
        stream, self._data_stream = self._data_stream, None
        if stream is not None:
            if self._data_ends:
                self._ended(stream, None)
                return
            if self._plain and stream.received > _PLAIN_BYTES:
                self._tell_plain(stream)
            if self._data_pads:
                self._reopen(stream)

    # -- messages --

    def _feed(self, stream: Stream, data: memoryview) -> None:
        """Takes bytes of a stream's messages."""
        reader = stream.reader
        if reader is None:
            reader = stream.reader = MessageReader(self._bounds.message_bytes, stream.encoding)
        messages: list[Message] = []
        begun: memoryview | None = None
        error: Exception | None = None
        try:
            begun = reader.feed(data, messages)
        except (TooLarge, BadMessage) as raised:
            error = raised
        if messages:
            self._received(stream, messages)
        if error is not None:
            self._refuse(stream, error)
        elif begun is not None:
            self._begin(stream, reader, begun)

    def _begin(self, stream: Stream, reader: MessageReader, data: memoryview) -> None:
        """Takes the memory for a message that begins with `data`."""
        if not self._room.use(reader.whole_bytes):
            why = "the server has no room for the message beside others that are coming"
            self._refuse(stream, _NoRoom(why))
            return
        stream.held = reader.whole_bytes
        reader.begin(data)
        # What is left of this frame has its window. An update would be a write of its own.
        self._open_window(stream, reader.missing - self._data_left)

    def _received(self, stream: Stream, messages: list[Message]) -> None:
        """Hands messages out that are whole."""
        self._free_room(stream)
        stream.waiting += len(messages)
        self._waiting += len(messages)
        if self._data_is_tiny:  # for a reason
            self._data_is_tiny = False
            self._patience.left += limits.SMALL_COST
        for message in messages:
            size = len(message) + _MESSAGE_BYTES
            stream.unread += size
            self.unread += size
            self._events.append(_new(MessageReceived, (stream, message)))

    def _refuse(self, stream: Stream, error: Exception) -> None:
        stream.reads = False
        stream.reader = None
        self._free_room(stream)
        code, why = INTERNAL, str(error)
        if isinstance(error, TooLarge):
            code, most = RESOURCE_EXHAUSTED, self._bounds.message_bytes
            why = f"a message of {error.size} bytes is larger than {most} bytes"
        elif isinstance(error, _NoRoom):
            code = RESOURCE_EXHAUSTED
        self._events.append(MessageRefused(stream, code, why))

    def _free_room(self, stream: Stream) -> None:
        if stream.held:
            self._room.free(stream.held)
            stream.held = 0

    def _drop(self, stream: Stream) -> None:
        if stream.held:
            self._free_room(stream)
        self._plain.pop(stream.id, None)
        stream.reads = False
        stream.reader = None
        self.unread -= stream.unread
        stream.unread = 0
        self._waiting -= stream.waiting
        stream.waiting = 0
        if self._data_stream is stream:
            self._data_stream = None
        if self._owed >= self._worth_granting:
            self._grant()

    # -- windows --

    def _reopen(self, stream: Stream) -> None:
        """Gives a stream's window back for what was read and for padding, if that is worth it."""
        most = self._bounds.window_bytes
        size = most - stream.unread
        if stream.reader is not None and stream.reader.missing > stream.receive_window:
            size = max(size, stream.reader.missing)
        elif size - stream.receive_window < most // 2:
            return
        self._open_window(stream, size)

    def _open_window(self, stream: Stream, size: int) -> None:
        """Lets the peer send `size` bytes on the stream, if it has not ended."""
        more = size - stream.receive_window
        if more > 0 and not stream.remote_ended and stream.is_open:
            stream.receive_window += more
            self.out.append(frames.window_update(stream.id, more))

    def _grant(self) -> None:
        """Gives the connection's window back, unless too many messages wait for their readers."""
        if self.unread <= self._bounds.connection_bytes:
            self.out.append(frames.window_update(0, self._owed))
            self._receive_window += self._owed
            self._owed = 0

    # -- the ends of streams --

    def _is_idle(self, number: int) -> bool:
        """Whether the stream has never been opened."""
        if number & 1 == self._client:
            return not self._client or number >= self._next
        return number > self.last_stream or not number

    def _ended(self, stream: Stream, trailers: Trailers | None) -> None:
        """The peer has said that nothing follows."""
        if 0 <= stream.length != stream.received:
            fault = StreamFault(ErrorCode.PROTOCOL_ERROR, "less data than content-length says")
            self._end_faulty(stream, fault)
            return
        stream.remote_ended = True
        if stream.reader is not None and stream.reader.has_begun:
            self._refuse(stream, BadMessage("the stream ends within a message"))
        if self._plain:
            self._tell_plain(stream)
        self._events.append(_new(StreamEnded, (stream, trailers)))
        if self._client:
            self._patience.left += limits.CALL_GAIN
        if stream.local_ended:
            self._close(stream)

    def _tell_plain(self, stream: Stream) -> None:
        """Tells of a request that is no call."""
        head = self._plain.pop(stream.id, None)
        if head is not None:
            self._events.append(CallOpened(stream, head))

    def _end_faulty(self, stream: Stream, fault: StreamFault) -> None:
        """Resets a stream whose peer broke the protocol."""
        self._close(stream)
        self._reset(stream.id, fault.code)
        self._events.append(Reset(stream, fault.code, str(fault)))
        self._patience.spend(limits.RESET_COST, self._now, "faults of streams")


class _NoRoom(Exception):
    """There is no memory for a message."""
