"""A connection for requests to a worker and for their answers, in the order of the requests.

A lane is a `Channel` for many small messages. One write sends all messages that have been gathered,
and one read takes several. Many messages repeat an earlier header, which is not parsed again.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from headrace.runtime.isolation.wire.channel import (
    ANCILLARY_BYTES,
    MAX_DESCRIPTORS,
    PREFIX_BYTES,
    Disconnected,
    Message,
    close_all,
    descriptors_in,
    header_of,
    send_all,
    sizes,
)

_AHEAD_BYTES: Final = 16 * 1024
_WAIT: Final = int(socket.MSG_CMSG_CLOEXEC)
_DO_NOT_WAIT: Final = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_KNOWN_HEADERS: Final = 16
_KNOWN_HEADER_BYTES: Final = 2048


class Lane:
    """One end. It belongs to one request or batch of requests at a time: one thread sends, and one
    thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._headers: dict[bytes, dict[str, Any]] = {}
        self._gathered: list[bytes] = []
        # What has come and is not taken yet lies between `_begin` and `_end`.
        self._buffer = memoryview(bytearray(_AHEAD_BYTES))
        self._begin = self._end = 0
        self._descriptors: deque[int] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    def gather(self, *messages: bytes) -> None:
        """Keeps packed messages until the next `flush`."""
        self._gathered.extend(messages)

    def flush(self, descriptors: Sequence[int] = ()) -> None:
        """Sends the gathered messages, and the descriptors that belong to them. The sender still
        owns the descriptors.

        Raises:
            Disconnected: the other end has gone.
        """
        self._send(descriptors)

    def receive(self) -> Message:
        """The next message; waits for it.

        Raises:
            Disconnected: no message comes any more, or what came is not one.
        """
        while True:
            message = self.take()
            if message is not None:
                return message
            self._read(_WAIT)

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
        if came < PREFIX_BYTES:
            return None
        header_size, body_size, count = sizes(buffer, begin)
        size = PREFIX_BYTES + header_size + body_size
        if came < size:
            return None
        if count > len(self._descriptors):
            raise Disconnected("a message came without its file descriptors")
        body = begin + PREFIX_BYTES + header_size
        header = self._header(bytes(buffer[begin + PREFIX_BYTES : body]))
        self._begin = begin + size
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
        """Closes the socket. No thread may be receiving."""
        self._socket.close()
        close_all(self._descriptors)
        self._descriptors.clear()

    def _send(self, descriptors: Sequence[int]) -> None:
        gathered = self._gathered
        if not gathered:
            return
        data = gathered[0] if len(gathered) == 1 else b"".join(gathered)
        gathered.clear()
        send_all(self._socket, data, descriptors)

    def _read(self, flags: int) -> None:
        """
        Raises:
            BlockingIOError: nothing has come, and `flags` forbid to wait.
            Disconnected: the other end has gone, or what came is not a message.
        """
        self._make_room()
        try:
            got, ancillary, _, _ = self._socket.recvmsg_into(
                (self._buffer[self._end :],), ANCILLARY_BYTES, flags
            )
        except BlockingIOError:
            raise
        except OSError as error:
            raise Disconnected(str(error)) from error
        if ancillary:
            self._descriptors.extend(descriptors_in(ancillary))
        if not got:
            raise Disconnected("the connection ended")
        if len(self._descriptors) > 2 * MAX_DESCRIPTORS:
            raise Disconnected("descriptors came without their messages")
        self._end += got

    def _make_room(self) -> None:
        """Makes room behind what has come for the rest of the message that has begun to come."""
        begin, came = self._begin, self._end - self._begin
        size = PREFIX_BYTES
        if came >= PREFIX_BYTES:
            size += sum(sizes(self._buffer, begin)[:2])
        if not came:
            self._begin = self._end = 0
            if len(self._buffer) > _AHEAD_BYTES:
                self._buffer = memoryview(bytearray(_AHEAD_BYTES))
        elif begin + max(size, came + 1) > len(self._buffer):
            buffer = memoryview(bytearray(max(size, _AHEAD_BYTES)))
            buffer[:came] = self._buffer[begin : self._end]
            self._buffer, self._begin, self._end = buffer, 0, came

    def _header(self, text: bytes) -> dict[str, Any]:
        header = self._headers.get(text)
        if header is None:
            header = header_of(text)
            if len(text) <= _KNOWN_HEADER_BYTES:
                if len(self._headers) >= _KNOWN_HEADERS:
                    self._headers.clear()
                self._headers[text] = header
        return header


def lanes() -> tuple[Lane, socket.socket]:
    """A new connection: this process's end, and the end for the other."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Lane(ours), theirs
