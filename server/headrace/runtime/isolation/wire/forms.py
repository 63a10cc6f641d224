"""Messages of the same form: their values have the same names, types and shapes.

The sender describes such values once, and the receiver reads the description once. What is left to
do for each message is to copy the elements. Only plain arrays have a form that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from headrace.ipc.link import Disconnected, header_text, joined
from headrace.ipc.segments import Array
from headrace.runtime.isolation.wire.values import (
    BODY,
    PIECES_ALIGNMENT,
    SEGMENT,
    STRING,
    TYPES,
    Encoding,
    decode,
    encode,
    place,
)
from headrace.runtime.network.values import Value

Key: TypeAlias = tuple[Any, ...]
"""What tells the forms of two messages apart."""

_NO_ROOM: Final[Mapping[str, Array]] = MappingProxyType({})
_MOST: Final = 16
_LONGEST_BYTES: Final = 2048
"""So many headers of messages, of at most so many bytes each, are kept. Clients choose shapes."""


class _Place(NamedTuple):
    """Where one of the arrays is."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    place: int
    offset: int
    size: int


def key_of(values: Mapping[str, Any], *more: Any) -> Key | None:
    """The key of these values, and of whatever else the header depends on. None if one of the
    values is not an array."""
    try:
        return (*more, *[(name, value.dtype, value.shape) for name, value in values.items()])
    except AttributeError:
        return None


class ValueWriter:
    """Writes messages of one form. Never changes.

    Args:
        header: the bytes of their header.
        encoded: values of that form.

    Attributes:
        segment_bytes: how much shared memory the large values take.
        plain: every value is a plain array. Otherwise it writes only the values in `encoded`.
    """

    __slots__ = ("_encoded", "_header", "_pieces", "plain", "segment_bytes")

    def __init__(self, header: bytes, encoded: Encoding) -> None:
        self._header = header
        self.segment_bytes = encoded.segment_bytes
        places = _places(encoded.description)
        self.plain = places is not None
        self._encoded = None if self.plain else encoded
        self._pieces = [(each, bytes(-each.size % PIECES_ALIGNMENT)) for each in places or ()]

    def message(
        self,
        facts: bytes,
        values: Mapping[str, Any],
        segment: Array | None = None,
        count: int = 0,
        room: Mapping[str, Array] = _NO_ROOM,
    ) -> bytes:
        """A message with `count` descriptors.

        Args:
            facts: the start of its body.
            segment: where the large values go; None if there are none.
            room: from `room`. Values that are among its arrays are in their places already.

        Raises:
            TooLong: the message is too long.
        """
        body = [facts]
        if self._encoded is not None:
            body += self._encoded.body
            if segment is not None:
                self._encoded.place(segment)
        for (at, padding), value in zip(self._pieces, values.values(), strict=False):
            if at.place == BODY:
                body.append(value.tobytes())
                if padding:
                    body.append(padding)
            elif segment is not None and value is not room.get(at.name):
                place(segment, at.offset, value)
        return joined(self._header, body, count)

    def room(self, segment: Array) -> dict[str, Array]:
        """The places of the large values, by their names."""
        return {
            at.name: np.ndarray(at.shape, at.dtype, segment, at.offset)
            for at, _ in self._pieces
            if at.place == SEGMENT
        }


class Forms:
    """The forms that one sender has written. Thread-safe, because single operations on a dictionary
    are atomic.

    Attributes:
        known: the writers of messages that may come again.
    """

    def __init__(self) -> None:
        self.known: dict[Key, ValueWriter] = {}

    def writer(
        self, key: Key | None, values: Mapping[str, Any], name: str, header: Mapping[str, Any]
    ) -> ValueWriter:
        """What writes these values, and those of later messages with the same key, as those in
        `known` do.

        Args:
            name: of the entry of the header that describes the values.
            header: the other entries, which depend on the key alone if there is one.

        Raises:
            InvalidArgument, TooLong: as `encode` and `header_text`.
        """
        encoded = encode(values)
        text = header_text({name: encoded.description, **header})
        writer = ValueWriter(text, encoded)
        if key is not None and writer.plain and len(text) <= _LONGEST_BYTES:
            if len(self.known) >= _MOST:
                self.known.clear()
            self.known[key] = writer
        return writer


class ValueReader:
    """Reads the values of messages with one description. Never changes.

    Attributes:
        plain: every value is a plain array.
    """

    __slots__ = ("_description", "_large", "_places", "plain")

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._description = description
        places = _places(description)
        self.plain = places is not None
        self._places = places or []
        self._large = any(each.place == SEGMENT for each in self._places)

    @classmethod
    def within(cls, header: dict[str, Any], name: str) -> ValueReader:
        """The form of the values that an entry of a header describes. The header keeps it, for the
        next message with the same header.

        Raises:
            Disconnected: the entry is missing, or describes no values.
        """
        form = header.get(name)
        if type(form) is cls:
            return form
        if not isinstance(form, dict):
            raise Disconnected(f"a message has no {name}")
        reader = header[name] = cls(form)
        return reader

    def read(self, body: memoryview, segment: Array | None = None) -> dict[str, Value]:
        """The values in a message's body. Raises as `decode`."""
        if not self.plain:
            return decode(self._description, body, segment)
        if self._large and segment is None:
            raise Disconnected("a value lies in shared memory, but there is none")
        buffers: Any = (body, segment)
        try:
            return {
                name: np.ndarray(shape, dtype, buffers[at], offset)
                for name, shape, dtype, at, offset, _ in self._places
            }
        except (TypeError, ValueError, OverflowError) as error:
            raise Disconnected(f"a value cannot be read: {error}") from error


def _places(description: Mapping[str, Any]) -> list[_Place] | None:
    """Where the arrays are. None if a value is something else, or is not described as it should be;
    `decode` then says what is wrong."""
    places: list[_Place] = []
    try:
        for name, (number, shape, at, offset, size) in description.items():
            # NumPy checks that the array ends inside its buffer, but accepts some negative numbers.
            if at not in (BODY, SEGMENT) or number == STRING:
                return None
            if offset < 0 or min(shape, default=0) < 0:
                return None
            places.append(_Place(name, tuple(shape), TYPES[number], at, offset, size))
    except (TypeError, ValueError, KeyError):
        return None
    return places
