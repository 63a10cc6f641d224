"""Messages of the same form: their values have the same names, types and shapes.

The sender describes such values once, and the receiver reads the description once. What is left to
do for each message is to copy the elements. Only small plain arrays have a form that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from headrace.runtime.isolation.wire.channel import Disconnected
from headrace.runtime.isolation.wire.values import (
    BODY,
    PIECES_ALIGNMENT,
    STRING,
    TYPES,
    Encoded,
    decode,
)
from headrace.runtime.network.values import Array, Value

Key: TypeAlias = tuple[Any, ...]
"""What tells the forms of two messages apart."""
_Plain: TypeAlias = "list[tuple[str, tuple[int, ...], np.dtype[Any], int]]"

_MOST: Final = 16
_LONGEST_BYTES: Final = 2048
"""So many starts of messages, of at most so many bytes each, are kept. Clients choose shapes."""


def key_of(values: Mapping[str, Any], *more: Any) -> Key | None:
    """The key of these values, and of whatever else the header depends on. None if one of the
    values is not an array."""
    try:
        return (*more, *[(name, value.dtype, value.shape) for name, value in values.items()])
    except AttributeError:
        return None


class Forms:
    """Writes messages. Thread-safe, because single operations on a dictionary are atomic.

    A message is its start (prefix and header), some facts of fixed size, and the arrays.
    """

    def __init__(self) -> None:
        self._known: dict[Key, tuple[bytes, tuple[bytes, ...]]] = {}

    def message(self, key: Key | None, facts: bytes, values: Mapping[str, Any]) -> bytes | None:
        """The message; None if no message with this key has been learnt."""
        known = self._known.get(key) if key is not None else None
        if known is None:
            return None
        start, paddings = known
        pieces = [start, facts]
        for value, padding in zip(values.values(), paddings, strict=True):
            pieces.append(value.tobytes())
            if padding:
                pieces.append(padding)
        return b"".join(pieces)

    def learn(self, key: Key | None, facts: bytes, encoded: Encoded, message: bytes) -> None:
        """Keeps the start of a message that has been made of these facts and values."""
        if key is None or not Form(encoded.description).plain:
            return
        start = message[: len(message) - len(facts) - sum(map(len, encoded.body))]
        if len(start) > _LONGEST_BYTES:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        sizes = (each[-1] for each in encoded.description.values())
        self._known[key] = start, tuple(bytes(-size % PIECES_ALIGNMENT) for size in sizes)


class Form:
    """Reads the values of messages with one description. Never changes.

    Attributes:
        plain: every value is a plain array in the message's body.
    """

    __slots__ = ("_arrays", "_description", "plain")

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._description = description
        arrays = _plain(description)
        self.plain = arrays is not None
        self._arrays = arrays or []

    @classmethod
    def within(cls, header: dict[str, Any], name: str) -> Form:
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
        found = header[name] = cls(form)
        return found

    def read(
        self, body: memoryview, segment: Array | None = None, *, writable: bool
    ) -> dict[str, Value]:
        """As `decode`."""
        if not self.plain:
            return decode(self._description, body, segment, writable=writable)
        if not writable:
            body = body.toreadonly()
        try:
            return {
                name: np.ndarray(shape, dtype, body, offset)
                for name, shape, dtype, offset in self._arrays
            }
        except (TypeError, ValueError) as error:
            raise Disconnected(f"a value cannot be read: {error}") from error


def _plain(description: Mapping[str, Any]) -> _Plain | None:
    """The arrays in the body. None if a value is something else, or is not described as it should
    be; `decode` then says what is wrong."""
    found: _Plain = []
    try:
        for name, (number, shape, place, offset, _) in description.items():
            # NumPy checks that the array ends inside the body, but accepts some negative numbers.
            if place != BODY or number == STRING or offset < 0 or min(shape, default=0) < 0:
                return None
            found.append((name, tuple(shape), TYPES[number], offset))
    except (TypeError, ValueError, KeyError):
        return None
    return found
