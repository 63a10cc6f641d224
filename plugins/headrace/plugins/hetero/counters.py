"""What is counted of each subgraph: how long it runs, and what it takes from others."""

from __future__ import annotations

from headrace.runtime.metrics.counters import REQUEST_SECONDS
from headrace.runtime.metrics.series import Family, SeriesTable

EXECUTION_SECONDS = Family(
    "subgraph_execution_seconds",
    "histogram",
    ("subgraph", "device"),
    "Time of a subgraph on a stream, in a network that HETERO split.",
    REQUEST_SECONDS,
)
CUT_BYTES = Family(
    "subgraph_cut_bytes_total",
    "counter",
    ("subgraph", "device"),
    "Bytes that a subgraph read from others, in a network that HETERO split.",
)
MOST_NUMBERED = 32
"""Subgraphs with series of their own; the others of a device share one, labelled ``more``."""


class SubgraphCounters:
    """The counters of one subgraph."""

    __slots__ = ("_bytes", "_seconds")

    def __init__(self, table: SeriesTable, number: int, device: str) -> None:
        label = str(number) if number <= MOST_NUMBERED else "more"
        self._seconds = table.get(EXECUTION_SECONDS, label, device)
        self._bytes = table.get(CUT_BYTES, label, device)

    def observe(self, execution_seconds: float, cut_bytes: int) -> None:
        self._seconds.add(execution_seconds)
        self._bytes.add(cut_bytes)
