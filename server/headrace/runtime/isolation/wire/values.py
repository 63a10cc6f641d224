"""Converts values to messages and back.

The header has a description of each value; the elements are in the body or in shared memory. The
description of an absent optional is null. That of a sequence has a list of descriptions under
``"s"``. That of a tensor is ``[dtype, shape, place, offset, size]``, with ONNX's dtype number.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import onnx_ir as ir

from headrace.ipc.link import Disconnected
from headrace.ipc.segments import ALIGNMENT, Array
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.values import Value

INLINE_BYTES: Final = 16 * 1024
"""Larger arrays lie in shared memory. So do smaller ones if the message would become too long."""
_MESSAGE_BYTES: Final = 64 * 1024
_MOST_ELEMENTS: Final = 2**16
"""Elements of sequences, in one message. More cannot come from a client or go to one."""
BODY, SEGMENT = 0, 1
STRING: Final = int(ir.DataType.STRING)
PIECES_ALIGNMENT: Final = 16
"""How arrays are aligned in a message's body, in bytes."""
REQUEST: Final = struct.Struct("<qqqqB15x")
ANSWER: Final = struct.Struct("<dqq8x")
"""How facts are packed. Both take a multiple of `PIECES_ALIGNMENT`."""
GIVEN_IS_NEW, OFFERED_IS_NEW = 1, 2

_NUMBERS: Final = {
    number.numpy(): int(number)
    for number in ir.DataType
    if number not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
}
TYPES: Final = {number: dtype for dtype, number in _NUMBERS.items()}


class RequestFacts(NamedTuple):
    """The facts of a request, at the start of its body. They differ from one request to the next.
    So they are not in the header, and successive requests often have the same header.

    Attributes:
        number: of the request, for cancelling it. A segment that the worker makes for its outputs
            has this number, too.
        given, offered: segments for the inputs and the outputs; 0 for none.
        new: GIVEN_IS_NEW and OFFERED_IS_NEW, for segments whose descriptors come with the message.
    """

    number: int
    given: int
    offered: int
    priority: int
    new: int

    @classmethod
    def take(cls, body: memoryview) -> tuple[RequestFacts, memoryview]:
        """The facts, and the rest of a request's body."""
        # A call of the class would run Python code.
        return tuple.__new__(cls, REQUEST.unpack_from(body)), body[REQUEST.size :]


class AnswerFacts(NamedTuple):
    """The facts of an answer, at the start of its body.

    Attributes:
        seconds: how long the run took.
        segment: where the large outputs are; 0 for nowhere.
        taken: how many bytes of it they take.
    """

    seconds: float
    segment: int
    taken: int

    @classmethod
    def take(cls, body: memoryview) -> tuple[AnswerFacts, memoryview]:
        """The facts, and the rest of an answer's body.

        Raises:
            Disconnected: the body is too short.
        """
        if len(body) < ANSWER.size:
            raise Disconnected("an answer has no facts")
        return tuple.__new__(cls, ANSWER.unpack_from(body)), body[ANSWER.size :]


@dataclass(slots=True)
class Encoding:
    """Encoding values. `description` and `body` go into a message; `place` copies large arrays into
    a segment of `segment_bytes`."""

    description: dict[str, Any] = field(default_factory=dict)
    body: list[bytes] = field(default_factory=list)
    segment_bytes: int = 0
    _body_bytes: int = 0
    _elements: int = 0
    _large: list[tuple[int, Array]] = field(default_factory=list)

    def place(self, segment: Array) -> None:
        for offset, array in self._large:
            place(segment, offset, array)

    def add(self, name: str, value: Value) -> None:
        """Adds a value.

        Raises:
            InvalidArgument: an element is neither text nor bytes, ONNX does not have the type, or
                there are more elements of sequences than a client can be sent.
        """
        try:
            self.description[name] = self._describe(value)
        except InvalidArgument as error:
            raise InvalidArgument(f"{name!r}: {error.message}", field=f"inputs[{name!r}]") from None

    def _describe(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, list):
            self._elements += len(value)
            if self._elements > _MOST_ELEMENTS:
                raise InvalidArgument(f"sequences hold more than {_MOST_ELEMENTS} elements")
            return {"s": [self._describe(element) for element in value]}
        array = np.asarray(value)
        shape = list(array.shape)
        if array.dtype.kind in "OSU":
            array = np.frombuffer(_pack(array), np.uint8)
            number = STRING
        else:
            known = _NUMBERS.get(array.dtype)
            if known is None:
                raise InvalidArgument(f"{array.dtype} is not a type of ONNX")
            number = known
        size = array.nbytes
        if size <= INLINE_BYTES and self._body_bytes + size <= _MESSAGE_BYTES:
            offset = self._body_bytes
            padding = -size % PIECES_ALIGNMENT
            self.body.append(array.tobytes() + bytes(padding))
            self._body_bytes += size + padding
            return [number, shape, BODY, offset, size]
        offset = self.segment_bytes
        self._large.append((offset, array))
        self.segment_bytes += size + -size % ALIGNMENT
        return [number, shape, SEGMENT, offset, size]


def place(segment: Array, offset: int, array: Array) -> None:
    target = segment[offset : offset + array.nbytes].view(array.dtype)
    np.copyto(target.reshape(array.shape), array)


def encode(values: Mapping[str, Value]) -> Encoding:
    """Encodes the values.

    Raises:
        InvalidArgument: a value cannot be encoded. The message names it.
    """
    encoded = Encoding()
    for name, value in values.items():
        encoded.add(name, value)
    return encoded


def decode(
    description: Mapping[str, Any],
    body: memoryview,
    segment: Array | None,
) -> dict[str, Value]:
    """The values, as views of the body and the segment.

    Raises:
        Disconnected: the description is not valid, or points outside the body and the segment.
    """
    try:
        return {name: _value(facts, body, segment) for name, facts in description.items()}
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise Disconnected(f"a value cannot be read: {error}") from error


def _value(description: Any, body: memoryview, segment: Array | None) -> Value:
    if description is None:
        return None
    if isinstance(description, dict):
        return [_value(element, body, segment) for element in description["s"]]
    number, shape, place, offset, size = description
    if place == BODY:
        buffer: memoryview | Array = body
    elif place == SEGMENT and segment is not None:
        buffer = segment
    else:
        raise ValueError("a value lies in shared memory, but there is none")
    # NumPy itself accepts a negative offset and some negative sizes.
    if not 0 <= offset <= offset + size <= len(buffer) or min(shape, default=0) < 0:
        raise ValueError("a value lies outside of its message")
    if number == STRING:
        return _unpack(bytes(buffer[offset : offset + size]), shape)
    return np.ndarray(shape, TYPES[number], buffer, offset)


def _pack(array: Array) -> bytes:
    """The length of every element as int32, followed by the elements. The length of text is `n`,
    that of bytes is `-n - 1`."""
    elements: list[bytes] = []
    lengths = np.empty(array.size, np.int32)
    for index, element in enumerate(array.reshape(-1).tolist()):
        if isinstance(element, str):
            data = element.encode("utf-8", "surrogatepass")
            lengths[index] = len(data)
        elif isinstance(element, bytes):
            data = element
            lengths[index] = -len(data) - 1
        else:
            kind = type(element).__name__
            raise InvalidArgument(f"element {index} is a {kind}, not a string")
        elements.append(data)
    return b"".join((lengths.tobytes(), *elements))


def _unpack(data: bytes, shape: Sequence[int]) -> Array:
    if 4 * math.prod(shape) > len(data):
        raise ValueError("there are fewer strings than the shape says")
    array: Array = np.empty(tuple(shape), object)
    flat = array.reshape(-1)
    position = 4 * flat.size
    lengths = np.frombuffer(data[:position], np.int32).tolist()
    for index, length in enumerate(lengths):
        end = position + (length if length >= 0 else -length - 1)
        piece = data[position:end]
        flat[index] = piece.decode("utf-8", "surrogatepass") if length >= 0 else piece
        position = end
    if position != len(data):
        raise ValueError("the strings are not as long as they say")
    return array
