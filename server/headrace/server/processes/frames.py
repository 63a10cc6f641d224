"""The frames that a front end and the engine hand over to each other.

A frame is a header (the size of its body, the number of its call, its kind, flags) and a body. A
front end reads bytes of strangers, so the engine trusts nothing in a frame: sizes are bounded, and
whatever is not as described here raises `Broken`. Nothing in a frame says how to build an object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

# Kinds of frames. Those of a call, in either direction:
BEGIN: Final = 1
"""A call has begun. Front end to engine."""
MESSAGE: Final = 2
"""One message of a call."""
END: Final = 3
"""To the engine: no more messages come. To the front end: the status, and perhaps a message."""
CANCEL: Final = 4
"""The caller has left. Front end to engine."""
ROOM: Final = 5
"""To the front end: it may read so many more bytes. To the engine: so many messages are written."""
# Those of the connection, whose number is not a call's:
FREE: Final = 6
"""The segment with this number has been read."""
FORGET: Final = 7
"""The segment with this number will not be used again."""
SETUP: Final = 8
"""To the front end: what it has to do, as JSON. To the engine: it listens."""
CONNECTIONS: Final = 9
"""How many connections the front end has."""
STOP: Final = 10
"""To the front end: end, after the statuses that came before this frame."""
ASK: Final = 11
"""To the front end: whose connection is this call on? To the engine: the number of that user."""
# One more of a call:
DONE: Final = 12
"""The caller has the status, and has read the replies before it. Front end to engine."""

# Flags of a frame: where its message is.
INLINE: Final = 1
"""The message is the rest of the body."""
SHARED: Final = 2
"""The message is in shared memory. The rest of the body says where."""
NEW: Final = 4
"""The shared memory is new, and its descriptor comes with the frame."""
# Flags of BEGIN.
EAGER: Final = 8
"""The front end reads ahead, because the caller's credential seems to be valid."""
LAST: Final = 16
"""No message comes after this one."""

OVERHEAD: Final = 64
"""The bytes that a message counts for besides its own, so that empty messages are bounded too."""
WINDOW_BYTES: Final = 256 * 1024
"""The bytes of a call's messages that a front end may send before the engine has read them."""
MAX_CONTROL_BYTES: Final = 1 << 20
"""The most bytes of a frame's body, without its message."""

_HEADER = struct.Struct("<IIBB")
_PLACE = struct.Struct("<IQ")
_SIZE = struct.Struct("<I")


class Broken(Exception):
    """The other process sent something that is not a frame, or a frame that it must not send."""


class Frame(NamedTuple):
    kind: int
    flags: int
    call: int
    body: bytes


class Frames:
    """Cuts received bytes into frames.

    Args:
        max_body: the most bytes of a body.
    """

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._rest = bytearray()
        self._needed = _HEADER.size

    def feed(self, data: memoryview) -> Iterator[Frame]:
        """The frames that are complete with these bytes.

        Raises:
            Broken: a body is larger than allowed.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data, self._rest = memoryview(self._rest), bytearray()
        position, end, head = 0, len(data), _HEADER.size
        while end - position >= head:
            size, call, kind, flags = _HEADER.unpack_from(data, position)
            if size > self._max_body:
                raise Broken(f"a frame of {size} bytes")
            after = position + head + size
            if after > end:
                self._needed = head + size
                break
            yield Frame(kind, flags, call, bytes(data[position + head : after]))
            position = after
        else:
            self._needed = head
        self._rest += data[position:]


def header(kind: int, call: int, size: int, flags: int = 0) -> bytes:
    return _HEADER.pack(size, call, kind, flags)


# ---- where a message is in shared memory ----


def place(segment: int, size: int) -> bytes:
    return _PLACE.pack(segment, size)


def parse_place(body: bytes, offset: int) -> tuple[int, int]:
    """The number of a segment, and how many of its bytes are a message."""
    if len(body) != offset + _PLACE.size:
        raise Broken("a message in shared memory without its place")
    segment, size = _PLACE.unpack_from(body, offset)
    return segment, size


# ---- numbers ----


def number(value: int) -> bytes:
    return _SIZE.pack(value)


def parse_number(body: bytes) -> int:
    if len(body) != _SIZE.size:
        raise Broken("a frame without its number")
    (value,) = _SIZE.unpack(body)
    return int(value)
