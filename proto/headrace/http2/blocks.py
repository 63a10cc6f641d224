"""Header blocks: what they mean, and what a list of fields must look like (RFC 9113, 8)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, TypeAlias, TypeVar

from headrace.http2.compression import BadBlock, Decoder, TooManyFields
from headrace.http2.faults import ConnectionFault, StreamFault
from headrace.http2.frames import ErrorCode

T = TypeVar("T")

Fields: TypeAlias = list[tuple[bytes, bytes]]

_TIMES: Final = 4
_REMEMBERED_BYTES: Final = 32 << 10
_LARGEST_REMEMBERED: Final = 8 << 10
"""The most bytes that a remembered block and its list of fields may take together. The list may be
a thousand times as large as the block, in which one byte can stand for a whole field."""
_OF_A_CONNECTION: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_REQUEST: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_is_name: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch
_is_value: Final = re.compile(rb"(?![ \t])[^\0\r\n]*(?<![ \t])").fullmatch


class ListTooLarge(StreamFault):
    """A list of header fields is larger than allowed."""


class BlockDecoder:
    """Decodes a connection's header blocks, in their order.

    A peer repeats its blocks: gRPC's clients send the same bytes for every call of a method. A
    block that changed no table is remembered with what it meant, until a table changes.

    Args:
        most_bytes: the largest list of fields.

    Attributes:
        known: the blocks that are remembered.
        fields: how many fields of the last block had to be decoded.
    """

    __slots__ = ("_decoder", "_known_bytes", "_most_bytes", "fields", "known")

    def __init__(self, most_bytes: int) -> None:
        self._decoder = Decoder(_TIMES * most_bytes)
        self._most_bytes = most_bytes
        self._known_bytes = 0
        self.known: dict[bytes, Any] = {}
        self.fields = 0

    def decode(self, block: bytes, meaning: type[T]) -> T:
        """What a block means.

        Args:
            meaning: is made of the list of fields. It may raise a `StreamFault`.

        Raises:
            ConnectionFault: the block cannot be decoded, so that no later one can.
            StreamFault: the list is too large, or `meaning` refuses it.
        """
        self.fields = 0
        known = self.known.get(block)
        if type(known) is meaning:
            return known
        decoder = self._decoder
        changes = decoder.changes
        try:
            fields, size = decoder.decode(block)
        except TooManyFields:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, "the list of header fields is far too large"
            ) from None
        except BadBlock:
            raise ConnectionFault(
                ErrorCode.COMPRESSION_ERROR, "a header block cannot be decoded"
            ) from None
        # A table that changed gives remembered blocks another meaning, whatever this one means.
        changed = decoder.changes != changes
        if changed:
            self.known.clear()
            self._known_bytes = 0
        self.fields = len(fields)
        if size > self._most_bytes:
            raise ListTooLarge(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"the header fields take {size} bytes, and at most {self._most_bytes} are read",
            )
        meant = meaning(fields)  # type: ignore[call-arg]
        size += len(block)
        if not changed and size <= _LARGEST_REMEMBERED:
            self._remember(block, meant, size)
        return meant

    def _remember(self, block: bytes, meant: object, size: int) -> None:
        known = self.known
        if block not in known:
            self._known_bytes += size
            if self._known_bytes > _REMEMBERED_BYTES:
                known.clear()
                self._known_bytes = size
        known[block] = meant


def literal(name: bytes, value: bytes) -> bytes:
    """A field that is written out and changes no table (RFC 7541, 6.2.2).

    So a block is the same bytes on every connection, whatever was sent before.
    """
    return b"\0" + _string(name) + _string(value)


def block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A header block that changes no table."""
    return b"".join([literal(name, value) for name, value in fields])


def _string(text: bytes) -> bytes:
    """A length of seven bits and more (RFC 7541, 5.1), and the bytes themselves."""
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    length -= 127
    encoded = bytearray(b"\x7f")
    while length >= 128:
        encoded.append(length & 127 | 128)
        length >>= 7
    encoded.append(length)
    return bytes(encoded) + text


def check_fields(fields: Fields) -> int:
    """Checks fields of which none may be a pseudo-header field (RFC 9113, 8.2).

    Returns:
        The value of content-length, -1 without one.

    Raises:
        StreamFault: one of them may not be in a message.
    """
    length = -1
    for name, value in fields:
        if _is_name(name) is None:
            raise _malformed(f"{_shown(name)} is not the name of a header field")
        if _is_value(value) is None:
            raise _bad_value(name)
        if name in _OF_A_CONNECTION:
            raise _malformed(f"{_shown(name)} has no place in HTTP/2")
        if name == b"te" and value != b"trailers":
            raise _malformed("te may only be trailers")
        if name == b"content-length":
            if not value.isdigit() or len(value) > 18 or length not in (-1, int(value)):
                raise _malformed("content-length is not one number")
            length = int(value)
    return length


def split_request(fields: Fields) -> tuple[dict[bytes, bytes], Fields]:
    """The pseudo-header fields of a request, and the others, unchecked (RFC 9113, 8.3.1).

    Raises:
        StreamFault: they are not those of a request.
    """
    pseudo, rest = _split(fields)
    if not _REQUEST.issuperset(pseudo):
        raise _malformed("an unknown pseudo-header field")
    method = pseudo.get(b":method")
    if method == b"CONNECT":
        if b":authority" not in pseudo or b":scheme" in pseudo or b":path" in pseudo:
            raise _malformed("CONNECT takes an authority alone")
    elif not method or not pseudo.get(b":scheme") or not pseudo.get(b":path"):
        raise _malformed("a request has a method, a scheme and a path")
    return pseudo, rest


def split_response(fields: Fields) -> tuple[int, Fields]:
    """The status of a response, and the other fields, unchecked.

    Raises:
        StreamFault: they are not those of a response.
    """
    pseudo, rest = _split(fields)
    status = pseudo.get(b":status", b"")
    if len(pseudo) != 1 or len(status) != 3 or not status.isdigit():
        raise _malformed("a response has one status of three digits, and no other pseudo-header")
    return int(status), rest


def _split(fields: Fields) -> tuple[dict[bytes, bytes], Fields]:
    pseudo: dict[bytes, bytes] = {}
    for position, (name, value) in enumerate(fields):
        if name[:1] != b":":
            return pseudo, fields[position:]
        if name in pseudo:
            raise _malformed(f"{_shown(name)} comes twice")
        if _is_value(value) is None:
            raise _bad_value(name)
        pseudo[name] = value
    return pseudo, []


def _bad_value(name: bytes) -> StreamFault:
    return _malformed(
        f"the value of {_shown(name)} begins or ends with white space, or holds a forbidden byte"
    )


def _malformed(why: str) -> StreamFault:
    return StreamFault(ErrorCode.PROTOCOL_ERROR, why)


def _shown(name: bytes) -> str:
    return repr(name[:64])[1:]
