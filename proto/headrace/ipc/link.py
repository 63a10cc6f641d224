"""Messages between two processes of one machine, over a Unix socket.

A message is a prefix (sizes, number of file descriptors), a header of JSON and a body of bytes. It
never says how to build an object: the reader picks out the fields that it expects. Sizes are
bounded, so that a faulty or hostile process cannot make this one reserve unlimited memory.

One write sends all messages that have been gathered, and one read takes several. Many messages
repeat an earlier header, which is not parsed again.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

Buffer: TypeAlias = "bytes | memoryview"

MAX_HEADER_BYTES: Final = 64 * 2**20
MAX_BODY_BYTES: Final = 2**20
MAX_DESCRIPTORS: Final = 16
CREDIT_BYTES: Final = 128 * 1024
"""So many bytes the system takes for a reader that reads nothing. Whoever may not wait sends no
more before the answers have come."""
ALIGNMENT: Final = 16
"""How a body is aligned in the receiver's memory, in bytes."""

_PREFIX: Final = struct.Struct("<4sIIB3x")
_PREFIX_BYTES: Final = _PREFIX.size
_MAGIC: Final = b"hrw2"
_AHEAD_BYTES: Final = 16 * 1024
_WAIT: Final = int(socket.MSG_CMSG_CLOEXEC)
_DO_NOT_WAIT: Final = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_AT_ONCE: Final = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_KNOWN_HEADERS: Final = 16
_KNOWN_HEADER_BYTES: Final = 2048
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Disconnected(ConnectionError):
    """The other process has gone, or sent something that this one cannot read."""


class TooLong(ValueError):
    """A message is longer than any reader takes."""


class Message(NamedTuple):
    """A received message. The receiver owns the file descriptors."""

    header: dict[str, Any]
    body: memoryview
    descriptors: tuple[int, ...]


class Link:
    """One end of a connection. Any thread may send; one thread receives.

    `_sending` guards what has been gathered, keeps messages from mixing, and a close from racing
    with a send.

    Args:
        end: the socket. If it has a timeout, what waits for it raises TimeoutError.
        most_bytes: of one message that comes.
        most_descriptors: that come at once.
        discard: closes a descriptor that came with no message.
    """

    def __init__(
        self,
        end: socket.socket,
        most_bytes: int = MAX_HEADER_BYTES + MAX_BODY_BYTES,
        most_descriptors: int = MAX_DESCRIPTORS,
        discard: Callable[[int], object] = os.close,
    ) -> None:
        self._socket = end
        self._most_bytes = most_bytes
        self._most_descriptors = most_descriptors
        # CMSG_SPACE would be room for more.
        self._ancillary_bytes = socket.CMSG_LEN(most_descriptors * array("i").itemsize)
        self._discard = discard
        self._sending = threading.Lock()
        self._gathered: list[bytes] = []
        self._headers: dict[bytes, dict[str, Any]] = {}
        # What has come and is not taken yet lies between `_begin` and `_end`.
        self._buffer = memoryview(bytearray(_AHEAD_BYTES))
        self._begin = self._end = 0
        self._wanted = _PREFIX_BYTES  # of the message that has begun to come
        self._descriptors: deque[int] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    # -- sending --

    def send(
        self, data: bytes = b"", descriptors: Sequence[int] = (), within: float | None = None
    ) -> None:
        """Sends what has been gathered, and packed messages. The sender still owns the descriptors.

        Args:
            data: from `packed`, one or several.
            descriptors: those that belong to the messages.
            within: how many seconds to wait until the other end takes anything; None: for ever.

        Raises:
            Disconnected: the other end has gone.
            BlockingIOError: it would have to wait. Nothing was sent.
        """
        if not self._sending.acquire(timeout=-1 if within is None else within):
            raise BlockingIOError("another thread sends")
        try:
            if within is not None and not self._has_room(within):
                raise BlockingIOError("the other end takes nothing")
            if self._gathered:
                data = b"".join((*self._gathered, data))
                self._gathered.clear()
            if not data:
                return
            flags = socket.MSG_NOSIGNAL if within is None else _AT_ONCE
            try:
                if descriptors:
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
                    sent = self._socket.sendmsg((data,), (rights,), flags)
                else:
                    sent = self._socket.send(data, flags)
                if sent < len(data):
                    self._socket.sendall(memoryview(data)[sent:], socket.MSG_NOSIGNAL)
            except (BlockingIOError, TimeoutError):
                raise
            except OSError as error:
                raise Disconnected(str(error)) from error
        finally:
            self._sending.release()

    def gather(self, data: bytes) -> None:
        """Keeps a packed message without descriptors until the next `send`."""
        with self._sending:
            self._gathered.append(data)

    def _has_room(self, seconds: float) -> bool:
        """Whether a small message fits into the connection within so many seconds."""
        ready = select.poll()
        ready.register(self._socket, select.POLLOUT)
        return bool(ready.poll(1000 * seconds))

    # -- receiving --

    def receive(self) -> Message:
        """The next message; waits for it.

        Raises:
            Disconnected: no message comes any more, or what came is not one.
        """
        while (message := self.take()) is None:
            self._read(_WAIT)
        return message

    def read(self) -> None:
        """Reads once what has come. Never waits.

        Raises:
            Disconnected: as `receive`.
        """
        with suppress(BlockingIOError):
            self._read(_DO_NOT_WAIT)

    def take(self) -> Message | None:
        """The next message, or None if not all of it has been read.

        Raises:
            Disconnected: what came is not a message.
        """
        buffer, begin = self._buffer, self._begin
        came = self._end - begin
        if came < _PREFIX_BYTES:
            return None
        magic, header_size, body_size, count = _PREFIX.unpack_from(buffer, begin)
        size = _PREFIX_BYTES + header_size + body_size
        if magic != _MAGIC or size > self._most_bytes:
            raise Disconnected("the bytes received are not a message")
        if came < size:
            self._wanted = size
            return None
        if count > len(self._descriptors):
            raise Disconnected("a message came without its file descriptors")
        body = begin + _PREFIX_BYTES + header_size
        text = bytes(buffer[begin + _PREFIX_BYTES : body])
        header = self._headers.get(text) or self._parsed(text)
        self._begin = begin + size
        self._wanted = _PREFIX_BYTES
        descriptors = tuple(self._descriptors.popleft() for _ in range(count)) if count else ()
        own = memoryview(bytearray(buffer[body : self._begin]))  # arrays may keep it
        # A call of the class would run Python code.
        return tuple.__new__(Message, (header, own, descriptors))

    def has_more(self) -> bool:
        """Whether bytes of another message have come with the last one."""
        return self._begin < self._end

    def shutdown(self) -> None:
        """Ends the connection in both directions. Who receives then gets Disconnected."""
        with suppress(OSError):  # the other end has closed it already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket, and descriptors that came with no message. No thread may be
        receiving."""
        with self._sending:
            self._socket.close()
        while self._descriptors:
            self._discard(self._descriptors.popleft())

    def _read(self, flags: int) -> None:
        """
        Raises:
            BlockingIOError, TimeoutError: nothing has come.
            Disconnected: the other end has gone, or what came is not a message.
        """
        if self._begin < self._end or len(self._buffer) > _AHEAD_BYTES:
            self._make_room()
        else:
            self._begin = self._end = 0
        try:
            got, ancillary, told, _ = self._socket.recvmsg_into(
                (self._buffer[self._end :],), self._ancillary_bytes, flags
            )
        except (BlockingIOError, TimeoutError):
            raise
        except OSError as error:
            raise Disconnected(str(error)) from error
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(array("i", data[: len(data) - len(data) % 4]))
        if not got:
            raise Disconnected("the connection ended")
        if told & socket.MSG_CTRUNC or len(self._descriptors) > 2 * self._most_descriptors:
            raise Disconnected("more descriptors came than are taken")
        self._end += got

    def _make_room(self) -> None:
        """Makes room behind what has come for the rest of the message that has begun to come."""
        begin, came = self._begin, self._end - self._begin
        if came and begin + max(self._wanted, came + 1) <= len(self._buffer):
            return
        buffer = memoryview(bytearray(max(self._wanted, _AHEAD_BYTES)))
        buffer[:came] = self._buffer[begin : self._end]
        self._buffer, self._begin, self._end = buffer, 0, came

    def _parsed(self, text: bytes) -> dict[str, Any]:
        """
        Raises:
            Disconnected: it is not a JSON object.
        """
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Disconnected(f"a message's header is not JSON: {error}") from error
        if not isinstance(header, dict):
            raise Disconnected("a message's header is not a JSON object")
        if len(text) <= _KNOWN_HEADER_BYTES:
            if len(self._headers) >= _KNOWN_HEADERS:
                self._headers.clear()
            self._headers[text] = header
        return header


def links(*, blocking: bool = True) -> tuple[Link, socket.socket]:
    """A new connection: this process's end, and the end for the other.

    Args:
        blocking: whether this process's end may wait.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(blocking)
    return Link(ours), theirs


def packed(header: dict[str, Any], body: Sequence[Buffer] = (), count: int = 0) -> bytes:
    """The bytes of a message with `count` descriptors.

    Raises:
        TooLong: they are too many.
    """
    return joined(header_text(header), body, count)


def header_text(header: dict[str, Any]) -> bytes:
    """The bytes of a header. They are padded, so that the body is aligned for arrays.

    Raises:
        TooLong: they are too many.
    """
    text = _encode(header).encode()
    if len(text) > MAX_HEADER_BYTES - ALIGNMENT:
        raise TooLong(f"a message to another process has a header of {len(text)} bytes")
    return text + b" " * (-len(text) % ALIGNMENT)


def joined(header: bytes, body: Sequence[Buffer], count: int) -> bytes:
    """A message with `count` descriptors.

    Args:
        header: from `header_text`.

    Raises:
        TooLong: the body is too long.
    """
    size = sum(map(len, body))
    if size > MAX_BODY_BYTES:
        raise TooLong(f"a message to another process has a body of {size} bytes")
    return b"".join((_PREFIX.pack(_MAGIC, len(header), size, count), header, *body))
