"""A histogram in fixed buckets. Many values at once cost little more than their sort.

Each bucket remembers the last value that came from a traced request, as an example.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.runtime.execution.trace import Exemplar


class Example(NamedTuple):
    """A value in a bucket, and the traced request that it comes from."""

    value: float
    exemplar: Exemplar


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """Counts per bucket, not cumulated. The last bucket counts the values above every bound.

    Attributes:
        examples: the last example of each bucket that has one, by the bucket's place.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    examples: Mapping[int, Example] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def __add__(self, other: HistogramSnapshot) -> HistogramSnapshot:
        """The values of both histograms, which have the same buckets."""
        if self.bounds != other.bounds:
            raise ValueError("histograms with different buckets have no sum")
        counts = tuple(map(sum, zip(self.counts, other.counts, strict=True)))
        examples = {**self.examples, **other.examples}
        return HistogramSnapshot(self.bounds, counts, self.sum + other.sum, examples)


class Histogram:
    """Counts of values in fixed buckets. Not thread-safe: the owner's lock guards it."""

    __slots__ = ("_bounds", "_counts", "_examples", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._examples: dict[int, Example] = {}

    def observe(self, value: float, exemplar: Exemplar | None = None) -> None:
        """Counts `value` in the first bucket whose bound is not below it.

        Args:
            exemplar: the traced request that the value comes from.
        """
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        if exemplar is not None:
            self._remember(value, exemplar)

    def observe_all(
        self, values: Collection[float | None], exemplars: Iterable[Exemplar | None] = ()
    ) -> None:
        """Counts each value, with the exemplar in its place, as `observe` does; None is no
        value."""
        counts, before = self._counts, 0
        ordered = sorted([value for value in values if value is not None])
        self._sum += sum(ordered)
        for bucket, bound in enumerate(self._bounds):
            upto = bisect_right(ordered, bound, before)
            counts[bucket] += upto - before
            before = upto
        counts[-1] += len(ordered) - before
        for value, exemplar in zip(values, exemplars, strict=False):
            if exemplar is not None and value is not None:
                self._remember(value, exemplar)

    def _remember(self, value: float, exemplar: Exemplar) -> None:
        self._examples[bisect_left(self._bounds, value)] = Example(value, exemplar)

    def snapshot(self) -> HistogramSnapshot:
        counts = tuple(self._counts)
        return HistogramSnapshot(self._bounds, counts, self._sum, dict(self._examples))
