"""The frames that a front end and the engine hand over to each other.

A frame is a header (the size of its body, the number of its call, its kind, flags) and a body. A
front end reads bytes of strangers, so the engine trusts nothing in a frame: sizes are bounded, and
whatever is not as described here raises `Broken`. Nothing in a frame says how to build an object.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

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
_BEGIN = struct.Struct("<dHI")
_PLACE = struct.Struct("<IQ")
_SIZE = struct.Struct("<I")
_KNOWN_CALLERS = 1024
_KNOWN_BYTES = 4096
_BINARY = "-bin"
_CODES: Final = range(17)

Metadata: TypeAlias = "tuple[tuple[str, str | bytes], ...]"


class Broken(Exception):
    """The other process sent something that is not a frame, or a frame that it must not send."""


class Frame(NamedTuple):
    kind: int
    flags: int
    call: int
    body: bytes


class Caller(NamedTuple):
    """What gRPC says of the caller.

    Attributes:
        certificate: the verified certificate of the connection in PEM form; "" without one.
    """

    peer: str
    metadata: Metadata
    certificate: str = ""


class Begin(NamedTuple):
    """The beginning of a call.

    Attributes:
        deadline: on `time.monotonic`'s clock, which all processes share; None without one.
        method: its number in the table that the engine gave to the front end.
        offset: where the message begins in the frame's body.
    """

    deadline: float | None
    method: int
    caller: Caller
    offset: int


class Status(NamedTuple):
    """How a call ended.

    Attributes:
        code: gRPC's number; 0 is OK.
        offset: where the message begins in the frame's body.
    """

    code: int
    details: str
    trailing: Metadata
    offset: int = 0


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


# ---- the beginning and the end of a call ----


def begin(deadline: float | None, method: int, caller: bytes) -> bytes:
    """The body of BEGIN up to the message.

    Args:
        caller: from `Callers.to_bytes`.
    """
    return _BEGIN.pack(math.inf if deadline is None else deadline, method, len(caller)) + caller


def parse_begin(body: bytes, methods: int, callers: Callers) -> Begin:
    """
    Args:
        methods: how many methods there are.
    """
    if len(body) < _BEGIN.size:
        raise Broken("a call without its beginning")
    deadline, method, size = _BEGIN.unpack_from(body)
    offset = _BEGIN.size + size
    if method >= methods or size > MAX_CONTROL_BYTES or offset > len(body) or math.isnan(deadline):
        raise Broken("the beginning of a call is not valid")
    caller = callers.from_bytes(body[_BEGIN.size : offset])
    return Begin(None if deadline == math.inf else deadline, method, caller, offset)


class Callers:
    """Callers as bytes, and bytes as callers. Most calls of a caller are alike, so recent callers
    with few bytes are remembered. Each end of a connection has its own."""

    def __init__(self) -> None:
        self._bytes: dict[Caller, bytes] = {}
        self._callers: dict[bytes, Caller] = {}

    def to_bytes(self, caller: Caller) -> bytes:
        data = self._bytes.get(caller)
        if data is None:
            facts = [caller.peer, _metadata_to_json(caller.metadata), caller.certificate]
            data = json.dumps(facts, separators=(",", ":")).encode()
            _remember(self._bytes, caller, data, len(data))
        return data

    def from_bytes(self, data: bytes) -> Caller:
        caller = self._callers.get(data)
        if caller is None:
            match _parse(data):
                case [str(peer), list(metadata), str(certificate)]:
                    caller = Caller(peer, _metadata_from_json(metadata), certificate)
                case _:
                    raise Broken("the facts of a caller are not valid")
            _remember(self._callers, data, caller, len(data))
        return caller


def _remember(known: dict[Any, Any], key: Any, value: Any, size: int) -> None:
    if size <= _KNOWN_BYTES:
        if len(known) >= _KNOWN_CALLERS:
            del known[next(iter(known))]
        known[key] = value


_DONE: Final = _SIZE.pack(0)


def status(code: int, details: str, trailing: Metadata) -> bytes:
    """The body of END up to the message."""
    if not (code or details or trailing):
        return _DONE
    facts = [code, details, _metadata_to_json(trailing)]
    data = json.dumps(facts, separators=(",", ":")).encode()
    return _SIZE.pack(len(data)) + data


def parse_status(body: bytes) -> Status:
    if len(body) < _SIZE.size:
        raise Broken("a call without its status")
    (size,) = _SIZE.unpack_from(body)
    if not size:
        return Status(0, "", (), _SIZE.size)
    offset = _SIZE.size + size
    if offset > len(body):
        raise Broken("a status that is cut off")
    match _parse(body[_SIZE.size : offset]):
        case [int(code), str(details), list(trailing)] if code in _CODES:
            return Status(code, details, _metadata_from_json(trailing), offset)
    raise Broken("a status is not valid")


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Broken("a frame is not JSON") from error


def _metadata_to_json(metadata: Metadata) -> list[list[str]]:
    return [[key, value.hex() if isinstance(value, bytes) else value] for key, value in metadata]


def _metadata_from_json(entries: Sequence[Any]) -> Metadata:
    """The metadata. Values of keys that end in ``-bin`` are bytes, as in gRPC."""
    found: list[tuple[str, str | bytes]] = []
    for entry in entries:
        match entry:
            case [str(key), str(value)]:
                try:
                    found.append((key, bytes.fromhex(value) if key.endswith(_BINARY) else value))
                except ValueError:
                    raise Broken("metadata that are not hexadecimal") from None
            case _:
                raise Broken("metadata are not pairs")
    return tuple(found)
