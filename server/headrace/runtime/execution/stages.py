"""Runs a request through its stages: a list of (share of an executor, stage).

Adjacent stages on one executor run as one task, so a request to a device that computes in the
calling thread is one hop. A stage that raises ends only its own request. No stage waits for another
request: work that depends on a completion is started by that completion.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from headrace.runtime.errors import DeadlineExceeded, HeadraceError, Internal
from headrace.runtime.execution.execution_timeout import ExecutionTimeout, Patience
from headrace.runtime.execution.fair_queue import Entry
from headrace.runtime.execution.inline_budget import InlineBudget
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.stream import ExecutionStream, Task
from headrace.runtime.execution.streams_executor import Share
from headrace.runtime.execution.timer import Timer

_log = logging.getLogger(__name__)

Stage: TypeAlias = Callable[[Job], None]
OnAnswer: TypeAlias = Callable[[BaseException | None], None]


class Dispatcher(Protocol):
    """Starts jobs in another process, without waiting. Thread-safe. Its methods do not raise."""

    def fits(self, job: Job) -> bool:
        """Whether it may be able to start the job. Takes microseconds."""

    def most_others(self) -> int:
        """How many jobs may go along with one and run after it."""

    def dispatch(self, jobs: Sequence[Job], on_answer: OnAnswer) -> bool:
        """Starts the jobs, which fit; each runs when the one before has ended. Returns False if it
        has started none. Otherwise it calls `on_answer` for each in their order, on any thread,
        with the error if the job failed."""


class _Hop(NamedTuple):
    share: Share
    stages: tuple[Stage, ...]


class StageRunner:
    """The stages of one executable network.

    Args:
        stages: in order; adjacent ones with the same share become one hop.
        timer: for `timeout`, which ends requests that run longer than `execution_timeout` seconds
            (0: never).
        inline: records durations if the device may compute on the submitter's thread.
        dispatcher: starts jobs that `may_run_inline` in another process, if they fit.
        patience: for runs that go on after `execution_timeout`, on any thread; None for none.
    """

    def __init__(
        self,
        stages: Sequence[tuple[Share, Stage]],
        timer: Timer,
        *,
        execution_timeout: float = 0.0,
        inline: InlineBudget | None = None,
        dispatcher: Dispatcher | None = None,
        patience: Patience | None = None,
    ) -> None:
        hops: list[_Hop] = []
        for share, stage in stages:
            if hops and hops[-1].share is share:
                hops[-1] = _Hop(share, (*hops[-1].stages, stage))
            else:
                hops.append(_Hop(share, (stage,)))
        self.hops = tuple(hops)
        self.timeout = ExecutionTimeout(timer, execution_timeout, patience=patience)
        self.inline = inline if len(hops) == 1 else None
        self.dispatcher = dispatcher if len(hops) == 1 else None

    def start(self, job: Job) -> None:
        """Starts the job. Never blocks, unless the job may run inline.

        Raises:
            Unavailable: the executor has stopped.
        """
        share, dispatcher = self.hops[0].share, self.dispatcher
        if job.may_run_inline and (
            job.token.error is None and dispatcher.fits(job)
            if dispatcher is not None
            else self.inline is not None and self.inline.allowed
        ):
            stream = share.executor.enter(share.flow)
            if stream is not None:
                if dispatcher is None:
                    self._run_here(job, stream)
                    return
                job.started = time.monotonic()
                self.timeout.begin(job)
                try:
                    if dispatcher.dispatch((job,), partial(self._answered, job, stream)):
                        return
                except Exception:  # noqa: BLE001 - the stream must not be lost with the job
                    _log.exception("a job could not be dispatched")
                self.timeout.end(job)
                job.started = 0.0
                share.executor.hand(stream, share.flow, _Passage(self, job))
                return
        passage = _Passage(self, job)
        passage.enter()
        if job.outcome is None:
            passage.listen()

    def _run_here(self, job: Job, stream: ExecutionStream) -> None:
        share = self.hops[0].share
        try:
            error = self.run(job, 0)
            self.timeout.running.pop(job, None)
            job.settle(error)
        finally:
            share.executor.leave(stream, share.flow)

    def _answered(self, job: Job, stream: ExecutionStream, error: BaseException | None) -> None:
        """Ends a job that was dispatched alone, when its answer has come."""
        share = self.hops[0].share
        # The next tasks are sent first, so that the other process need not wait for them.
        share.executor.leave(stream, share.flow)
        self.timeout.end(job)
        job.settle(error)

    def run(self, job: Job, index: int) -> BaseException | None:
        """Runs the stages of the hop `index` in this thread. Returns the error if the job failed,
        or None."""
        now = time.monotonic()
        if job.deadline is not None and now >= job.deadline:
            late = DeadlineExceeded("the deadline passed before the request ran")
            job.token.cancel(late)
            return late
        if job.token.error is not None:
            return job.token.error
        if not index:
            job.started = now
            self.timeout.begin(job)
        token, budget = job.token, self.inline
        clock = time.monotonic if budget is None else budget.clock
        start = now if clock is time.monotonic else clock()
        try:
            for stage in self.hops[index].stages:
                if token.error is not None:
                    break
                stage(job)
        except Exception as error:  # noqa: BLE001 - a stage's error fails only its own request
            return error
        except BaseException as error:  # noqa: BLE001 - SystemExit must not end the stream or server
            _log.critical("a stage raised", exc_info=error)
            return Internal(f"a stage ended with {error!r}")
        if budget is not None:
            seconds = clock() - start
            if seconds > budget.unremarkable:
                budget.record(seconds)
        return None

    def end(self, job: Job, error: BaseException | None) -> None:
        """Settles a job that has finished its last hop, or failed before."""
        self.timeout.end(job)
        job.settle(error)


class _Passage:
    """One job on its way through the stages. Executors see it as a task."""

    __slots__ = ("_index", "_listens", "_runner", "entry", "job")

    def __init__(self, runner: StageRunner, job: Job) -> None:
        self._runner = runner
        self._index = 0
        self._listens = False
        self.entry: Entry[Task] | None = None
        self.job = job

    @property
    def priority(self) -> int:
        return self.job.priority

    def enter(self) -> None:
        """Submits the current hop."""
        share = self._runner.hops[self._index].share
        share.submit(self)
        self.leave_if_cancelled()

    def listen(self) -> None:
        """Makes the job leave its queue as soon as it is cancelled. The job may already have ended
        on another thread: either `_end` sees `_listens`, or this method sees the outcome."""
        self._listens = True
        self.job.token.attach(self._leave_queue)
        if self.job.outcome is not None:
            self.job.token.detach(self._leave_queue)

    def dispatch(self, stream: ExecutionStream) -> bool:
        runner, now = self._runner, time.monotonic()
        dispatcher = runner.dispatcher
        if dispatcher is None or not self._may_dispatch(dispatcher, now):
            return False
        share, passages = runner.hops[0].share, deque((self,))
        if share.flow.waiting:

            def fits(task: Task) -> bool:
                return isinstance(task, _Passage) and task._may_dispatch(dispatcher, now)

            others: list[Any] = share.executor.take_more(share.flow, dispatcher.most_others(), fits)
            passages.extend(others)

        def answered(error: BaseException | None) -> None:
            passage = passages.popleft()
            if passages:
                passages[0].begin(time.monotonic())
            else:
                # The next tasks are sent first, so that the other process need not wait for them.
                share.executor.leave(stream, share.flow)
            passage._end(error)

        try:
            self.begin(now)
            if dispatcher.dispatch([passage.job for passage in passages], answered):
                return True
        except Exception:  # noqa: BLE001 - the other passages must not be lost with this one
            _log.exception("jobs could not be dispatched")
        runner.timeout.end(self.job)
        self.job.started = 0.0
        passages.popleft()
        _put_back(share, passages)
        return False

    def begin(self, now: float) -> None:
        """Records that the job runs in another process from now on."""
        self.job.started = now
        self._runner.timeout.begin(self.job)

    def _may_dispatch(self, dispatcher: Dispatcher, now: float) -> bool:
        job = self.job
        if not job.may_run_inline or job.token.error is not None:
            return False
        return (job.deadline is None or now < job.deadline) and dispatcher.fits(job)

    def run(self, stream: int) -> None:  # noqa: ARG002 - a stream's number means nothing to a stage
        failure = self._runner.run(self.job, self._index)
        if failure is not None or self._index + 1 == len(self._runner.hops):
            self._end(failure)
            return
        self._index += 1
        try:
            self.enter()
        except HeadraceError as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._runner.end(self.job, error)
        if self._listens:
            self.job.token.detach(self._leave_queue)

    def leave_if_cancelled(self) -> None:
        """The job may have been cancelled when it was in no queue."""
        if self.job.token.error is not None:
            self._leave_queue()

    def _leave_queue(self) -> None:
        # Read the entry first: when the next hop sets a new entry, this one has left the queue.
        entry, error = self.entry, self.job.token.error
        share = self._runner.hops[self._index].share
        if entry is not None and error is not None and share.remove(entry):
            self.fail(error)


def _put_back(share: Share, passages: Collection[_Passage]) -> None:
    """Lets jobs wait that could not be sent with another one."""
    if not passages:
        return
    try:
        share.executor.put_back(passages)
    except HeadraceError as error:
        for passage in passages:
            passage.fail(error)
        return
    for passage in passages:
        passage.leave_if_cancelled()
