"""Bounds the memory that a message takes, before protobuf builds the message.

A part of a message, such as an empty string or an entry of a map, takes two bytes on the wire and
up to seventy in memory. So the parts of a large message are counted first, at all depths, by
walking the wire format (https://protobuf.dev/programming-guides/encoding/). A message is not read
at all if its bytes cannot hold more parts than are allowed. A long field is passed over in one
step.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from headrace.protobuf.fields import read_varint
from headrace.wire.codec import CodecError

MAX_PARTS: Final = 1 << 20
"""The most parts of a message of Infer or InferStream. They take at most 100 MB in memory, with
everything that is built from them."""
MAX_CONTROL_PARTS: Final = 1 << 17
"""The most parts of a message of any other method. A load may name a device for each layer of a
large network."""

_LEAST_BYTES: Final = 2
"""The fewest bytes that a part takes: its tag, and its length or value."""
_SHORT: Final = 24
"""Messages of fewer bytes are not read. They count as if they held the smallest parts only."""
_DEPTH: Final = 100
"""How deep messages may be nested. protobuf has the same limit."""

_32_BITS: Final = 0xFFFF_FFFF
"""The bits that protobuf reads of a tag and of a length. It ignores higher ones."""
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


def check_parts(message_type: Any, data: bytes, limit: int) -> None:
    """Checks that a message has at most `limit` parts, including the parts in its parts.

    An entry of a map of strings counts as one part. In a packed field, and in a message of fewer
    than 24 bytes, every two bytes count as one part. The check ends as soon as the bytes that are
    left cannot hold more parts than are still allowed: a part takes at least two bytes.

    Raises:
        CodecError: `data` has more parts, is no message of this type, or holds groups, which
            messages of proto3 do not.
    """
    if len(data) > _LEAST_BYTES * limit:
        _count(message_type.DESCRIPTOR, data, limit)


def malformed(descriptor: Any) -> CodecError:
    """The error for bytes that are not a message of this type."""
    return CodecError("", f"the bytes are not a message of the type {descriptor.full_name}")


class _Kind:
    """The fields of a message that can have parts: they hold messages, or numbers (None)."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: dict[int, _Kind | None] = {}  # by tag


@lru_cache
def _kind(descriptor: Descriptor) -> _Kind:
    kinds: dict[str, _Kind] = {}

    def kind_of(descriptor: Descriptor) -> _Kind:
        if descriptor.full_name in kinds:
            return kinds[descriptor.full_name]
        kind = kinds[descriptor.full_name] = _Kind()
        for field in descriptor.fields:
            tag = field.number << 3 | _LENGTH_DELIMITED
            if field.message_type is not None:
                if not _is_plain_entry(field.message_type):
                    kind.fields[tag] = kind_of(field.message_type)
            elif field.is_repeated and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
                kind.fields[tag] = None
        return kind

    return kind_of(descriptor)


def _is_plain_entry(descriptor: Descriptor) -> bool:
    """Whether the message is the entry of a map whose values have no parts."""
    value = descriptor.fields_by_name.get("value")
    entry: bool = descriptor.GetOptions().map_entry
    return entry and value is not None and value.message_type is None


def _count(descriptor: Descriptor, data: bytes, limit: int) -> None:
    fields = _kind(descriptor).fields
    enclosing: list[tuple[int, dict[int, _Kind | None], int]] = []  # end, fields, field's tag
    size = len(data)
    position, end, left = 0, size, limit
    try:
        while True:
            if position >= end:
                if position > end:
                    raise malformed(descriptor)
                if not enclosing:
                    return
                end, fields, _ = enclosing.pop()
                continue
            tag = data[position]
            position += 1
            if tag > 127:
                tag, position = read_varint(data, position - 1)
                tag &= _32_BITS
            left -= 1
            if left < 0:
                raise _too_many(descriptor, enclosing, tag, limit)
            kind = tag & 7
            if kind == _LENGTH_DELIMITED:
                length = data[position]
                position += 1
                if length > 127:
                    if size - position <= _LEAST_BYTES * left:
                        return
                    length, position = read_varint(data, position - 1)
                    length &= _32_BITS
                if tag not in fields:
                    position += length
                    if position < end and data[position] == tag < 128:
                        position, left = _pass_strings(data, position, end, left)
                    continue
                inner = fields[tag]
                if inner is None or length < _SHORT:
                    position += length
                    left -= length // _LEAST_BYTES
                    if position < end and data[position] == tag < 128:
                        position, left = _pass_short(data, position, end, left)
                    if left < 0:
                        raise _too_many(descriptor, enclosing, tag, limit)
                    continue
                enclosing.append((end, fields, tag))
                if position + length > end or len(enclosing) > _DEPTH:
                    raise malformed(descriptor)
                fields, end = inner.fields, position + length
            elif kind == _VARINT:
                while data[position] > 127:
                    position += 1
                position += 1
            elif kind == _FIXED64:
                position += 8
            elif kind == _FIXED32:
                position += 4
            else:
                raise malformed(descriptor)
    except IndexError:  # a number or a length runs past the end
        raise malformed(descriptor) from None


def _pass_strings(data: bytes, position: int, end: int, left: int) -> tuple[int, int]:
    """Passes over fields like the one at `position`, whose payloads have less than 16 KiB; returns
    where they end and how many parts are left."""
    tag = data[position]
    for passed in range(left):
        if position >= end or data[position] != tag:
            return position, left - passed
        length = data[position + 1]
        if length < 128:
            position += length + 2
        elif (high := data[position + 2]) < 128:
            position += (high << 7) + length - 125
        else:
            return position, left - passed
    return position, 0


def _pass_short(data: bytes, position: int, end: int, left: int) -> tuple[int, int]:
    """Passes over short fields like the one at `position`, counting all bytes in them as parts."""
    tag = data[position]
    while left >= 0 and position < end and data[position] == tag:
        length = data[position + 1]
        if length >= _SHORT:
            break
        left -= 1 + length // _LEAST_BYTES
        position += length + 2
    return position, left


def _too_many(
    descriptor: Descriptor, enclosing: list[tuple[int, Any, int]], tag: int, limit: int
) -> CodecError:
    """The error for too many parts. It names the repeated field that has them."""
    path: list[str] = []
    repeated = 0
    message: Descriptor | None = descriptor
    for number in (*(entered for _, _, entered in enclosing), tag):
        field = None if message is None else message.fields_by_number.get(number >> 3)
        if message is None or field is None:
            break
        if not message.GetOptions().map_entry:
            path.append(field.name)
            repeated = len(path) if field.is_repeated else repeated
        message = field.message_type
    return CodecError(
        ".".join(path[:repeated]),
        f"with these the message has more than {limit} parts, those in other parts included; "
        "send fewer at a time",
    )
