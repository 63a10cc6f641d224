"""Counts, for a network that several devices serve, what each device does."""

from __future__ import annotations

from headrace.runtime.metrics.series import Family, Series, SeriesTable

REQUESTS = Family(
    "member_requests_total",
    "counter",
    ("device", "outcome"),
    "Requests that MULTI or AUTO gave to each device, by outcome. rerun: the request failed there "
    "and runs again on another device.",
)
OUTAGES = Family(
    "member_outages_total",
    "counter",
    ("device",),
    "How often MULTI or AUTO took each device out of service.",
)
NOT_LOADED = Family(
    "member_load_failures_total",
    "counter",
    ("device",),
    "How often each device of MULTI or AUTO failed to load the network.",
)
RERUN = "rerun"


class MemberCounters:
    """The counters of one network's devices. Thread-safe: single operations on a dictionary are
    atomic, and two threads that make the same series get the same object.

    Args:
        table: the network's; None if nothing is counted.
    """

    def __init__(self, table: SeriesTable | None = None) -> None:
        self._table = table
        self._ends: dict[tuple[str, str], Series] = {}

    def ended(self, device: str, outcome: str) -> None:
        if self._table is None:
            return
        series = self._ends.get((device, outcome))
        if series is None:
            series = self._table.get(REQUESTS, device, outcome)
            self._ends[device, outcome] = series
        series.add(1)

    def taken_out(self, device: str) -> None:
        if self._table is not None:
            self._table.get(OUTAGES, device).add(1)

    def not_loaded(self, device: str) -> None:
        if self._table is not None:
            self._table.get(NOT_LOADED, device).add(1)
