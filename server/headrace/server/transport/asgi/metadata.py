"""gRPC's metadata, deadlines and texts in HTTP headers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote, unquote_to_bytes

from headrace.runtime.errors import InvalidArgument

Headers = Sequence[tuple[bytes, bytes]]

CERTIFICATE = b"x-forwarded-client-cert"
_BINARY = "-bin"
# Headers that belong to HTTP, to gRPC itself, or to the server in front.
_NOT_METADATA = frozenset(
    {
        *(b"host", b"content-type", b"content-length", b"te", CERTIFICATE),
        *(b"x-forwarded-proto", b"x-envoy-internal", b"x-envoy-external-address"),
        *(b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding"),
    }
)
_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MOST_DIGITS = 8
# What a status message may contain as it is: printable ASCII, without the sign of an escape.
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class Metadata:
    """The metadata of a call. Decoded whenever somebody goes through them."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Headers) -> None:
        self._headers = headers

    def __iter__(self) -> Iterator[tuple[str, str | bytes]]:
        for name, value in self._headers:
            if name in _NOT_METADATA:
                continue
            key = name.decode("latin-1")
            if not key.endswith(_BINARY):
                yield key, value.decode("latin-1")
                continue
            for part in value.split(b","):  # HTTP may join values of one name
                decoded = _decoded(part.strip())
                if decoded is not None:
                    yield key, decoded


def _decoded(value: bytes) -> bytes | None:
    """The bytes of a binary value. None if it is not Base64."""
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return None


def encoded(metadata: Iterable[tuple[str, str | bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of metadata. Keys that end in ``-bin`` have values of bytes."""
    return [(key.encode("ascii"), _value(value)) for key, value in metadata]


def _value(value: str | bytes) -> bytes:
    if isinstance(value, str):
        return value.encode("ascii")
    return base64.b64encode(value).rstrip(b"=")


def escaped(message: str) -> bytes:
    """The header of a status message."""
    return quote(message, safe=_PLAIN).encode("ascii")


def seconds_of(timeout: bytes) -> float:
    """The seconds of a header ``grpc-timeout``: at most eight digits and a unit, as ``250m``.

    Raises:
        InvalidArgument: the header is not one.
    """
    digits, unit = timeout[:-1], timeout[-1:].decode("latin-1")
    if not digits.isdigit() or len(digits) > _MOST_DIGITS or unit not in _SECONDS:
        raise InvalidArgument("the header is not digits and a unit, as 10S", field="grpc-timeout")
    return int(digits) * _SECONDS[unit]


def certificate_of(header: bytes) -> bytes | None:
    """The client's certificate in PEM form, from the header that the server in front has set.

    None if the header has none.
    """
    for part in header.split(b";"):
        name, _, value = part.partition(b"=")
        if name == b"Cert":
            return unquote_to_bytes(value.strip(b'"'))
    return None
