"""Bounds what is built of a message, before it is built.

A part of a message, such as an empty string or an entry of a map, takes two bytes on the wire and
up to seventy in memory. So the parts of a large message are counted first, at all depths, by
walking the wire format (https://protobuf.dev/programming-guides/encoding/). Of a message whose
bytes cannot hold more parts than are allowed nothing is read, and a long field is passed over in
one step.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from headrace.wire.codec import CodecError
from headrace.wire.framing import read_varint

MAX_PARTS: Final = 1 << 20
"""Of a message of Infer or InferStream: with all that is built of them 100 MB at most."""
MAX_CONTROL_PARTS: Final = 1 << 17
"""Of a message of any other method: a load may name a device for each layer of a large network."""

_LEAST_BYTES: Final = 2
"""Of a part: its tag and its length or value."""
_SHORT: Final = 24
"""Messages of fewer bytes are not looked into, but counted as if they were of the least parts."""
_DEPTH: Final = 100
"""Of messages in messages; protobuf takes no more either."""

_32_BITS: Final = 0xFFFF_FFFF
"""What protobuf reads of a tag and of a length; it ignores higher bits."""
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


def check_parts(message_type: Any, data: bytes, limit: int) -> None:
    """Sees to it that a message has at most `limit` parts, those in its parts included.

    An entry of a map of strings is one part, and so are two bytes of a packed field or of a message
    of less than 24. A message of at most two bytes for each part that is allowed is not looked at,
    nor is the rest of one once it is no longer.

    Raises:
        CodecError: `data` has more parts, is no message of this type, or holds groups, which
            messages of proto3 do not.
    """
    if len(data) > _LEAST_BYTES * limit:
        _count(message_type.DESCRIPTOR, data, limit)


def malformed(descriptor: Any) -> CodecError:
    """What is said of bytes that are no such message."""
    return CodecError("", f"the bytes are not a {descriptor.full_name}")


class _Kind:
    """What those of a message's fields hold that can have parts: messages, or numbers (None)."""

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
    """Whether it is the entry of a map to values that hold nothing else."""
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
    except IndexError:  # a number or a length runs over the end
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
    """Names the repeated field at which there were too many."""
    path: list[str] = []
    repeated = 0
    message: Descriptor | None = descriptor
    for each in (*(entered for _, _, entered in enclosing), tag):
        field = None if message is None else message.fields_by_number.get(each >> 3)
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
