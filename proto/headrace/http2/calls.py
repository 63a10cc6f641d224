"""The header blocks of gRPC's calls: metadata, deadlines, statuses.

See "gRPC over HTTP2" in gRPC's documentation (PROTOCOL-HTTP2.md).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from headrace.http2.blocks import (
    Fields,
    block,
    check_fields,
    literal,
    split_request,
    split_response,
)
from headrace.http2.messages import ENCODINGS

Metadatum: TypeAlias = "tuple[str, str | bytes]"
Metadata: TypeAlias = "Sequence[Metadatum]"

UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNKNOWN: Final = 2

_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_OWN: Final = frozenset(
    (b"te", b"content-type", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding")
)
"""Fields that the protocol reads itself."""
_OF_TRAILERS: Final = frozenset((b"grpc-status", b"grpc-message", b"content-type"))
_GRPC: Final = b"application/grpc"
_SAFE: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_VALUES: Final = 64
"""How many values a field may hold: each costs as much as a field, and can be one byte."""
_MAX_TIMEOUT_DIGITS: Final = 8


class RequestHead:
    """The beginning of a call, as its caller sent it. Calls with the same block share one.

    Attributes:
        path: the path of the method, "/package.Service/Method".
        metadata: keys and values; values of keys that end with -bin are bytes.
        timeout: in seconds; None without a deadline.
        encoding: how messages are compressed that say so.
        length: the content-length; -1 without one.
        refused: a gRPC status and a text, if the call cannot be served.
        http: an HTTP status and a text, if this is not a call of gRPC.
    """

    __slots__ = (
        "encoding",
        "http",
        "length",
        "metadata",
        "path",
        "refused",
        "timeout",
    )

    def __init__(self, fields: Fields) -> None:
        """
        Raises:
            StreamFault: the fields are not those of a request.
        """
        pseudo, rest = split_request(fields)
        self.length = check_fields(rest)
        self.path = pseudo.get(b":path", b"").decode("latin-1")
        self.timeout: float | None = None
        self.encoding = "identity"
        self.refused: tuple[int, str] | None = None
        self.http: tuple[int, str] | None = None
        self.metadata: Metadata = ()
        kind = b""
        for name, value in rest:
            if name == b"content-type":
                kind = value
            elif name == b"grpc-timeout":
                self.timeout = seconds_of(value)
                if self.timeout is None:
                    self.refused = INTERNAL, f"grpc-timeout is not a time: {value[:32]!r}"
            elif name == b"grpc-encoding":
                self.encoding = value.decode("latin-1")
                if self.encoding not in ENCODINGS:
                    known = ", ".join(ENCODINGS)
                    self.refused = (
                        UNIMPLEMENTED,
                        f"messages compressed by {self.encoding[:32]!r} are not read; use {known}",
                    )
        if not is_grpc(kind):
            self.http = 415, "this port speaks gRPC: send content-type application/grpc"
        elif pseudo.get(b":method") != b"POST":
            self.http = 405, "gRPC's calls are sent by POST"
        try:
            self.metadata = metadata_of(rest, _OWN)
        except ValueError as error:
            self.refused = INTERNAL, str(error)


class ResponseHead:
    """The beginning of a response.

    Attributes:
        status: HTTP's status.
        is_grpc: whether the response is gRPC's.
        encoding: how messages are compressed that say so.
        fields: all fields, for `Trailers` if the response has nothing else.
    """

    __slots__ = ("encoding", "fields", "is_grpc", "length", "metadata", "status")

    def __init__(self, fields: Fields) -> None:
        """
        Raises:
            StreamFault: the fields are not those of a response.
        """
        self.status, self.fields = split_response(fields)
        self.length = check_fields(self.fields)
        known = dict(self.fields)
        self.is_grpc = is_grpc(known.get(b"content-type", b""))
        self.encoding = known.get(b"grpc-encoding", b"identity").decode("latin-1")
        self.metadata = metadata_of(self.fields, _OWN | _OF_TRAILERS, lenient=True)


class Trailers:
    """The end of a response.

    Attributes:
        code: the number of gRPC's status; None if the trailers name none.
        message: the text of the status.
        metadata: the other fields.
    """

    __slots__ = ("code", "message", "metadata")

    def __init__(self, fields: Fields) -> None:
        """
        Raises:
            StreamFault: the fields are not those of trailers.
        """
        check_fields(fields)
        known = dict(fields)
        code = known.get(b"grpc-status", b"")
        self.code = int(code) if code.isdigit() and len(code) < 9 else None
        self.message = unquote_to_bytes(known.get(b"grpc-message", b"")).decode("utf-8", "replace")
        self.metadata = metadata_of(fields, _OF_TRAILERS, lenient=True)


def is_grpc(content_type: bytes) -> bool:
    """Whether a content type is that of gRPC's protobuf messages."""
    rest = content_type[len(_GRPC) :]
    return content_type.startswith(_GRPC) and (not rest or rest[:1] in b"+;")


def seconds_of(timeout: bytes) -> float | None:
    """The seconds of a grpc-timeout. None if it is none."""
    digits, unit = timeout[:-1], timeout[-1:]
    if unit not in _UNITS or not digits.isdigit() or len(digits) > _MAX_TIMEOUT_DIGITS:
        return None
    return int(digits) * _UNITS[unit]


def timeout_of(seconds: float) -> bytes:
    """The grpc-timeout of a deadline so many seconds away. It has three digits at least, so that
    calls with the same deadline send the same bytes."""
    for unit, factor in ((b"n", 1e9), (b"u", 1e6), (b"m", 1e3), (b"S", 1.0), (b"M", 1 / 60)):
        number = int(seconds * factor)
        if number < 100_000:
            return str(max(number, 1)).encode() + unit
    return str(min(int(seconds / 3600), 99_999_999)).encode() + b"H"


def metadata_of(
    fields: Fields, without: frozenset[bytes] = frozenset(), *, lenient: bool = False
) -> Metadata:
    """Metadata as gRPC's Python API has them.

    Args:
        lenient: leaves out values that are not what their names promise.

    Raises:
        ValueError: a value is not base64, or a field has very many values.
    """
    metadata: list[Metadatum] = []
    for name, value in fields:
        if name in without:
            continue
        key = name.decode("latin-1")
        if not key.endswith("-bin"):
            metadata.append((key, value.decode("latin-1")))
            continue
        if value.count(b",") >= _VALUES:
            if not lenient:
                raise ValueError(f"{key!r} has more than {_VALUES} values in one field")
            continue
        for part in value.split(b","):
            try:
                padded = part.strip() + b"=" * (-len(part.strip()) % 4)
                metadata.append((key, base64.b64decode(padded, validate=True)))
            except binascii.Error:
                if not lenient:
                    raise ValueError(f"the value of {key!r} is not base64") from None
    return tuple(metadata)


def fields_of(metadata: Iterable[Metadatum]) -> list[tuple[bytes, bytes]]:
    """Header fields of metadata.

    Raises:
        ValueError: a key or a value cannot be sent.
    """
    fields: list[tuple[bytes, bytes]] = []
    for key, value in metadata:
        name = key.encode("latin-1")
        if key.endswith("-bin"):
            raw = value if isinstance(value, bytes) else value.encode()
            fields.append((name, base64.b64encode(raw).rstrip(b"=")))
        else:
            text = value if isinstance(value, bytes) else value.encode("ascii")
            if not all(0x20 <= code < 0x7F for code in text):
                raise ValueError(f"the value of {key!r} holds bytes that cannot be sent")
            fields.append((name, text.strip()))
    check_fields([(name, value) for name, value in fields if name not in _OWN])
    return fields


def request_block(
    path: str,
    authority: str,
    *,
    scheme: str = "http",
    timeout: float | None = None,
    metadata: Iterable[Metadatum] = (),
    user_agent: str = "",
) -> bytes:
    """The header block of a call.

    Raises:
        ValueError: the metadata cannot be sent.
    """
    parts = [
        b"\x83",  # :method POST, by its place in the static table
        b"\x87" if scheme == "https" else b"\x86",
        literal(b":path", path.encode()),
        literal(b":authority", authority.encode()),
        literal(b"te", b"trailers"),
        literal(b"content-type", _GRPC),
        literal(b"grpc-accept-encoding", b"identity, gzip, deflate"),
    ]
    if timeout is not None:
        parts.append(literal(b"grpc-timeout", timeout_of(timeout)))
    if user_agent:
        parts.append(literal(b"user-agent", user_agent.encode()))
    parts.append(block(fields_of(metadata)))
    return b"".join(parts)


RESPONSE: Final = b"\x88" + literal(b"content-type", _GRPC)
"""The block of a response that goes on: status 200."""

_ENCODINGS: Final = literal(b"grpc-accept-encoding", ", ".join(ENCODINGS).encode())


def trailers_block(code: int, message: str = "", metadata: Iterable[Metadatum] = ()) -> bytes:
    """The block of a response's trailers.

    Raises:
        ValueError: the metadata cannot be sent.
    """
    parts = [literal(b"grpc-status", str(code).encode())]
    if message:
        parts.append(literal(b"grpc-message", _percent(message).encode()))
    if code == UNIMPLEMENTED:
        parts.append(_ENCODINGS)
    if metadata:
        parts.append(block(fields_of(metadata)))
    return b"".join(parts)


def _percent(text: str) -> str:
    """A status' text in percent-encoding. No field of HTTP/2 may begin or end with a space."""
    encoded = quote(text, safe=_SAFE)
    inner = encoded.strip(" ")
    if inner == encoded:
        return encoded
    start = len(encoded) - len(encoded.lstrip(" "))
    return "%20" * start + inner + "%20" * (len(encoded) - start - len(inner))


def plain_block(status: int, length: int) -> bytes:
    """The block of a response in plain text."""
    fields = [(b":status", str(status).encode())]
    fields += [(b"content-type", b"text/plain; charset=utf-8")]
    return block([*fields, (b"content-length", str(length).encode())])


def code_of_http(status: int) -> int:
    """gRPC's status for a response of HTTP without one (http-grpc-status-mapping.md)."""
    return {400: 13, 401: 16, 403: 7, 404: 12, 429: 14, 502: 14, 503: 14, 504: 14}.get(
        status, UNKNOWN
    )
