"""What is counted about the cache of compiled networks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

CacheEvent: TypeAlias = Literal["hit", "miss", "refused", "skipped", "write_failed"]
"""What befell one load. A refused entry is a miss too; a load is skipped, and neither hit nor miss,
where its device exports nothing that could be kept."""


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """
    Attributes:
        events: how often, by device and event.
        evicted: entries that were removed for newer ones.
        held_bytes: of all entries, when this server last looked.
        capacity_bytes: the most that they may take.
    """

    events: Mapping[tuple[str, CacheEvent], int]
    evicted: int
    held_bytes: int
    capacity_bytes: int


class CacheCounters:
    """Counters of one server's use of its cache. Thread-safe: `_lock` guards all; no other lock is
    taken under it."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._events: Counter[tuple[str, CacheEvent]] = Counter()
        self._evicted = 0
        self._held_bytes = 0

    def count(self, device: str, *events: CacheEvent) -> None:
        """Counts what befell a load on a device."""
        with self._lock:
            self._events.update((device, event) for event in events)

    def evict(self) -> None:
        """Counts an entry that was removed for newer ones."""
        with self._lock:
            self._evicted += 1

    def hold(self, held_bytes: int) -> None:
        """Takes note of the entries' size."""
        with self._lock:
            self._held_bytes = held_bytes

    def snapshot(self) -> CacheSnapshot:
        with self._lock:
            return CacheSnapshot(
                dict(self._events), self._evicted, self._held_bytes, self._capacity_bytes
            )
