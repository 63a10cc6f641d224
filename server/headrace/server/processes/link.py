"""One end of the connection between a front end and the engine.

Frames gather while the event loop handles its other events, or while the other process is busy and
has not read the earlier ones. Then all of them go in one write, and one wake-up of the other
process serves them all. There is no timer. Large messages go through shared memory, the same that
isolated devices use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from headrace.runtime.errors import ResourceExhausted
from headrace.runtime.isolation.wire.channel import Disconnected
from headrace.runtime.isolation.wire.segment_pool import SegmentPool
from headrace.runtime.isolation.wire.shared_memory import Segment, SegmentTable
from headrace.server.processes import frames
from headrace.server.processes.frames import Broken, Frame, Frames

_log = logging.getLogger(__name__)

INLINE_BYTES: Final = 32 * 1024
"""Larger messages go through shared memory. Smaller ones are copied faster by the socket."""

_READ_BYTES = 256 * 1024
_UNSENT_BYTES = 4 << 20
_MAX_DESCRIPTORS = 16
_MAX_WAITING = 64  # descriptors whose frames have not come
_MAX_SEGMENTS = 1024  # each takes a descriptor
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array("i").itemsize)


class Link:
    """Sends and receives frames. Belongs to the thread of the event loop on which it is made.

    Args:
        end: this process's end of a connected pair of sockets.
        handle: called with each frame of a call, and with each other one that is not the link's.
            If it raises `Broken`, the link is lost.
        lost: called once when the other process has gone, or has sent what it must not send. The
            argument says why.
        max_message: the most bytes of a message that the other process may send.
        pauses: whether this end reads nothing while the other one leaves too much unread. Only one
            end may, or both could wait for each other.
    """

    def __init__(
        self,
        end: socket.socket,
        handle: Callable[[Frame], None],
        lost: Callable[[str], None],
        max_message: int,
        *,
        pauses: bool = False,
    ) -> None:
        end.setblocking(False)
        self._socket = end
        self._handle = handle
        self._lost = lost
        self._max_message = max_message
        self._loop = asyncio.get_running_loop()
        self._frames = Frames(max_message + frames.MAX_CONTROL_BYTES)
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._descriptors: deque[int] = deque()  # received, and not attached yet
        self._table = SegmentTable()
        self._pool = SegmentPool()
        self._lent: dict[int, Segment] = {}  # the other process reads them
        self._out: list[bytes] = []
        self._rest = memoryview(b"")  # of the last write
        self._new: list[Segment] = []  # whose descriptors are to be sent
        self._unsent = 0  # bytes in `_out`
        self._pauses = pauses
        self._paused = False
        self._armed = False
        self._blocked = False
        self.closed = False
        self._loop.add_reader(end.fileno(), self._readable)

    # -- sending --

    def send(self, kind: int, call: int, body: bytes = b"", flags: int = 0) -> None:
        """Sends a frame soon, together with others."""
        self._out.append(frames.header(kind, call, len(body), flags))
        self._unsent += len(body)
        if body:
            self._out.append(body)
        if not self._armed:
            self._armed = True
            self._loop.call_soon(self._flush)

    def send_message(
        self, kind: int, call: int, head: bytes, message: bytes, flags: int = 0
    ) -> None:
        """Sends a frame with a message after `head`."""
        if len(message) > INLINE_BYTES:
            kept = self._share(message)
            if kept is not None:
                segment, flag = kept
                where = head + frames.place(segment, len(message))
                self.send(kind, call, where, flags | flag)
                return
        self.send(kind, call, head + message, flags | frames.INLINE)

    def _share(self, message: bytes) -> tuple[int, int] | None:
        """Copies a message into a segment. Returns its number and the frame's flags, or None if
        no memory is left. Then the caller sends the message over the socket."""
        try:
            segment = self._pool.take(len(message))
        except ResourceExhausted:
            return None
        flag = frames.SHARED
        if segment.descriptor is not None:
            if len(self._new) >= _MAX_DESCRIPTORS or len(self._lent) >= _MAX_SEGMENTS // 2:
                self._pool.give(segment)
                return None
            self._new.append(segment)
            flag |= frames.NEW
        segment.array[: len(message)] = np.frombuffer(message, np.uint8)
        self._lent[segment.number] = segment
        return segment.number, flag

    def _flush(self) -> None:
        self._armed = False
        if not (self.closed or self._blocked):
            self._write()

    def _write(self) -> None:
        try:
            while self._rest or self._out:
                if not self._rest:
                    self._rest = memoryview(b"".join(self._out))
                    self._out.clear()
                    self._unsent = 0
                # Descriptors may come before the frames that they belong to, but not after them.
                send = self._send_descriptors if self._new else self._socket.send
                self._rest = self._rest[send(self._rest) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._lose(error.strerror or "the connection ended")
            return
        blocked = bool(self._rest)
        if blocked != self._blocked:
            self._blocked = blocked
            if blocked:
                self._loop.add_writer(self._socket.fileno(), self._write)
            else:
                self._loop.remove_writer(self._socket.fileno())
        if self._paused and not blocked:
            self._paused = False
            self._loop.add_reader(self._socket.fileno(), self._readable)

    def _send_descriptors(self, data: memoryview) -> int:
        sent = [each.descriptor for each in self._new if each.descriptor is not None]
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", sent))
        count = self._socket.sendmsg((data,), (rights,))
        for each in self._new:
            each.known()
        self._new.clear()
        return count

    # -- receiving --

    def message(self, frame: Frame, offset: int = 0) -> bytes | None:
        """The message of a frame, or None if it has none. It is a copy, because the other process
        could still change what it shares.

        Raises:
            Broken: the message is not where the frame says.
        """
        if frame.flags & frames.INLINE:
            data = frame.body[offset:] if offset else frame.body
            if len(data) > self._max_message:
                raise Broken(f"a message of {len(data)} bytes")
            return data
        if not frame.flags & frames.SHARED:
            return None
        number, size = frames.parse_place(frame.body, offset)
        if frame.flags & frames.NEW:
            self._attach(number)
        try:
            segment = self._table.get(number)
        except Disconnected as error:
            raise Broken(str(error)) from error
        if size > segment.size or size > self._max_message:
            raise Broken(f"a message of {size} bytes in a segment of {segment.size}")
        data = segment.array[:size].tobytes()
        self.send(frames.FREE, number)
        return data

    def _attach(self, number: int) -> None:
        if not self._descriptors or len(self._table) >= _MAX_SEGMENTS:
            raise Broken("shared memory came without its descriptor, or there is too much of it")
        descriptor = self._descriptors.popleft()
        try:
            self._table.add(Segment.attach(number, descriptor))
        except Disconnected as error:
            raise Broken(str(error)) from error

    def _readable(self) -> None:
        try:
            size, ancillary, flags, _ = self._socket.recvmsg_into(
                (self._buffer,), _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error.strerror or "the connection ended")
            return
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array("i")
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
                self._descriptors.extend(received)
        if not size:
            self._lose("the connection ended")
            return
        try:
            if flags & socket.MSG_CTRUNC or len(self._descriptors) > _MAX_WAITING:
                raise Broken("too many descriptors")
            for frame in self._frames.feed(self._buffer[:size]):
                self._take(frame)
                if self.closed:
                    return
            if self._pauses and self._blocked and self._unsent > _UNSENT_BYTES:
                self._paused = True
                self._loop.remove_reader(self._socket.fileno())
        except Broken as error:
            self._lose(str(error))

    def _take(self, frame: Frame) -> None:
        if frame.kind == frames.FREE:
            segment = self._lent.pop(frame.call, None)
            if segment is None:
                raise Broken("a segment came back that was not lent")
            self._pool.give(segment)
            for number in self._pool.forgotten():
                self.send(frames.FORGET, number)
        elif frame.kind == frames.FORGET:
            self._table.forget((frame.call,))
        else:
            self._handle(frame)

    # -- the end --

    def _lose(self, why: str) -> None:
        if not self.closed:
            self.close()
            self._lost(why)

    def close(self) -> None:
        """Ends the connection. What has not been written is lost. Idempotent."""
        if self.closed:
            return
        self.closed = True
        number = self._socket.fileno()
        self._loop.remove_reader(number)
        self._loop.remove_writer(number)
        self._socket.close()
        self._pool.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        for segment in self._new:
            segment.known()
        self._descriptors.clear()
        self._new.clear()
        self._out.clear()
        self._lent.clear()
        self._table = SegmentTable()  # unmaps what the other process shared
