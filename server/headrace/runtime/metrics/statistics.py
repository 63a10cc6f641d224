"""Exact counts and total times of the requests to one loaded network, without a distribution."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.metrics.series import NOTED, taken

MAX_SIZES: Final = 256
"""Numbers of rows that runs are told apart by; clients choose them. Runs of any further number are
counted as runs of 0 rows."""


@dataclass(slots=True)
class Total:
    """How often something happened, and how long it took in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, durations: Sequence[float]) -> None:
        """Counts what took so many seconds each."""
        self.count += len(durations)
        self.seconds += sum(durations)

    @property
    def nanoseconds(self) -> int:
        return round(self.seconds * 1e9)


@dataclass(slots=True)
class Stages:
    """The stages of requests or of runs on the device."""

    preparation: Total = field(default_factory=Total)
    inference: Total = field(default_factory=Total)
    completion: Total = field(default_factory=Total)

    def add(self, ended: Sequence[tuple[float, float, float]]) -> None:
        """Counts requests or runs, each with the seconds of its three stages."""
        self.preparation.add([preparation for preparation, _, _ in ended])
        self.inference.add([inference for _, inference, _ in ended])
        self.completion.add([completion for _, _, completion in ended])


@dataclass(slots=True)
class Totals:
    """All that has ended.

    Attributes:
        outcomes: from admission to the end.
        queue: of the requests that completed.
        stages: of those that also ran.
        kept, not_kept: how long it took to look for kept replies, if the network keeps any: where
            there was one, and where there was none, with what it took to keep the new one.
        rows: that completed requests brought.
        runs: those that completed, by their number of rows.
        last_end: of a request, on `time.monotonic`'s clock; 0.0 if none has ended.
    """

    outcomes: dict[Outcome, Total] = field(
        default_factory=lambda: {outcome: Total() for outcome in Outcome}
    )
    queue: Total = field(default_factory=Total)
    kept: Total = field(default_factory=Total)
    not_kept: Total = field(default_factory=Total)
    stages: Stages = field(default_factory=Stages)
    rows: int = 0
    runs: dict[int, Stages] = field(default_factory=dict)
    last_end: float = 0.0


class _Ended(NamedTuple):
    """A note of a request that has ended. The fields are those of `Job`, and those of `observe`."""

    outcome: Outcome
    queued: float
    started: float
    prepared: float
    inferred: float
    finished: float
    rows: int
    is_run: bool

    def stages(self) -> tuple[float, float, float]:
        """Seconds before, in and after the backend. If the device does not report them, all count
        as in the backend."""
        if not self.inferred:
            return 0.0, self.finished - self.started, 0.0
        prepared = self.prepared or self.started
        return prepared - self.started, self.inferred - prepared, self.finished - self.inferred


_new: Final = tuple.__new__


class Statistics:
    """Counts what ends. Thread-safe: `_lock` guards the totals, and no lock is taken under it. An
    end is only noted. The notes are counted many at a time."""

    def __init__(self) -> None:
        self._ended: deque[_Ended] = deque()  # any thread may append
        self._lock = threading.Lock()
        self._totals = Totals()

    def observe(self, job: Job, rows: int, *, is_run: bool) -> None:
        """Counts the end of an admitted request.

        Args:
            rows: that it brought.
            is_run: the device ran it by itself; False where runs are counted with `observe_run`.
        """
        stamps = job.queued, job.started, job.prepared, job.inferred, job.finished
        # A tuple of the class, made without a call of Python code.
        self._ended.append(_new(_Ended, (job.outcome, *stamps, rows, is_run)))
        if len(self._ended) >= NOTED:
            with self._lock:
                self._count()

    def observe_run(self, job: Job, rows: int) -> None:
        """Counts a run of several requests' rows together; `job` has completed."""
        stamps = job.queued, job.started, job.prepared, job.inferred, job.finished
        times = _new(_Ended, (job.outcome, *stamps, rows, True)).stages()
        with self._lock:
            self._run(rows, [times])

    def observe_reply(self, seconds: float, *, kept: bool) -> None:
        """Counts a look for a kept reply, and whether there was one."""
        with self._lock:
            (self._totals.kept if kept else self._totals.not_kept).add([seconds])

    def totals(self) -> Totals:
        """A copy of what has been counted."""
        with self._lock:
            self._count()
            return copy.deepcopy(self._totals)

    def _count(self) -> None:
        totals, ended = self._totals, taken(self._ended)
        if not ended:
            return
        totals.last_end = ended[-1].finished
        for outcome, total in totals.outcomes.items():
            total.add([job.finished - job.queued for job in ended if job.outcome is outcome])
        completed = [job for job in ended if job.outcome is Outcome.COMPLETED]
        totals.queue.add([(job.started or job.finished) - job.queued for job in completed])
        totals.rows += sum([job.rows for job in completed])
        ran = [job for job in completed if job.started]
        times = [job.stages() for job in ran]
        totals.stages.add(times)
        runs: dict[int, list[tuple[float, float, float]]] = {}
        for job, stages in zip(ran, times, strict=True):
            if job.is_run:
                runs.setdefault(job.rows, []).append(stages)
        for rows, those in runs.items():
            self._run(rows, those)

    def _run(self, rows: int, times: Sequence[tuple[float, float, float]]) -> None:
        runs = self._totals.runs
        if rows not in runs:
            rows = rows if len(runs) < MAX_SIZES else 0
            runs.setdefault(rows, Stages())
        runs[rows].add(times)
