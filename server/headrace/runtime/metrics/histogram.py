"""A histogram in fixed buckets. A value costs one binary search and two additions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """Counts per bucket, not cumulated. The last bucket counts the values above every bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def __add__(self, other: HistogramSnapshot) -> HistogramSnapshot:
        """The values of both histograms, which have the same buckets."""
        if self.bounds != other.bounds:
            raise ValueError("histograms with different buckets have no sum")
        counts = tuple(map(sum, zip(self.counts, other.counts, strict=True)))
        return HistogramSnapshot(self.bounds, counts, self.sum + other.sum)


class Histogram:
    """Counts of values in fixed buckets. Not thread-safe: the owner's lock guards it."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts `value` in the first bucket whose bound is not below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._sum)
