"""Parses serialised messages one part at a time.

Protobuf parses a message in one call, and the call stops every other thread: 1.7 s for the four
million tiny attributes that a model may hold. Parsing two parts one after the other gives the same
message as parsing both together. So a message may be cut between its fields. A field that holds a
message may be cut between that message's fields, and packed numbers between two numbers.

The wire format: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from headrace.runtime.system.buffers import Buffer

PART_BYTES: Final = 2**16
"""The bytes that one call parses. A part of two-byte messages takes some 10 ms."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIDTHS: Final = {FieldDescriptor.CPPTYPE_FLOAT: 4, FieldDescriptor.CPPTYPE_DOUBLE: 8}
"""The bytes of a packed number, for types whose numbers all have the same size."""

_MAX_DEPTH: Final = 100  # of messages in messages, the same limit as protobuf's


def merge(message: Message, data: Buffer) -> None:
    """Does what `message.MergeFromString(data)` does.

    Raises:
        DecodeError: the bytes are not a message of this type, or end too early.
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
    """The field in parts. Each part has its own tag. Text cannot be cut."""
    if not field.is_repeated or field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        yield b"".join((header, data))
        return
    tag = bytes(header[: read_varint(header, 0)[1]])
    for part in _packed(data, _WIDTHS.get(field.cpp_type)):
        yield b"".join((tag, varint(len(part)), part))


def _packed(data: memoryview, width: int | None) -> Iterator[memoryview]:
    """The numbers in groups. Without a width they are varints; only a varint's last byte is less
    than 128."""
    begun = 0
    while begun < len(data):
        end = begun + PART_BYTES
        if width is None:
            while end < len(data) and data[end - 1] > 127:
                end += 1
        yield data[begun:end]
        begun = end


def varint(value: int) -> bytes:
    """A number encoded as a varint of the wire format."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def header(number: int, length: int) -> bytes:
    """The tag and length of the field `number` with a payload of `length` bytes."""
    return varint(number << 3 | _LENGTH) + varint(length)


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """Reads a varint. Returns the number and the position after it.

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
