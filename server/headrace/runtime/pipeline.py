"""A request's way through its stages: a list of (share of an executor, stage).

Adjacent stages on one executor run as one task, so a request to a device that computes in the
calling thread is one hop. A stage that raises ends its own request alone. No stage waits for
another request: what depends on a completion goes on from that completion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from headrace.runtime.errors import DeadlineExceeded, HeadraceError
from headrace.runtime.fair_queue import Entry
from headrace.runtime.inline_budget import InlineBudget
from headrace.runtime.job import Job
from headrace.runtime.streams_executor import Share, Task
from headrace.runtime.timer import RESOLUTION_SECONDS, Timer, TimerEntry

Stage: TypeAlias = Callable[[Job], None]


class _Hop(NamedTuple):
    share: Share
    stages: tuple[Stage, ...]


class Pipeline:
    """The stages of one executable network.

    Args:
        stages: in order; adjacent ones with the same share become one hop.
        timer: ends requests that run longer than `execution_timeout` seconds (0: never).
        inline: keeps count of durations if the device may compute on the submitter's thread.
    """

    def __init__(
        self,
        stages: Sequence[tuple[Share, Stage]],
        timer: Timer,
        *,
        execution_timeout: float = 0.0,
        inline: InlineBudget | None = None,
    ) -> None:
        hops: list[_Hop] = []
        for share, stage in stages:
            if hops and hops[-1].share is share:
                hops[-1] = _Hop(share, (*hops[-1].stages, stage))
            else:
                hops.append(_Hop(share, (stage,)))
        self.hops = tuple(hops)
        self.timer = timer
        self.execution_timeout = execution_timeout
        self.inline = inline if len(hops) == 1 else None

    def start(self, job: Job) -> None:
        """Sends the job on its way; never blocks, unless the job may run inline."""
        inline = job.may_run_inline and self.inline is not None and self.inline.allows
        _Passage(self, job).enter(inline=inline)


class _Passage:
    """One job on its way; the task that executors see."""

    __slots__ = ("_entry", "_index", "_inline", "_pipeline", "_timeout", "job")

    def __init__(self, pipeline: Pipeline, job: Job) -> None:
        self._pipeline = pipeline
        self._index = 0
        self._entry: Entry[Task] | None = None
        self._timeout: TimerEntry | None = None
        self._inline = False
        self.job = job

    @property
    def priority(self) -> int:
        return self.job.priority

    def enter(self, *, inline: bool = False) -> None:
        """Submits the hop at hand."""
        self._inline = inline
        entry = self._pipeline.hops[self._index].share.submit(self, inline=inline)
        if entry is not None:
            self._entry = entry
            self.job.token.attach(self._leave_queue)

    def run(self, stream: int) -> None:  # noqa: ARG002 - a stream's number means nothing to a stage
        job = self.job
        if self._entry is not None:
            job.token.detach(self._leave_queue)
            self._entry = None
        now = time.monotonic()
        if job.deadline is not None and now >= job.deadline:
            job.token.cancel(DeadlineExceeded("the deadline passed before the request ran"))
        if job.token.error is not None:
            self.fail(job.token.error)
            return
        if not self._index:
            job.started = now
            self._watch(now)
        try:
            self._run_stages(job)
        except Exception as error:  # noqa: BLE001 - a stage's failure is its own request's outcome
            self.fail(error)
            return
        self._index += 1
        if self._index == len(self._pipeline.hops):
            self._unwatch()
            job.complete()
            return
        try:
            self.enter()
        except HeadraceError as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        self._unwatch()
        self.job.fail(error)

    def _run_stages(self, job: Job) -> None:
        stages = self._pipeline.hops[self._index].stages
        budget = self._pipeline.inline
        if budget is None:
            for stage in stages:
                stage(job)
            return
        # On a stream's thread the wall clock would count waiting for the interpreter too.
        clock = time.monotonic if self._inline else time.thread_time
        start = clock()
        for stage in stages:
            stage(job)
        budget.record(clock() - start)

    def _leave_queue(self) -> None:
        entry, error = self._entry, self.job.token.error
        share = self._pipeline.hops[self._index].share
        if entry is not None and error is not None and share.remove(entry):
            self.fail(error)

    def _watch(self, now: float) -> None:
        limit = self._pipeline.execution_timeout
        if limit:
            resolution = max(RESOLUTION_SECONDS, limit / 64)
            self._timeout = self._pipeline.timer.schedule(now + limit, self._time_is_up, resolution)

    def _unwatch(self) -> None:
        if self._timeout is not None:
            self._pipeline.timer.cancel(self._timeout)

    def _time_is_up(self) -> None:
        self.job.token.cancel(
            DeadlineExceeded(
                f"the request ran longer than EXECUTION_TIMEOUT, "
                f"{self._pipeline.execution_timeout:g} seconds"
            )
        )
