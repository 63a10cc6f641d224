"""Looks up the values of counters, gauges and histograms."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.runtime.metrics.histogram import HistogramSnapshot
from headrace.runtime.metrics.series import Family, SeriesSnapshot


def numbers(
    counted: Iterable[SeriesSnapshot], family: Family, *labels: str
) -> dict[tuple[str, ...], float]:
    """The series of a counter or gauge whose labels begin with these, by their other labels."""
    return {
        series.labels[len(labels) :]: series.value
        for series in counted
        if series.family == family
        and series.labels[: len(labels)] == labels
        and not isinstance(series.value, HistogramSnapshot)
    }


def number(counted: Iterable[SeriesSnapshot], family: Family, *labels: str) -> float:
    """The sum of a counter's or gauge's series whose labels begin with these."""
    return sum(numbers(counted, family, *labels).values())


def histogram(counted: Iterable[SeriesSnapshot], family: Family, *labels: str) -> HistogramSnapshot:
    """The histogram with these labels."""
    (value,) = (
        series.value for series in counted if (series.family, series.labels) == (family, labels)
    )
    assert isinstance(value, HistogramSnapshot)
    return value
