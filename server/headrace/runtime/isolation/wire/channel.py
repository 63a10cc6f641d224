"""Messages between server and worker, over a Unix socket.

A message is a prefix (sizes, number of file descriptors), a header of JSON and a body of bytes. It
never says how to build an object: the reader picks out the fields that it expects. Sizes are
bounded, so that a faulty worker cannot make the server reserve unlimited memory.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from headrace.runtime.errors import Internal

Buffer: TypeAlias = "bytes | memoryview"

MAX_HEADER_BYTES = 64 * 2**20
MAX_BODY_BYTES = 2**20
MAX_DESCRIPTORS = 8
ALIGNMENT = 16
"""How the message's body is aligned in the receiver's memory, in bytes."""

_PREFIX = struct.Struct("<4sIIB")
_MAGIC = b"hrw1"
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array("i").itemsize)
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


_AHEAD_BYTES = 2048
_KNOWN_HEADERS = 16


class Disconnected(Exception):
    """The other process has gone, or sent something that this one cannot read."""


class Message(NamedTuple):
    """A received message. The receiver owns the file descriptors."""

    header: dict[str, Any]
    body: memoryview
    descriptors: tuple[int, ...]


class Channel:
    """One end of a connection. Any thread may send; one thread receives.

    `_sending` keeps messages from mixing, and a close from racing with a send.

    Args:
        lane: each message answers the one before, so a read never finds two messages. Many messages
            repeat an earlier header, so parsed headers are kept and not parsed again.
    """

    def __init__(self, end: socket.socket, *, lane: bool = False) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._ahead = _AHEAD_BYTES if lane else 0
        self._headers: dict[bytes, dict[str, Any]] = {}

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(
        self,
        header: dict[str, Any],
        body: Sequence[Buffer] = (),
        descriptors: Sequence[int] = (),
    ) -> None:
        """Sends a message; the sender still owns the descriptors.

        Raises:
            Disconnected: the other end has gone.
            Internal: the message is too large.
        """
        text = _encode(header).encode()
        text += b" " * (-len(text) % ALIGNMENT)  # so that the body is aligned for arrays
        size = sum(map(len, body))
        if len(text) > MAX_HEADER_BYTES or size > MAX_BODY_BYTES:
            raise Internal(f"a message to or from a worker has {len(text)} + {size} bytes")
        prefix = _PREFIX.pack(_MAGIC, len(text), size, len(descriptors))
        ancillary = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
        )
        data = b"".join((prefix, text, *body))
        with self._sending:
            try:
                sent = self._socket.sendmsg((data,), ancillary)
                if sent < len(data):
                    self._socket.sendall(memoryview(data)[sent:])
            except OSError as error:
                raise Disconnected(str(error)) from error

    def receive(self) -> Message:
        """The next message; waits for it.

        Raises:
            Disconnected: no message comes any more, or what came is not one.
        """
        start, descriptors = self._receive_start()
        try:
            magic, header_size, body_size, count = _PREFIX.unpack_from(start)
            if magic != _MAGIC or header_size > MAX_HEADER_BYTES or body_size > MAX_BODY_BYTES:
                raise Disconnected("the bytes received are not a message")
            if count != len(descriptors):
                raise Disconnected("a message came without its file descriptors")
            came = len(start) - _PREFIX.size
            data = memoryview(bytearray(header_size + body_size))
            if came > len(data):
                raise Disconnected("two messages came where one was due")
            data[:came] = start[_PREFIX.size :]
            self._fill(data[came:])
            header = self._header(bytes(data[:header_size]))
        except (ValueError, RecursionError) as error:
            _close_all(descriptors)
            raise Disconnected(f"a message's header is not JSON: {error}") from error
        except BaseException:
            _close_all(descriptors)
            raise
        return Message(header, data[header_size:], descriptors)

    def shutdown(self) -> None:
        """Ends the connection in both directions. A receiving thread then gets Disconnected."""
        with suppress(OSError):  # the other end has closed it already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket. No thread may be receiving."""
        with self._sending:
            self._socket.close()

    def _header(self, text: bytes) -> dict[str, Any]:
        header = self._headers.get(text)
        if header is None:
            header = json.loads(text)
            if not isinstance(header, dict):
                raise Disconnected("a message's header is not a JSON object")
            if self._ahead and len(text) <= _AHEAD_BYTES:
                if len(self._headers) >= _KNOWN_HEADERS:
                    self._headers.clear()
                self._headers[text] = header
        return header

    def _receive_start(self) -> tuple[memoryview, tuple[int, ...]]:
        """The message's first bytes and its descriptors. The bytes are the prefix; on a lane they
        may go on with more of the message."""
        descriptors: tuple[int, ...] = ()
        start = memoryview(bytearray(_PREFIX.size + self._ahead))
        try:
            got, ancillary, _, _ = self._socket.recvmsg_into(
                (start,), _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise Disconnected(str(error)) from error
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array("i")
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
                descriptors += tuple(received)
        try:
            if not got:
                raise Disconnected("the connection ended")
            self._fill(start[got : _PREFIX.size])
        except Disconnected:
            _close_all(descriptors)
            raise
        return start[: max(got, _PREFIX.size)], descriptors

    def _fill(self, buffer: memoryview) -> None:
        while buffer:
            try:
                got = self._socket.recv_into(buffer)
            except OSError as error:
                raise Disconnected(str(error)) from error
            if not got:
                raise Disconnected("the connection ended inside a message")
            buffer = buffer[got:]


def channels(*, lane: bool = False) -> tuple[Channel, socket.socket]:
    """A new connection: this process's end, and the end for the other. `lane` as in `Channel`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours, lane=lane), theirs


def expect(facts: dict[str, Any], name: str, kind: type[Any]) -> Any:
    """An entry of a header.

    Raises:
        Disconnected: the entry is missing, or has another type.
    """
    value = facts.get(name)
    if not isinstance(value, kind):
        raise Disconnected(f"a message lacks {name!r}")
    return value


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
