"""Metrics: families of series, and what a server has counted in them.

`headrace.runtime.metrics.families` is the table of the families that every server has. A plugin
declares more for what only its kind of device counts about networks, and asks the network's
counters for a `Series` of each. These series get the network's name and version as their first
labels and vanish with it. The plugin has to keep the other labels few.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

from headrace.runtime.metrics.histogram import Histogram, HistogramSnapshot

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    Attributes:
        name: with a base unit, and ``_total`` if it is a counter; without the server's prefix.
        labels: for a plugin's family, those beside the network and its version.
        bounds: of a histogram's buckets, upper and inclusive.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram", "info"]
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...] = ()

    def of_network(self) -> Family:
        """A plugin's family as it is exposed: with the network and its version as first labels."""
        return replace(self, labels=("network", "version", *self.labels))


NOTES = Family(
    "network_notes_total",
    "counter",
    (),
    "Notes of loads, which report automatic changes. The network's metric NOTES has their text.",
)


Value: TypeAlias = float | HistogramSnapshot


@dataclass(frozen=True, slots=True)
class SeriesSnapshot:
    """A series; `labels` are the values of the family's labels."""

    family: Family
    labels: tuple[str, ...]
    value: Value


Snapshot: TypeAlias = tuple[SeriesSnapshot, ...]
"""The counts at one moment."""


NOTED = 256
"""How many values are noted before they are counted."""


def taken(notes: deque[T]) -> list[T]:
    """Takes out the notes that are there now. Other threads may append meanwhile."""
    return [notes.popleft() for _ in range(len(notes))]


class Series:
    """One series: a sum or a histogram. Thread-safe: any thread may note a value, and `_lock`
    guards what the notes are counted in."""

    __slots__ = ("_histogram", "_lock", "_noted", "_total")

    def __init__(self, family: Family) -> None:
        self._noted: deque[float] = deque()
        self._lock = threading.Lock()
        self._total = 0.0
        self._histogram = Histogram(family.bounds) if family.kind == "histogram" else None

    def add(self, value: float) -> None:
        """Adds to a counter; counts an observation in a histogram."""
        self._noted.append(value)
        if len(self._noted) >= NOTED:
            self.snapshot()

    def add_all(self, values: Collection[float]) -> None:
        """Adds each of them."""
        self._noted.extend(values)
        self.snapshot()

    def snapshot(self) -> Value:
        with self._lock:
            values = taken(self._noted)
            if self._histogram is None:
                self._total += sum(values)
            else:
                self._histogram.observe_all(values)
            return self._total if self._histogram is None else self._histogram.snapshot()


class SeriesTable:
    """The series of one network. Thread-safe; `_lock` guards the tables, not what is in them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[tuple[Family, tuple[str, ...]], Series] = {}
        self._elsewhere: dict[object, Callable[[], Iterable[SeriesSnapshot]]] = {}

    def get(self, family: Family, *labels: str) -> Series:
        """The series with these values of the family's labels, made at the first call."""
        if len(labels) != len(family.labels):
            raise ValueError(f"{family.name} has the labels {family.labels}, not {labels}")
        key = family, labels
        with self._lock:
            if (series := self._series.get(key)) is None:
                series = self._series[key] = Series(family)
            return series

    def add(self, read: Callable[[], Iterable[SeriesSnapshot]]) -> Callable[[], None]:
        """Adds series that are counted elsewhere. Each snapshot calls `read`, on any thread.

        Returns:
            A function that removes these series.
        """
        ticket = object()
        with self._lock:
            self._elsewhere[ticket] = read

        def end() -> None:
            with self._lock:
                self._elsewhere.pop(ticket, None)

        return end

    def snapshot(self) -> Snapshot:
        with self._lock:
            series, elsewhere = list(self._series.items()), list(self._elsewhere.values())
        own = (SeriesSnapshot(family, labels, each.snapshot()) for (family, labels), each in series)
        return (*own, *(snapshot for read in elsewhere for snapshot in read()))
