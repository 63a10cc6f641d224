"""Messages between server and worker, over a Unix socket.

A message is a prefix (sizes, number of file descriptors), a header of JSON and a body of bytes. It
never says how to build an object: the reader picks out the fields that it expects. Sizes are
bounded, so that a faulty worker cannot make the server reserve unlimited memory.
"""

from __future__ import annotations

import json
import os
import select
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
MAX_DESCRIPTORS = 16
ALIGNMENT = 16
"""How the message's body is aligned in the receiver's memory, in bytes."""

_PREFIX = struct.Struct("<4sIIB3x")
PREFIX_BYTES = _PREFIX.size
_MAGIC = b"hrw2"
ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array("i").itemsize)
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


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
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(
        self,
        header: dict[str, Any],
        body: Sequence[Buffer] = (),
        descriptors: Sequence[int] = (),
        *,
        within: float | None = None,
    ) -> None:
        """Sends a message; the sender still owns the descriptors.

        Args:
            within: how many seconds to wait until the other end takes the message; None: for ever.

        Raises:
            Disconnected: the other end has gone.
            Internal: the message is too large.
            BlockingIOError: it would have to wait. Nothing was sent.
        """
        data = packed(header, body, len(descriptors))
        if not self._sending.acquire(timeout=-1 if within is None else within):
            raise BlockingIOError("another thread sends")
        try:
            if within is not None and not _has_room(self._socket, within):
                raise BlockingIOError("the other end takes nothing")
            send_all(self._socket, data, descriptors)
        finally:
            self._sending.release()

    def receive(self) -> Message:
        """The next message; waits for it.

        Raises:
            Disconnected: no message comes any more, or what came is not one.
        """
        start, descriptors = self._receive_start()
        try:
            header_size, body_size, count = sizes(start)
            if count != len(descriptors):
                raise Disconnected("a message came without its file descriptors")
            data = memoryview(bytearray(header_size + body_size))
            self._fill(data)
            header = header_of(bytes(data[:header_size]))
        except BaseException:
            close_all(descriptors)
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

    def _receive_start(self) -> tuple[memoryview, tuple[int, ...]]:
        """The message's prefix and its descriptors."""
        start = memoryview(bytearray(PREFIX_BYTES))
        try:
            got, ancillary, _, _ = self._socket.recvmsg_into(
                (start,), ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise Disconnected(str(error)) from error
        descriptors = tuple(descriptors_in(ancillary))
        try:
            if not got:
                raise Disconnected("the connection ended")
            self._fill(start[got:])
        except Disconnected:
            close_all(descriptors)
            raise
        return start, descriptors

    def _fill(self, buffer: memoryview) -> None:
        while buffer:
            try:
                got = self._socket.recv_into(buffer)
            except OSError as error:
                raise Disconnected(str(error)) from error
            if not got:
                raise Disconnected("the connection ended inside a message")
            buffer = buffer[got:]


def _has_room(end: socket.socket, seconds: float) -> bool:
    """Whether a small message fits into the connection within so many seconds."""
    ready = select.poll()
    ready.register(end, select.POLLOUT)
    return bool(ready.poll(1000 * seconds))


def channels() -> tuple[Channel, socket.socket]:
    """A new connection: this process's end, and the end for the other."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours), theirs


def packed(header: dict[str, Any], body: Sequence[Buffer], count: int) -> bytes:
    """The bytes of a message with `count` descriptors.

    Raises:
        Internal: the message is too large.
    """
    return joined(header_text(header), body, count)


def header_text(header: dict[str, Any]) -> bytes:
    """The bytes of a header. They are padded, so that the body is aligned for arrays.

    Raises:
        Internal: the header is too large.
    """
    text = _encode(header).encode()
    if len(text) > MAX_HEADER_BYTES - ALIGNMENT:
        raise Internal(f"a message to or from a worker has a header of {len(text)} bytes")
    return text + b" " * (-len(text) % ALIGNMENT)


def joined(header: bytes, body: Sequence[Buffer], count: int) -> bytes:
    """A message with `count` descriptors.

    Args:
        header: from `header_text`.

    Raises:
        Internal: the body is too large.
    """
    size = sum(map(len, body))
    if size > MAX_BODY_BYTES:
        raise Internal(f"a message to or from a worker has a body of {size} bytes")
    return b"".join((_PREFIX.pack(_MAGIC, len(header), size, count), header, *body))


def sizes(message: memoryview, offset: int = 0) -> tuple[int, int, int]:
    """The bytes of the header and of the body, and the number of descriptors, from the prefix.

    Raises:
        Disconnected: it is not a message, or too large.
    """
    magic, header_size, body_size, count = _PREFIX.unpack_from(message, offset)
    if magic != _MAGIC or header_size > MAX_HEADER_BYTES or body_size > MAX_BODY_BYTES:
        raise Disconnected("the bytes received are not a message")
    return header_size, body_size, count


def header_of(text: bytes) -> dict[str, Any]:
    """The parsed header.

    Raises:
        Disconnected: it is not a JSON object.
    """
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Disconnected(f"a message's header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise Disconnected("a message's header is not a JSON object")
    return header


def send_all(end: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    """Sends the bytes of messages, with the descriptors of all of them.

    Raises:
        Disconnected: the other end has gone.
    """
    try:
        if descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
            sent = end.sendmsg((data,), (rights,))
        else:
            sent = end.send(data)
        if sent < len(data):
            end.sendall(memoryview(data)[sent:])
    except OSError as error:
        raise Disconnected(str(error)) from error


def descriptors_in(ancillary: Sequence[tuple[int, int, bytes]]) -> array[int]:
    """The descriptors that came with some bytes. The receiver owns them."""
    received = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return received


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
