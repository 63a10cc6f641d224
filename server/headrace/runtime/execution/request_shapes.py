"""The shapes of a network's requests, for who wants to try it with requests like these."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import numpy as np

from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Port

MOST: Final = 64
"""The most different shapes that are counted."""

_MOST_INPUTS: Final = 64


class RequestShapes:
    """Counts the shapes of requests. Thread-safe: a request that is not counted because two came at
    once does no harm.

    Args:
        inputs: the network's. Nothing is counted if their sizes are fixed, or if there are many.
    """

    def __init__(self, inputs: Sequence[Port]) -> None:
        self._names = tuple(port.name for port in inputs)
        self._counts: dict[tuple[tuple[int, ...] | None, ...], int] = {}
        fixed = all(port.optional or port.fixed_shape is not None for port in inputs)
        self.counts = not fixed and len(inputs) <= _MOST_INPUTS

    def count(self, job: Job) -> None:
        """Counts a request. An input that is no tensor has no shape."""
        inputs = job.inputs
        shapes = tuple(
            value.shape if isinstance(value := inputs.get(name), np.ndarray) else None
            for name in self._names
        )
        counts = self._counts
        if len(counts) >= MOST and shapes not in counts:
            counts.clear()  # those that come often are soon there again
        counts[shapes] = counts.get(shapes, 0) + 1

    def to_texts(self) -> list[str]:
        """The metric REQUEST_SHAPES: a JSON text for each, those that came most often first."""
        counts = self._counts.copy().items()  # in one operation: requests go on
        return [
            json.dumps({"requests": count, "shapes": self._by_name(shapes)})
            for shapes, count in sorted(counts, key=lambda each: -each[1])
        ]

    def _by_name(self, shapes: Sequence[tuple[int, ...] | None]) -> dict[str, tuple[int, ...]]:
        pairs = zip(self._names, shapes, strict=True)
        return {name: shape for name, shape in pairs if shape is not None}
