"""One thread that calls back at deadlines.

Deadlines in the same slot share a bucket. So scheduling and cancelling cost one dictionary access,
however many requests with a deadline come and go. This is the hashed timing wheel of Varghese and
Lauck, SOSP 1987, with a heap of non-empty slots in place of the ring.
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
_LONGEST_SLEEP_SECONDS = 3600.0  # a lock cannot wait for more than about 292 years
_SWEEP = 64


class TimerEntry:
    """A scheduled call. Keep the entry if you may want to cancel it."""

    __slots__ = ("callback", "slot")

    def __init__(self, slot: float, callback: Callable[[], object]) -> None:
        self.slot = slot
        self.callback = callback


class TimerWheel:
    """The part without clock and thread: which entries are due when. Not thread-safe.

    A bucket that cancelling has emptied stays until its slot comes first, or until most buckets are
    empty. So distant deadlines of requests that ended long ago take no memory and wake no thread.
    """

    def __init__(self) -> None:
        self._buckets: dict[float, dict[TimerEntry, None]] = {}
        self._slots: list[float] = []
        self._empty = 0

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    @property
    def slots(self) -> int:
        """How many buckets are kept, including empty ones."""
        return len(self._slots)

    def schedule(
        self, when: float, callback: Callable[[], object], resolution: float
    ) -> TimerEntry:
        slot = _slot(when, resolution)
        entry = TimerEntry(slot, callback)
        bucket = self._buckets.get(slot)
        if bucket is None:
            bucket = self._buckets[slot] = {}
            heapq.heappush(self._slots, slot)
        elif not bucket:
            self._empty -= 1
        bucket[entry] = None
        return entry

    def cancel(self, entry: TimerEntry) -> None:
        bucket = self._buckets.get(entry.slot)
        if bucket is None or entry not in bucket:
            return
        del bucket[entry]
        if not bucket:
            self._empty += 1
            if self._empty > _SWEEP and 2 * self._empty > len(self._slots):
                self._sweep()

    def next_slot(self) -> float | None:
        """When the first entry is due."""
        while self._slots and not self._buckets[self._slots[0]]:
            del self._buckets[heapq.heappop(self._slots)]
            self._empty -= 1
        return self._slots[0] if self._slots else None

    def take_due(self, now: float) -> list[TimerEntry]:
        """Removes and returns the entries whose time has come, earliest slot first."""
        due: list[TimerEntry] = []
        while (slot := self.next_slot()) is not None and slot <= now:
            due.extend(self._buckets.pop(heapq.heappop(self._slots)))
        return due

    def _sweep(self) -> None:
        self._buckets = {slot: bucket for slot, bucket in self._buckets.items() if bucket}
        self._slots = sorted(self._buckets)
        self._empty = 0


def _slot(when: float, resolution: float) -> float:
    """The first multiple of the resolution that is not before `when`."""
    ticks = when / resolution
    if ticks == math.inf:
        return when
    slot = math.ceil(ticks) * resolution
    return slot if slot >= when else slot + resolution  # the quotient was rounded down


class Timer:
    """Calls back on its own thread, never early and late by at most the resolution.

    `_wake`'s lock guards all fields; callbacks run outside it and must be brief.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wheel = TimerWheel()
        self._wake = threading.Condition(threading.Lock())
        self._stopped = False
        self._sleeps_until = -math.inf  # the thread is awake
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
            entry = self._wheel.schedule(when, callback, resolution)
            if entry.slot < self._sleeps_until:
                self._sleeps_until = -math.inf
                self._wake.notify()
        return entry

    def cancel(self, entry: TimerEntry) -> None:
        """Forgets the call. The callback may already be running."""
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
                    self._sleeps_until = math.inf if slot is None else slot
                    self._wake.wait(
                        None if slot is None else min(slot - now, _LONGEST_SLEEP_SECONDS)
                    )
                    self._sleeps_until = -math.inf
                    continue
            for entry in due:
                _call(entry.callback)
            del entry  # it would keep what is called until the next deadline


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except BaseException:  # noqa: BLE001 - one caller's bug must not end every deadline
        _log.exception("timer callback failed")
