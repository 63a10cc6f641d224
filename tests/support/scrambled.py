"""Other serialisations of a protobuf message, which protobuf reads as the same message."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_TEXT = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_WIRE_TYPES = {FieldDescriptor.TYPE_FLOAT: 5, FieldDescriptor.TYPE_DOUBLE: 1}
_EXPLICIT_TENSOR_DATA = ("raw_data", "segment")
"""Fields of a TensorProto whose presence alone has a meaning."""


def scrambled(message: Message, chance: random.Random) -> bytes:
    """`message` with its fields in a random order, some defaults written out, some scalars written
    twice with another value first, numbers packed or not, and single messages in two pieces."""
    return b"".join(_pieces(message, chance))


def plain(message: Message) -> Message:
    """`message` without the fields that hold their default, as far as these mean nothing."""
    result = type(message)()
    result.CopyFrom(message)
    for field, value in result.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = value if field.is_repeated else [value]
            for each in inner:
                each.CopyFrom(plain(each))
        elif not field.is_repeated and _may_default(field) and value == field.default_value:
            result.ClearField(field.name)
    return result


def _may_default(field: Any) -> bool:
    return field.containing_oneof is None and field.name not in _EXPLICIT_TENSOR_DATA


def _pieces(message: Message, chance: random.Random) -> list[bytes]:
    """Pieces that make the message when they are laid one after the other."""
    fields: list[list[bytes]] = []
    present = {field.name for field, _ in message.ListFields()}
    for field in message.DESCRIPTOR.fields:
        if field.name in present:
            fields.append(_field(message, field, chance))
        elif field.type == FieldDescriptor.TYPE_MESSAGE or field.is_repeated:
            continue
        elif _may_default(field) and chance.random() < 0.3:
            fields.append([_single(message, field, field.default_value)])
    order = [at for at, pieces in enumerate(fields) for _ in pieces]
    chance.shuffle(order)
    left = [iter(pieces) for pieces in fields]
    return [next(left[at]) for at in order]


def _field(message: Message, field: Any, chance: random.Random) -> list[bytes]:
    value: Any = getattr(message, field.name)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if field.is_repeated:
            return [_message(field.number, _pieces(each, chance)) for each in value]
        pieces = _pieces(value, chance)
        middle = chance.randrange(len(pieces) + 1)
        return [_message(field.number, pieces[:middle]), _message(field.number, pieces[middle:])]
    if field.is_repeated:
        return _repeated(message, field, chance)
    written = [_single(message, field, value)]
    if chance.random() < 0.3:
        written.insert(0, _single(message, field, _other(field, value)))
    return written


def _other(field: Any, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM:
        return field.default_value
    if field.type in _TEXT:
        return value + value or value
    return value + 1


def _single(message: Message, field: Any, value: Any) -> bytes:
    part: Message = type(message)()
    setattr(part, field.name, value)
    return part.SerializeToString()


def _repeated(message: Message, field: Any, chance: random.Random) -> list[bytes]:
    values = getattr(message, field.name)
    if field.type in _TEXT:
        return [_elements(message, field, [value]) for value in values]
    pieces = []
    start = 0
    while start < len(values):
        end = start + chance.choice([1, 2, len(values)])
        pieces.append(_elements(message, field, values[start:end]))
        if end - start == 1:
            wire = _WIRE_TYPES.get(field.type, 0)
            element = pieces.pop().removeprefix(_varint(field.number << 3 | wire))
            if field.is_packed:  # its tag and its length, of less than 128 bytes
                element = element[len(_varint(field.number << 3)) + 1 :]
            packed = chance.random() < 0.5
            pieces.append(
                _message(field.number, [element])
                if packed
                else _varint(field.number << 3 | wire) + element
            )
        start = end
    return pieces


def _elements(message: Message, field: Any, values: list[Any]) -> bytes:
    part: Message = type(message)()
    getattr(part, field.name).extend(values)
    return part.SerializeToString()


def _message(number: int, pieces: list[bytes]) -> bytes:
    payload = b"".join(pieces)
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
