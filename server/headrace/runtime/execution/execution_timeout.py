"""EXECUTION_TIMEOUT: a limit on the time of every run of one network.

Runs begin and end often, and rarely take too long, so each is only recorded. A single timer entry
waits for the limit of the oldest run, and then for that of the oldest run left.

A run that has been cancelled should end soon. If it does not, a device may end it by force: its
`Patience` says when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from headrace.runtime.errors import RanTooLong
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.timer import RESOLUTION_SECONDS, Timer, TimerEntry

_PATIENCE_RESOLUTION_SECONDS: Final = 0.5


class Patience(NamedTuple):
    """What is done about a run that goes on after it has been cancelled.

    Attributes:
        seconds: how long it may go on.
        end: ends the job's run; must be brief.
    """

    seconds: float
    end: Callable[[Job], object]


class ExecutionTimeout:
    """Cancels jobs that run longer than `seconds` (0: never). Thread-safe.

    `_lock` guards the timer entry and the limit. The running jobs are in the order in which they
    started; single operations on a dictionary are atomic. The limit may change, and then applies to
    current runs too.

    Args:
        patience: for runs that ignore the cancel; None if nothing can be done about them.

    Attributes:
        running: the jobs that run. If there is no patience, a job may be removed directly, which
            saves the call of `end`.
    """

    def __init__(
        self,
        timer: Timer,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        patience: Patience | None = None,
    ) -> None:
        self._timer = timer
        self._clock = clock
        self._seconds = seconds
        self._lock = threading.Lock()
        self.running: dict[Job, None] = {}
        self._patience = patience
        self._cancelled: dict[Job, TimerEntry] = {}  # the runs that patience is kept with
        self._entry: TimerEntry | None = None

    @property
    def seconds(self) -> float:
        return self._seconds

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        with self._lock:
            self._seconds = seconds
            if self._entry is not None:
                self._timer.cancel(self._entry)
                self._entry = None
        self._arm()

    def begin(self, job: Job) -> None:
        """Records that a run began. The job's `started` is set."""
        self.running[job] = None
        if self._entry is None:
            self._arm()

    def end(self, job: Job) -> None:
        """Records that a run is over. Nothing happens if it never began."""
        self.running.pop(job, None)
        if self._cancelled and (entry := self._cancelled.pop(job, None)) is not None:
            self._timer.cancel(entry)

    def close(self) -> None:
        """Gives the timer entry back. No run is left and none will begin."""
        with self._lock:
            if self._entry is not None:
                self._timer.cancel(self._entry)
                self._entry = None

    def _arm(self) -> None:
        """Schedules a timer entry if a run has begun and none is scheduled."""
        with self._lock:
            oldest = next(iter(list(self.running)), None)
            if oldest is None or self._entry is not None or not self._seconds:
                return
            # A coarse slot for a long limit, so that few slots are in use.
            self._entry = self._timer.schedule(
                oldest.started + self._seconds,
                self._check,
                max(RESOLUTION_SECONDS, self._seconds / 64),
            )

    def _check(self) -> None:
        with self._lock:
            self._entry = None
            limit = self._seconds
        now = self._clock()
        for job in list(self.running):
            # In this order: a job that has ended here may begin anew on another device.
            if limit and now - job.started >= limit and job in self.running:
                if self._patience is not None:
                    self._be_patient(job, now, self._patience)
                self.running.pop(job, None)
                job.token.cancel(
                    RanTooLong(f"the request ran longer than EXECUTION_TIMEOUT, {limit:g} seconds")
                )
        self._arm()

    def _be_patient(self, job: Job, now: float, patience: Patience) -> None:
        when = now + patience.seconds
        end = partial(patience.end, job)
        entry = self._timer.schedule(when, end, _PATIENCE_RESOLUTION_SECONDS)
        self._cancelled[job] = entry
        if job not in self.running:  # it has ended meanwhile, perhaps before it was listed
            self.end(job)
