"""One thread that calls back at deadlines.

Deadlines that fall into the same slot share a bucket, so scheduling and cancelling cost a
dictionary access, however many requests with a deadline come and go (the hashed timing wheel of
Varghese and Lauck, SOSP 1987, with a heap of non-empty slots in place of the ring).
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

RESOLUTION_SECONDS = 0.005


class TimerEntry:
    """A scheduled call; keep it to cancel it."""

    __slots__ = ("callback", "slot")

    def __init__(self, slot: float, callback: Callable[[], object]) -> None:
        self.slot = slot
        self.callback = callback


class TimerWheel:
    """The pure part: what is due when. Not thread-safe."""

    def __init__(self) -> None:
        self._buckets: dict[float, dict[TimerEntry, None]] = {}
        self._slots: list[float] = []

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def schedule(
        self, when: float, callback: Callable[[], object], resolution: float
    ) -> TimerEntry:
        slot = math.ceil(when / resolution) * resolution
        entry = TimerEntry(slot, callback)
        bucket = self._buckets.get(slot)
        if bucket is None:
            bucket = self._buckets[slot] = {}
            heapq.heappush(self._slots, slot)
        bucket[entry] = None
        return entry

    def cancel(self, entry: TimerEntry) -> None:
        bucket = self._buckets.get(entry.slot)
        if bucket is not None:
            bucket.pop(entry, None)

    def next_slot(self) -> float | None:
        return self._slots[0] if self._slots else None

    def take_due(self, now: float) -> list[TimerEntry]:
        """Removes and returns the entries whose time has come, earliest slot first."""
        due: list[TimerEntry] = []
        while self._slots and self._slots[0] <= now:
            due.extend(self._buckets.pop(heapq.heappop(self._slots)))
        return due


class Timer:
    """Calls back on its own thread, never early and late by at most the resolution.

    `_wake`'s lock guards the wheel; callbacks run outside it and must be brief.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wheel = TimerWheel()
        self._wake = threading.Condition(threading.Lock())
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="headrace-timer", daemon=True)
        self._thread.start()

    def schedule(
        self,
        when: float,
        callback: Callable[[], object],
        resolution: float = RESOLUTION_SECONDS,
    ) -> TimerEntry:
        """Has `callback` called at `when` (seconds on the timer's clock)."""
        with self._wake:
            first = self._wheel.next_slot()
            entry = self._wheel.schedule(when, callback, resolution)
            if first is None or entry.slot < first:
                self._wake.notify()
        return entry

    def cancel(self, entry: TimerEntry) -> None:
        """Forgets the call; it may already be under way."""
        with self._wake:
            self._wheel.cancel(entry)

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._stopped:
                    return
                now = self._clock()
                due = self._wheel.take_due(now)
                if not due:
                    slot = self._wheel.next_slot()
                    self._wake.wait(None if slot is None else slot - now)
                    continue
            for entry in due:
                try:
                    entry.callback()
                except Exception:  # noqa: BLE001 - one caller's bug must not end every deadline
                    _log.exception("timer callback failed")
