"""Series of the metrics as JSON: the numbers of one device or network, by family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from headrace.runtime.execution.job import Outcome
from headrace.runtime.metrics.histogram import HistogramSnapshot
from headrace.runtime.metrics.series import Family, SeriesSnapshot, Value


class Numbers:
    """The series of one device or network, by family."""

    def __init__(self) -> None:
        self._series: dict[str, list[SeriesSnapshot]] = {}

    def add(self, series: SeriesSnapshot) -> None:
        self._series.setdefault(series.family.name, []).append(series)

    def __contains__(self, family: Family) -> bool:
        return family.name in self._series

    def of(self, family: Family) -> list[SeriesSnapshot]:
        return self._series.get(family.name, [])

    def all(self) -> Iterator[SeriesSnapshot]:
        return chain.from_iterable(self._series.values())

    def number(self, family: Family) -> float | None:
        """The value of a family with one series. None if it is not known."""
        for sample in self.of(family):
            return _number(sample.value)
        return None

    def total(self, family: Family, **labels: str) -> float:
        """The sum of a counter's series that have these labels."""
        return sum(
            _number(sample.value) or 0 for sample in _having(self.of(family), family, labels)
        )

    def outcomes(self, family: Family, **labels: str) -> dict[str, float]:
        """A counter by outcome."""
        counted = summed(_having(self.of(family), family, labels), family, "outcome")
        return {outcome.value: counted.get(outcome.value, 0) for outcome in Outcome}

    def histogram(self, family: Family) -> dict[str, Any]:
        """The sum of a family's histograms."""
        snapshots = [sample.value for sample in self.of(family)]
        histograms = [snapshot for snapshot in snapshots if isinstance(snapshot, HistogramSnapshot)]
        if not histograms:
            return histogram(HistogramSnapshot(family.bounds, (0,) * (len(family.bounds) + 1), 0.0))
        return histogram(sum(histograms[1:], histograms[0]))


NO_NUMBERS: Final = Numbers()
"""The numbers of a device or network without a request: all are zero."""


def grouped(series: Iterable[SeriesSnapshot], *labels: str) -> dict[tuple[str, ...], Numbers]:
    """The series by the values of these labels. Series without these labels are left out."""
    groups: dict[tuple[str, ...], Numbers] = {}
    for sample in series:
        if sample.family.labels[: len(labels)] == labels:
            groups.setdefault(sample.labels[: len(labels)], Numbers()).add(sample)
    return groups


def summed(series: Iterable[SeriesSnapshot], family: Family, label: str) -> dict[str, float]:
    """A counter by the values of one of its labels."""
    at = family.labels.index(label)
    sums: dict[str, float] = {}
    for sample in series:
        if sample.family is family:
            sums[sample.labels[at]] = sums.get(sample.labels[at], 0) + (_number(sample.value) or 0)
    return sums


def histogram(value: HistogramSnapshot) -> dict[str, Any]:
    """A histogram. The counts of the buckets are not cumulated."""
    return {"count": value.count, "sum": value.sum, "counts": value.counts}


def as_json(value: Value) -> Any:
    return histogram(value) if isinstance(value, HistogramSnapshot) else _number(value)


def short(text: str, most: int) -> str:
    """The text, cut to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _number(value: Value) -> float | None:
    """A whole number without a fraction, so that it is short. None for what JSON lacks."""
    if isinstance(value, HistogramSnapshot) or value != value or abs(value) == float("inf"):
        return None
    return int(value) if value == int(value) else value


def _having(
    series: Iterable[SeriesSnapshot], family: Family, labels: Mapping[str, str]
) -> Iterable[SeriesSnapshot]:
    wanted = [(family.labels.index(name), value) for name, value in labels.items()]
    if not wanted:
        return series
    return (sample for sample in series if all(sample.labels[at] == value for at, value in wanted))
