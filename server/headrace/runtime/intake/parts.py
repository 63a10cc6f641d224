"""Serialised messages, parsed a part at a time.

Protobuf parses a message in one call, which stops every other thread: 1.7 s for the four million
tiny attributes that a model may hold. What is parsed from two parts one after the other is the same
as what is parsed from both together, so a message may be cut between its fields, a field that holds
a message between that one's, and packed numbers between two of them.

The wire format: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from headrace.runtime.system.buffers import Buffer

PART_BYTES: Final = 2**16
"""Parsed in one call. A part of two-byte messages takes some 10 ms."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIDTHS: Final = {FieldDescriptor.CPPTYPE_FLOAT: 4, FieldDescriptor.CPPTYPE_DOUBLE: 8}
"""Bytes of a packed number where all have as many."""

_MAX_DEPTH: Final = 100  # messages in messages, as protobuf has it


def merge(message: Message, data: Buffer) -> None:
    """Does what `message.MergeFromString(data)` does.

    Raises:
        DecodeError: the bytes are not such a message, or are cut short.
    """
    try:
        _merge(message, memoryview(data), 0)
    except IndexError:  # a number runs over the end of the bytes
        raise DecodeError("cut short") from None


def _merge(message: Message, data: memoryview, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise DecodeError("messages are nested too deep")
    fields = message.DESCRIPTOR.fields_by_number
    begun = at = 0
    while at < len(data):
        start = at
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = read_varint(data, start)
        wire = tag & 7
        if wire == _LENGTH:
            length = data[at]
            at += 1
            if length > 127:
                length, at = read_varint(data, at - 1)
            value, at = at, at + length
            field = fields.get(tag >> 3) if length > PART_BYTES else None
            if field is not None and at <= len(data):
                message.MergeFromString(bytes(data[begun:start]))
                begun = at
                if field.message_type is not None:
                    held = getattr(message, field.name)
                    _merge(held.add() if field.is_repeated else held, data[value:at], depth + 1)
                else:
                    for part in _cut(field, data[start:value], data[value:at]):
                        message.MergeFromString(part)
        elif wire == _VARINT:
            _, at = read_varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            at += 4 if wire == _FIXED32 else 8
        else:
            raise DecodeError("groups are not used")
        if at - begun > PART_BYTES:
            message.MergeFromString(bytes(data[begun:at]))
            begun = at
    message.MergeFromString(bytes(data[begun:]))


def _cut(field: Any, header: memoryview, data: memoryview) -> Iterator[bytes]:
    """The field in parts, each with a tag of its own. A text cannot be cut."""
    if not field.is_repeated or field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        yield b"".join((header, data))
        return
    tag = bytes(header[: read_varint(header, 0)[1]])
    for part in _packed(data, _WIDTHS.get(field.cpp_type)):
        yield b"".join((tag, varint(len(part)), part))


def _packed(data: memoryview, width: int | None) -> Iterator[memoryview]:
    """The numbers, some at a time; without a width they are varints, whose last byte is small."""
    begun = 0
    while begun < len(data):
        end = begun + PART_BYTES
        if width is None:
            while end < len(data) and data[end - 1] > 127:
                end += 1
        yield data[begun:end]
        begun = end


def varint(value: int) -> bytes:
    """A number as the wire format has it."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """A number and where it ends.

    Raises:
        IndexError: the number runs over the end of the data, or has more than ten bytes.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise IndexError
