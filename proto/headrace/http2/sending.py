"""What one end sends, and the windows of its peer."""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from headrace.http2 import frames
from headrace.http2.calls import RESPONSE, trailers_block
from headrace.http2.compression import TABLE_BYTES
from headrace.http2.events import DataSent, Event
from headrace.http2.frames import ErrorCode
from headrace.http2.limits import CALL_GAIN, SENT_GAIN, ConnectionLimits, TokenBucket
from headrace.http2.messages import PREFIX_BYTES, prefix
from headrace.http2.streams import Buffer, Stream

MAX_STREAM: Final = 2**31 - 1

_JOINED_BYTES: Final = 16 << 10
_SMALL_BYTES: Final = 8 << 10  # below the size of most peers' frames, which are not copied
_WORTH_BYTES: Final = 1024
_TURN_BYTES: Final = 256 << 10
_FLUSHED_BYTES: Final = 1 << 20
_LEAST_REMEMBERED: Final = 512
_OK: Final = trailers_block(0)
_pack: Final = frames.HEAD.pack
_pack_message: Final = frames.MESSAGE_HEAD.pack
_NO_TABLE: Final = b"\x20"
# A frame with the head of a response, the head of a DATA frame, and a message's prefix.
_pack_answer: Final = struct.Struct(f">HBBBI{len(RESPONSE)}sHBBBIBI").pack


class Sending:
    """What one end sends. A part of `Connection`, which reads what the peer sends.

    Data that the peer's windows hold back wait at their streams. Those that the stream's own window
    lets go stand in line for the connection's window, each for a piece at a time.

    Attributes:
        streams: those that are open, by their numbers.
        out: what is to be sent, for `take`.
        paused: whether nothing may be sent but frames that answer others. The owner sets it.
        last_stream: the number of the latest stream of the peer.
        peer_frame_bytes: the largest frame that the peer takes.
        peer_streams: how many streams the peer lets this end have open.
        ready: the streams whose data stand in line for the connection's window.
    """

    __slots__ = (
        "_bounds",
        "_client",
        "_most_over",
        "_next",
        "_now",
        "_over",
        "_patience",
        "_peer_window",
        "_send_window",
        "_shrinks_table",
        "_table_bytes",
        "_unsent",
        "last_stream",
        "out",
        "paused",
        "peer_frame_bytes",
        "peer_streams",
        "ready",
        "streams",
    )

    def __init__(self, bounds: ConnectionLimits, now: float, *, client: bool) -> None:
        self.streams: dict[int, Stream] = {}
        self.out: list[Buffer] = []
        self.paused = False
        self.last_stream = 0
        self.peer_frame_bytes = frames.MIN_FRAME_BYTES
        self.peer_streams = MAX_STREAM
        self._bounds = bounds
        self._client = client
        self._patience = TokenBucket(now)
        self._now = now
        self._next = 1
        self._send_window = frames.DEFAULT_WINDOW
        self._peer_window = frames.DEFAULT_WINDOW
        self.ready: OrderedDict[int, Stream] = OrderedDict()
        # The table that the peer keeps for this end's blocks, which have no use for one. If the
        # peer wants a smaller one, the next block has to say that it is (RFC 7541, 4.2).
        self._table_bytes = TABLE_BYTES
        self._shrinks_table = False
        self._unsent = 0  # bytes that were taken while nothing could be sent
        # Streams that this end has reset, about which the peer may not know yet.
        self._over: OrderedDict[int, None] = OrderedDict()
        self._most_over = max(_LEAST_REMEMBERED, 2 * bounds.streams)

    def take(self) -> list[Buffer]:
        """The bytes to be sent now, in order. Small ones are joined."""
        out, self.out = self.out, []
        self._unsent = self._unsent + sum(map(len, out)) if self.paused else 0
        if len(out) < 2:
            return out
        joined: list[Buffer] = []
        small: list[Buffer] = []
        for piece in out:
            if len(piece) <= _SMALL_BYTES:
                small.append(piece)
                continue
            if small:
                joined.append(b"".join(small))
                small = []
            joined.append(piece)
        if small:
            joined.append(b"".join(small))
        return joined

    # -- calls --

    def open(self, block: bytes, now: float) -> Stream:
        """Opens a stream (at a client), by the block of a call.

        Raises:
            OverflowError: the connection has no more numbers for streams.
        """
        number = self._next
        if number > MAX_STREAM:
            raise OverflowError("the connection has no more streams; open another")
        self._next += 2
        stream = Stream(number, self._peer_window, self._bounds.window_bytes, now)
        self.streams[number] = stream
        self._send_block(number, block, end=False)
        return stream

    def call(self, block: bytes, message: Buffer, now: float) -> Stream:
        """Opens a stream (at a client) for a call that sends one message, as one piece if the
        windows allow.

        Raises:
            OverflowError: as `open`.
        """
        size = len(message)
        whole = size + PREFIX_BYTES
        number, window = self._next, self._peer_window
        if (
            size > _JOINED_BYTES
            or whole > window
            or whole > self._send_window
            or whole > self.peer_frame_bytes
            or len(block) > self.peer_frame_bytes
            or number > MAX_STREAM
            or self.paused
            or self._shrinks_table
        ):
            stream = self.open(block, now)
            self.send_message(stream, message, last=True)
            return stream
        self._next += 2
        stream = Stream(number, window - whole, self._bounds.window_bytes, now)
        stream.local_ended = True
        self.streams[number] = stream
        self._send_window -= whole
        length = len(block)
        self.out.append(
            b"".join(
                (
                    _pack(length >> 8, length & 0xFF, frames.HEADERS, frames.END_HEADERS, number),
                    block,
                    _pack_message(
                        whole >> 8,
                        whole & 0xFF,
                        frames.DATA,
                        frames.END_STREAM,
                        number,
                        0,
                        size,
                    ),
                    message,
                )
            )
        )
        self._patience.left += SENT_GAIN
        return stream

    def send_head(self, stream: Stream) -> None:
        """Sends the beginning of a response."""
        if stream.is_open:
            stream.answered = True
            self._send_block(stream.id, RESPONSE, end=False)

    def send_message(
        self, stream: Stream, message: Buffer, *, last: bool = False, whole: bool = False
    ) -> bool:
        """Sends a message, as far as the windows allow. Nothing is sent on a stream that is over.

        Args:
            last: whether nothing follows (at a client).
            whole: whether nothing is sent unless the windows let all of it go.

        Returns:
            Whether all of it goes out at once. Otherwise `DataSent` comes when it has. With
            `whole`, whether it was taken: a large message that was goes out in turns.
        """
        size = len(message)
        fits = self.fits(stream, size)
        if whole and not fits:
            return False
        if fits and size + PREFIX_BYTES <= self.peer_frame_bytes:
            taken = size + PREFIX_BYTES
            self._send_window -= taken
            stream.send_window -= taken
            flags = frames.END_STREAM if last else 0
            start = frames.message_head(size, flags, stream.id)
            if size <= _JOINED_BYTES:
                self.out.append(start + message)
            else:
                self.out.append(start)
                self.out.append(message)
            self._patience.left += SENT_GAIN
            if last:
                self._local_end(stream)
            return True
        if not stream.is_open or stream.local_ended:
            return True
        stream.ends = stream.ends or last
        if size <= _JOINED_BYTES:
            return self._hold(stream, prefix(size) + message) or whole
        return self._hold(stream, prefix(size), message) or whole

    def fits(self, stream: Stream, size: int) -> bool:
        """Whether a message of `size` bytes would go out at once."""
        size += PREFIX_BYTES
        return (
            size <= self._send_window
            and size <= stream.send_window
            and stream.is_open
            and not stream.pending
            and not self.paused
        )

    def send_parts(self, stream: Stream, parts: Sequence[Buffer]) -> bool:
        """Sends a message whose bytes lie in several places, without joining them.

        Returns:
            As `send_message`.
        """
        if not stream.is_open or stream.local_ended:
            return True
        return self._hold(stream, prefix(sum(map(len, parts))), *parts)

    def answer(self, stream: Stream, message: Buffer, block: bytes = _OK) -> bool:
        """Answers a call by a single message and its trailers, as one piece if the windows allow.

        Returns:
            Whether all of it goes out at once. Otherwise `DataSent` comes when it has.
        """
        size = len(message)
        whole = size + PREFIX_BYTES
        if (
            self.fits(stream, size)
            and whole <= self.peer_frame_bytes
            and len(block) <= self.peer_frame_bytes
            and stream.remote_ended
            and not stream.answered
            and not self._shrinks_table
        ):
            number = stream.id
            self._send_window -= whole
            start = _pack_answer(
                0,
                len(RESPONSE),
                frames.HEADERS,
                frames.END_HEADERS,
                number,
                RESPONSE,
                whole >> 8,
                whole & 0xFF,
                frames.DATA,
                0,
                number,
                0,
                size,
            )
            end = frames.frame(frames.HEADERS, frames.LAST_HEADERS, number, block)
            if size <= _JOINED_BYTES:
                self.out.append(start + message + end)
            else:
                self.out += (start, message, end)
            self._patience.left += CALL_GAIN + stream.cost
            stream.answered = stream.local_ended = True
            self._close(stream)
            return True
        if not stream.answered:
            self.send_head(stream)
        self.send_message(stream, message)
        return self.finish(stream, block)

    def end(self, stream: Stream) -> None:
        """Says that nothing follows (at a client)."""
        if stream.pending:
            stream.ends = True
        elif stream.is_open and not stream.local_ended:
            self.out.append(frames.head(0, frames.DATA, frames.END_STREAM, stream.id))
            self._local_end(stream)

    def finish(self, stream: Stream, block: bytes = _OK) -> bool:
        """Ends a response by its trailers, after its data.

        Returns:
            Whether that goes out at once. Otherwise `DataSent` comes when it has.
        """
        if not stream.is_open:
            return True
        if stream.pending:
            stream.final = block
            return False
        self._finish(stream, block)
        return True

    def finish_plain(self, stream: Stream, block: bytes, text: bytes) -> bool:
        """Ends a stream by a whole response that is not gRPC's.

        Returns:
            As `finish`.
        """
        if not stream.is_open:
            return True
        stream.answered = True
        self._send_block(stream.id, block, end=not text)
        if not text:
            self._local_end(stream)
            return True
        stream.ends = True
        return self._hold(stream, text)

    def reset(self, stream: Stream, code: int = ErrorCode.CANCEL) -> None:
        """Ends a stream at once."""
        if stream.is_open:
            self._close(stream)
            self._reset(stream.id, code)

    def ping(self, payload: bytes) -> None:
        """Sends a PING of eight bytes."""
        self.out.append(frames.frame(frames.PING, 0, 0, payload))

    def _send_block(self, number: int, block: bytes, *, end: bool) -> None:
        if self._shrinks_table:
            self._shrinks_table = False
            block = _NO_TABLE + block
        self.out.append(frames.header_frames(number, block, self.peer_frame_bytes, end=end))

    def _finish(self, stream: Stream, block: bytes) -> None:
        self._send_block(stream.id, block if stream.answered else RESPONSE + block, end=True)
        self._patience.left += CALL_GAIN + stream.cost
        self._local_end(stream)

    def _local_end(self, stream: Stream) -> None:
        stream.local_ended = True
        if stream.remote_ended:
            self._close(stream)
        elif not self._client:  # the client shall not send what nobody reads
            self._close(stream)
            self._reset(stream.id, ErrorCode.NO_ERROR)

    def _reset(self, number: int, code: int) -> None:
        self._forget(number)
        self.out.append(frames.rst_stream(number, code))

    def _forget(self, number: int) -> None:
        """Notes that frames of a stream may come that nobody wants any more."""
        self._over[number] = None
        if len(self._over) > self._most_over:
            self._over.popitem(last=False)

    def _close(self, stream: Stream) -> None:
        """Forgets a stream."""
        if stream.is_open:
            stream.is_open = False
            del self.streams[stream.id]
            if stream.pending:
                self.ready.pop(stream.id, None)
                stream.pending.clear()
                stream.pending_bytes = 0
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        """Forgets what came on a stream and was not read."""

    # -- data that are held back --

    def flush(self, events: list[Event]) -> None:
        """Sends what was held back, some of each stream in turn, as far as the windows allow."""
        sent = 0
        ready = self.ready
        for _ in range(len(ready)):
            if not self.has_more or sent >= _FLUSHED_BYTES:
                return
            _, stream = ready.popitem(last=False)
            sent += self._send_pending(stream, _TURN_BYTES)
            if not stream.pending:
                events.append(DataSent(stream))

    @property
    def has_more(self) -> bool:
        """Whether data are held back that `flush` would send."""
        return bool(self.ready) and self._send_window > 0 and not self.paused

    def _hold(self, stream: Stream, *parts: Buffer) -> bool:
        """Sends data after those that the stream holds back already.

        Returns:
            Whether nothing is held back.
        """
        if stream.pending is None:
            stream.pending = deque()
        stream.pending += parts
        stream.pending_bytes += sum(map(len, parts))
        if self.ready or self.paused:
            self._stand_in_line(stream)
        else:  # nobody waits for a turn
            self._send_pending(stream, _FLUSHED_BYTES)
        return not stream.pending

    def _stand_in_line(self, stream: Stream) -> None:
        """Puts a stream into the line, or takes it out, after its window has changed."""
        if not stream.pending or stream.send_window <= 0:
            self.ready.pop(stream.id, None)
        elif stream.id not in self.ready:
            self.ready[stream.id] = stream

    def _send_pending(self, stream: Stream, most: int) -> int:
        """Sends data that a stream holds back, about `most` bytes, and returns how many."""
        sent = 0
        pending, out = stream.pending, self.out
        assert pending is not None
        while pending and sent < most:
            size = min(
                most,
                self.peer_frame_bytes,
                self._send_window,
                stream.send_window,
                stream.pending_bytes,
            )
            if size <= 0:
                break
            stream.pending_bytes -= size
            stream.send_window -= size
            self._send_window -= size
            sent += size
            ends = stream.ends and not stream.pending_bytes
            out.append(frames.head(size, frames.DATA, frames.END_STREAM if ends else 0, stream.id))
            _move(size, pending, out)
            if size >= _WORTH_BYTES or not pending:
                self._patience.left += SENT_GAIN
            if ends:
                self._local_end(stream)
        if pending:
            self._stand_in_line(stream)
        else:
            self.ready.pop(stream.id, None)
            if stream.final is not None and stream.is_open:
                self._finish(stream, stream.final)
        return sent

    # -- the peer's windows --

    def _widen(self, more: int) -> bool:
        """Opens the connection's window. Returns whether it is no larger than allowed."""
        self._send_window += more
        return self._send_window <= frames.MAX_WINDOW

    def _widen_stream(self, stream: Stream, more: int, later: int = 0) -> bool:
        """Changes a stream's window.

        Args:
            later: by how much it is going to change besides.

        Returns:
            Whether the window is no larger than allowed.
        """
        stream.send_window += more
        if stream.pending:
            self._stand_in_line(stream)
        return stream.send_window + later <= frames.MAX_WINDOW


def _move(size: int, pending: deque[Buffer], out: list[Buffer]) -> None:
    """Moves the first `size` bytes, and what is empty behind them."""
    while pending:
        part = pending[0]
        if len(part) <= size:
            out.append(pending.popleft())
            size -= len(part)
        else:
            if size:
                view = memoryview(part)
                out.append(view[:size])
                pending[0] = view[size:]
            return
