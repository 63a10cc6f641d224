"""The counters of a network's sequences."""

from __future__ import annotations

from headrace.runtime.metrics.series import Family, SeriesTable
from headrace.runtime.sequences.table import Ending

OPEN = Family("network_sequences_open", "gauge", (), "Sequences that are open.")
STATE_BYTES = Family(
    "network_sequences_state_bytes", "gauge", (), "What the states of open sequences take."
)
STARTED = Family("network_sequences_started_total", "counter", (), "Sequences that were begun.")
ENDED = Family(
    "network_sequences_ended_total",
    "counter",
    ("how",),
    "Sequences by their end: ended by a request, restarted under the same id, expired after "
    "SEQUENCE_IDLE_TIMEOUT, or unloaded with the network.",
)
FAMILIES = (OPEN, STATE_BYTES, STARTED, ENDED)


class SequenceCounters:
    """Thread-safe."""

    def __init__(self, series: SeriesTable) -> None:
        self._started = series.get(STARTED)
        self._ended = {how: series.get(ENDED, how) for how in Ending}

    def note(self, how: Ending | None) -> None:
        """Counts the end of a sequence. With None it counts the start of a sequence."""
        (self._started if how is None else self._ended[how]).add(1)
