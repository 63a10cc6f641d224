"""The shapes of a network's requests, for who wants to try it with requests like these."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Final, TypeAlias

from headrace.runtime.network.network import Port
from headrace.runtime.network.values import Value

Shapes: TypeAlias = tuple[tuple[int, ...] | None, ...]
"""The shapes of a request's inputs, in the order of the network's inputs. None: the request leaves
the input out, or it is no tensor."""

MOST: Final = 64
"""The most different shapes that are counted."""

_MOST_INPUTS: Final = 256


class RequestShapes:
    """Counts the shapes of requests. Thread-safe: a request that is not counted because two came at
    once does no harm.

    Args:
        inputs: the network's.

    Attributes:
        fixed: the shapes, if the network says all of them.
        counts: whether to count requests: their shapes may differ, and there are few inputs.
    """

    def __init__(self, inputs: Sequence[Port]) -> None:
        self._names = tuple(port.name for port in inputs)
        self._counts: dict[Shapes, int] = {}
        shapes = tuple(None if port.optional else port.fixed_shape for port in inputs)
        known = all(port.optional or port.fixed_shape is not None for port in inputs)
        self.fixed = shapes if known else None
        self.counts = not known and len(inputs) <= _MOST_INPUTS

    def of(self, inputs: Mapping[str, Value]) -> Shapes:
        """The shapes of a request."""
        values = map(inputs.get, self._names)
        return tuple(map(getattr, values, repeat("shape"), repeat(None)))  # all in C

    def add(self, shapes: Shapes) -> None:
        """Counts a request of these shapes."""
        counts = self._counts
        if len(counts) >= MOST and shapes not in counts:
            counts.clear()  # those that come often are soon there again
        counts[shapes] = counts.get(shapes, 0) + 1

    def seen(self) -> dict[Shapes, int]:
        """How many requests had each of the shapes."""
        return self._counts.copy()  # in one operation: requests go on

    def to_texts(self) -> list[str]:
        """The metric REQUEST_SHAPES: a JSON text for each, those that came most often first."""
        return [
            json.dumps({"requests": count, "shapes": self.by_name(shapes)})
            for shapes, count in sorted(self.seen().items(), key=lambda each: -each[1])
        ]

    def by_name(self, shapes: Shapes) -> dict[str, tuple[int, ...]]:
        pairs = zip(self._names, shapes, strict=True)
        return {name: shape for name, shape in pairs if shape is not None}
