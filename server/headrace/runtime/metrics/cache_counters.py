"""The counters of the cache of compiled networks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from headrace.runtime.metrics import families
from headrace.runtime.metrics.series import Family, SeriesSnapshot, Snapshot

CacheEvent: TypeAlias = Literal["hit", "miss", "refused", "skipped", "write_failed"]
"""What the cache did for one load. A refused entry is a miss too. A load is skipped, and is neither
hit nor miss, if its device exports nothing that the cache could keep."""

EVENTS: Final[Mapping[CacheEvent, Family]] = {
    "hit": families.CACHE_HITS,
    "miss": families.CACHE_MISSES,
    "refused": families.CACHE_REFUSED,
    "skipped": families.CACHE_SKIPPED,
    "write_failed": families.CACHE_WRITE_FAILURES,
}


class CacheCounters:
    """Counters of one server's use of its cache. Thread-safe: `_lock` guards all fields, and no
    other lock is taken under it."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._events: Counter[tuple[str, CacheEvent]] = Counter()
        self._evicted = 0
        self._held_bytes = 0

    def count(self, device: str, *events: CacheEvent) -> None:
        """Counts the cache events of a load on a device."""
        with self._lock:
            self._events.update((device, event) for event in events)

    def evict(self) -> None:
        """Counts an entry that was removed for newer ones."""
        with self._lock:
            self._evicted += 1

    def hold(self, held_bytes: int) -> None:
        """Records the size of all entries."""
        with self._lock:
            self._held_bytes = held_bytes

    def snapshot(self) -> Snapshot:
        with self._lock:
            events = [
                SeriesSnapshot(EVENTS[event], (device,), count)
                for (device, event), count in self._events.items()
            ]
            return (
                *events,
                SeriesSnapshot(families.CACHE_EVICTED, (), self._evicted),
                SeriesSnapshot(families.CACHE_BYTES, (), self._held_bytes),
                SeriesSnapshot(families.CACHE_CAPACITY_BYTES, (), self._capacity_bytes),
            )
