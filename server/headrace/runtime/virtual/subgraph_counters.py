"""The counters of the parts that a network's requests always have: subgraphs, or steps."""

from __future__ import annotations

from collections.abc import Collection

from headrace.runtime.metrics.families import REQUEST_SECONDS
from headrace.runtime.metrics.series import Family, SeriesTable

EXECUTION_SECONDS = Family(
    "subgraph_execution_seconds",
    "histogram",
    ("subgraph", "device"),
    "Time of a subgraph on a stream, in a network that HETERO split, or of a step of a pipeline.",
    REQUEST_SECONDS,
)
CUT_BYTES = Family(
    "subgraph_cut_bytes_total",
    "counter",
    ("subgraph", "device"),
    "Bytes that a subgraph read from others, in a network that HETERO split, or a step of a "
    "pipeline.",
)
MOST_NUMBERED = 32
"""How many subgraphs have series of their own. The other subgraphs of a device share a series,
labelled ``more``."""


class SubgraphCounters:
    """The counters of one subgraph, or of one step.

    Args:
        number: from 1, in execution order.
    """

    __slots__ = ("_bytes", "_seconds")

    def __init__(self, table: SeriesTable, number: int, device: str) -> None:
        label = str(number) if number <= MOST_NUMBERED else "more"
        self._seconds = table.get(EXECUTION_SECONDS, label, device)
        self._bytes = table.get(CUT_BYTES, label, device)

    def observe_all(self, execution_seconds: Collection[float]) -> None:
        """Counts runs that have read nothing from others."""
        self._seconds.add_all(execution_seconds)

    def observe(self, execution_seconds: float, cut_bytes: int) -> None:
        self._seconds.add(execution_seconds)
        if cut_bytes:
            self._bytes.add(cut_bytes)
