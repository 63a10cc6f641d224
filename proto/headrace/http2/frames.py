"""Numbers and layouts of HTTP/2's frames (RFC 9113, sections 4, 6 and 7)."""

from __future__ import annotations

import enum
import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first."""

HEAD_BYTES: Final = 9
MAX_WINDOW: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
MIN_FRAME_BYTES: Final = 1 << 14
MAX_FRAME_BYTES: Final = (1 << 24) - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20
LAST_HEADERS: Final = END_STREAM | END_HEADERS


class Setting(enum.IntEnum):
    """The parameters of a SETTINGS frame that mean something here."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(enum.IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


NUMBER: Final = struct.Struct(">I")
ONE_SETTING: Final = struct.Struct(">HI")
HEAD: Final = struct.Struct(">HBBBI")
"""A frame's head: length (upper 16 and lower 8 bits), type, flags, stream."""

MESSAGE_HEAD: Final = struct.Struct(">HBBBIBI")
"""The head of a DATA frame that holds one message, and the message's prefix."""

_pack = HEAD.pack
_pack_message = MESSAGE_HEAD.pack


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before a payload of `length` bytes."""
    return _pack(length >> 8, length & 0xFF, kind, flags, stream)


def message_head(size: int, flags: int, stream: int) -> bytes:
    """What goes before a message of `size` bytes that has a DATA frame to itself."""
    length = size + 5
    return _pack_message(length >> 8, length & 0xFF, DATA, flags, stream, 0, size)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    length = len(payload)
    return _pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def settings(values: dict[Setting, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(ONE_SETTING.pack(*setting) for setting in values.items()))


def window_update(stream: int, more: int) -> bytes:
    """A WINDOW_UPDATE frame. Stream 0 is the connection's window."""
    return _pack(0, 4, WINDOW_UPDATE, 0, stream) + NUMBER.pack(more)


def rst_stream(stream: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return _pack(0, 4, RST_STREAM, 0, stream) + NUMBER.pack(code)


def goaway(last_stream: int, code: int, why: str = "") -> bytes:
    """A GOAWAY frame. `why` is for whoever reads the peer's log."""
    return frame(GOAWAY, 0, 0, NUMBER.pack(last_stream) + NUMBER.pack(code) + why.encode()[:256])


def header_frames(stream: int, block: bytes, size: int, *, end: bool) -> bytes:
    """A header block in as many frames of at most `size` bytes as it needs."""
    ends = END_STREAM if end else 0
    if len(block) <= size:
        return frame(HEADERS, ends | END_HEADERS, stream, block)
    parts = [frame(HEADERS, ends, stream, block[:size])]
    for start in range(size, len(block), size):
        flags = END_HEADERS if start + size >= len(block) else 0
        parts.append(frame(CONTINUATION, flags, stream, block[start : start + size]))
    return b"".join(parts)
