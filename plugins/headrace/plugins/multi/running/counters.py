"""Counts, for a network that several devices serve, what each device does."""

from __future__ import annotations

from functools import cache, partial

from headrace.runtime.execution.job import Outcome
from headrace.runtime.metrics.series import Family, SeriesTable

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
    """The counters of one network's devices. Thread-safe.

    Args:
        table: the network's; None if nobody reads what is counted.

    Attributes:
        requests: the series of a device and an outcome. Each is looked up once.
        outages, not_loaded: the series of a device.
    """

    def __init__(self, table: SeriesTable | None = None) -> None:
        table = table or SeriesTable()
        self.requests = cache(partial(table.get, REQUESTS))
        self.outages = partial(table.get, OUTAGES)
        self.not_loaded = partial(table.get, NOT_LOADED)

    def completed(self, device: str) -> int:
        """How many requests the device has completed."""
        count = self.requests(device, Outcome.COMPLETED).snapshot()
        assert isinstance(count, int | float)
        return int(count)
