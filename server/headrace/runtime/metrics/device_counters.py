"""The counters of one device.

A request costs a note of its begin and one of its end, so nobody needs to turn this off. The notes
are counted many at a time, when there are enough or a snapshot is taken. Of a job that a virtual
device has another device run as it is, only the virtual device notes the end, for both.

Accounting: every accepted request ends in exactly one `Outcome`, so at any moment
``accepted == completed + failed + cancelled + expired + in_flight``. A refused request was never
accepted; it is counted apart, with the reason.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from headrace.runtime.execution.job import CountParts, Outcome
from headrace.runtime.execution.trace import Exemplar
from headrace.runtime.metrics import families
from headrace.runtime.metrics.histogram import Histogram
from headrace.runtime.metrics.series import NOTED, Family, SeriesSnapshot, Snapshot, taken

_log = logging.getLogger(__name__)


_Ended: TypeAlias = "tuple[Outcome, float, float | None, Exemplar | None, CountParts | None]"
"""The arguments of `DeviceCounters.observe`."""

_Times: TypeAlias = tuple[list[float], list[float]]


class Requests:
    """Accepted and ended requests. Not thread-safe: the owner's lock guards it."""

    __slots__ = ("accepted", "outcomes")

    def __init__(self) -> None:
        self.accepted = 0
        self.outcomes = dict.fromkeys(Outcome, 0)

    def count(self, ended: Sequence[Outcome]) -> None:
        for outcome in self.outcomes:
            self.outcomes[outcome] += ended.count(outcome)

    def series(
        self, accepted: Family, ended: Family, labels: tuple[str, ...]
    ) -> Iterator[SeriesSnapshot]:
        yield SeriesSnapshot(accepted, labels, self.accepted)
        for outcome, count in self.outcomes.items():
            yield SeriesSnapshot(ended, (*labels, outcome), count)


class _Executions:
    """One kind of work on a device. The owner's lock guards all but the notes, to which anybody may
    append: `begun` gets None, and `ended` what each job's end is about."""

    __slots__ = ("begun", "ended", "execution_seconds", "queue_wait_seconds", "requests")

    def __init__(self) -> None:
        self.requests = Requests()
        self.begun: deque[None] = deque()
        self.ended: deque[_Ended] = deque()
        self.queue_wait_seconds = Histogram(families.DEVICE_QUEUE_WAIT_SECONDS.bounds)
        self.execution_seconds = Histogram(families.DEVICE_EXECUTION_SECONDS.bounds)

    def sort(self) -> Mapping[CountParts, _Times]:
        """Counts what has ended and begun so far, in this order, so that nothing has ended that has
        not begun. Returns what is to be counted at other devices, too."""
        ended, times = taken(self.ended), dict[CountParts, _Times]()
        if ended:
            outcomes, waits, runs, exemplars, elsewhere = zip(*ended, strict=True)
            self.requests.count(outcomes)
            self.queue_wait_seconds.observe_all(waits, exemplars)
            self.execution_seconds.observe_all(runs, exemplars)
            if any(elsewhere):
                for count, wait, run in zip(elsewhere, waits, runs, strict=True):
                    if count is not None:
                        there = times.setdefault(count, ([], []))
                        there[0].append(wait)
                        there[1].append(run or 0.0)
        self.requests.accepted += len(taken(self.begun))
        return times

    def series(self, *labels: str) -> Iterator[SeriesSnapshot]:
        yield from self.requests.series(families.DEVICE_ACCEPTED, families.DEVICE_REQUESTS, labels)
        waits, runs = self.queue_wait_seconds.snapshot(), self.execution_seconds.snapshot()
        yield SeriesSnapshot(families.DEVICE_QUEUE_WAIT_SECONDS, labels, waits)
        yield SeriesSnapshot(families.DEVICE_EXECUTION_SECONDS, labels, runs)


class DeviceCounters:
    """Counters of one device. Thread-safe.

    Parts of a request that is split over devices are counted apart from whole requests.

    Attributes:
        accept, accept_part: count a request, or a part, that the device's queue took. They are
            functions of C, because every request calls them.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        # Guards all below. Under it, `sort` takes the locks of devices that never delegate, and of
        # series, so that whoever reads them finds what another thread sorts at the moment.
        self._lock = threading.Lock()
        self._requests = _Executions()
        self._parts = _Executions()
        self.accept: Callable[[], None] = partial(self._requests.begun.append, None)
        self.accept_part: Callable[[], None] = partial(self._parts.begun.append, None)
        self._refused: dict[str, int] = {}
        self._gauges: dict[Family, Callable[[], float]] = {}

    def refuse(self, reason: str) -> None:
        """Counts a request that was not accepted; `reason` is one of few fixed words."""
        with self._lock:
            self._refused[reason] = self._refused.get(reason, 0) + 1

    def observe(
        self,
        outcome: Outcome,
        queue_seconds: float,
        execution_seconds: float | None,
        part: bool = False,
        exemplar: Exemplar | None = None,
        elsewhere: CountParts | None = None,
    ) -> None:
        """Counts the end of an accepted request.

        Args:
            outcome: how it ended.
            queue_seconds: from acceptance to the start on a stream, or to the end in the queue.
            execution_seconds: on a stream; None if it never got there.
            part: whether it was part of a request split over devices.
            exemplar: the request, if it is traced.
            elsewhere: counts it at the device that has completed it for this one.
        """
        executions = self._parts if part else self._requests
        executions.ended.append((outcome, queue_seconds, execution_seconds, exemplar, elsewhere))
        if len(executions.ended) >= NOTED:
            self.sort()

    def count_parts(self, waits: Collection[float], runs: Collection[float]) -> None:
        """Counts parts that have completed, and of which another device has noted the ends: what
        each waited in the queue, and ran."""
        with self._lock:
            self._parts.requests.accepted += len(runs)
            self._parts.requests.outcomes[Outcome.COMPLETED] += len(runs)
            self._parts.queue_wait_seconds.observe_all(waits)
            self._parts.execution_seconds.observe_all(runs)

    def sort(self) -> None:
        """Counts the notes, here and at the devices that have completed requests for this one."""
        with self._lock:
            for executions in (self._requests, self._parts):
                for count, (waits, runs) in executions.sort().items():
                    count(waits, runs)

    def requests(self) -> tuple[int, int]:
        """How many requests were accepted, and how many of them have ended; no parts."""
        self.sort()
        with self._lock:
            requests = self._requests.requests
            return requests.accepted, sum(requests.outcomes.values())

    def register_gauge(self, gauge: Family, read: Callable[[], float]) -> None:
        """Makes snapshots call `read`, on any thread; it has to be quick. While it raises, the
        gauge is left out."""
        with self._lock:
            self._gauges[gauge] = read

    def unregister_gauges(self, *gauges: Family) -> None:
        """Removes these gauges and their functions, or all gauges if none is named."""
        with self._lock:
            for gauge in gauges or list(self._gauges):
                self._gauges.pop(gauge, None)

    def snapshot(self) -> Snapshot:
        """What is counted. First `sort` the virtual devices that delegate to this one."""
        self.sort()
        with self._lock:
            counted = [
                *self._requests.series(self.device, "request"),
                *self._parts.series(self.device, "part"),
                *(
                    SeriesSnapshot(families.DEVICE_REFUSED, (self.device, reason), count)
                    for reason, count in self._refused.items()
                ),
            ]
            gauges = dict(self._gauges)
        # Outside the lock: a gauge may take its executor's lock, whose holder may be counting.
        return (*counted, *self._read(gauges))

    def _read(self, gauges: Mapping[Family, Callable[[], float]]) -> Iterator[SeriesSnapshot]:
        for gauge, read in gauges.items():
            try:
                yield SeriesSnapshot(gauge, (self.device,), float(read()))
            except Exception as error:  # noqa: BLE001 - a driver may fail; the rest is shown
                _log.warning("gauge %s of %s cannot be read: %s", gauge.name, self.device, error)
