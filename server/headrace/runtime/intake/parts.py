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

from headrace.protobuf.fields import LENGTH_DELIMITED, read_field, read_varint, varint
from headrace.runtime.system.buffers import Buffer

PART_BYTES: Final = 2**16
"""The bytes that one call parses. A part of two-byte messages takes some 10 ms."""

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
        tag, value, at = read_field(data, start, len(data))
        if at > len(data):
            raise DecodeError("cut short, or with groups")
        is_long = tag & 7 == LENGTH_DELIMITED and at - value > PART_BYTES
        field = fields.get(tag >> 3) if is_long else None
        if field is not None:
            message.MergeFromString(bytes(data[begun:start]))
            begun = at
            if field.message_type is not None:
                held = getattr(message, field.name)
                _merge(held.add() if field.is_repeated else held, data[value:at], depth + 1)
            else:
                for part in _cut(field, data[start:value], data[value:at]):
                    message.MergeFromString(part)
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
