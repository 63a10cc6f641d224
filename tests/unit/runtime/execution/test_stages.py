"""A request's way: hops, cancel and deadline in the queue, timeouts, failures, running inline."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from queue import Queue

import pytest

from headrace.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    Unavailable,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.execution_timeout import Patience
from headrace.runtime.execution.inline_budget import InlineBudget
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.execution.stages import Stage, StageRunner
from headrace.runtime.execution.stream import Task
from headrace.runtime.execution.streams_executor import Share, StreamsExecutor
from headrace.runtime.execution.timer import Timer
from tests.support.fake_device import Outcomes, rows
from tests.support.gate import Gate, run_together
from tests.support.interleaving import frequent_switches
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def timer() -> Iterator[Timer]:
    timer = Timer()
    yield timer
    timer.stop()


@pytest.fixture
def make_share() -> Iterator[Callable[..., Share]]:
    executors: list[StreamsExecutor] = []

    def make(name: str = "FAKE", streams: int = 1) -> Share:
        executors.append(StreamsExecutor(name, streams))
        return executors[-1].share(1024)

    yield make
    for executor in executors:
        executor.stop(PATIENCE_SECONDS)


class Quick(InlineBudget):
    """Always allows, and keeps what it was told."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        super().__init__()
        self.allowed = True
        self.seconds: list[float] = []

    def record(self, seconds: float) -> None:
        self.seconds.append(seconds)


def nothing(job: Job) -> None:
    """A stage that computes nothing."""


def fail(job: Job) -> None:
    raise InvalidArgument("this one only")


def writes_thread(job: Job) -> None:
    job.outputs.setdefault("threads", []).append(threading.current_thread().name)  # type: ignore[union-attr, arg-type]


# -- hops --


def test_adjacent_stages_of_one_share_are_one_hop(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    host, device = make_share("HOST"), make_share("DEVICE")
    stages: list[tuple[Share, Stage]] = [
        (host, nothing),
        (host, nothing),
        (device, nothing),
        (host, nothing),
    ]
    runner = StageRunner(stages, timer)
    assert [(hop.share, len(hop.stages)) for hop in runner.hops] == [
        (host, 2),
        (device, 1),
        (host, 1),
    ]


def test_each_stage_runs_on_its_own_executor_in_order(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    host, device = make_share("HOST"), make_share("DEVICE")
    outcomes = Outcomes()
    StageRunner(
        [(host, writes_thread), (device, writes_thread), (host, writes_thread)], timer
    ).start(outcomes.job())
    (job,) = outcomes.wait()
    assert job.outputs["threads"] == ["HOST-stream-0", "DEVICE-stream-0", "HOST-stream-0"]
    assert job.outcome is Outcome.COMPLETED


def test_a_hop_gives_its_stream_free_before_the_next_one_runs(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    host, device = make_share("HOST"), make_share("DEVICE")
    gate, outcomes = Gate(), Outcomes()
    runner = StageRunner([(host, nothing), (device, lambda _: gate())], timer)
    runner.start(outcomes.job())
    gate.await_arrivals()
    StageRunner([(host, nothing)], timer).start(outcomes.job())
    outcomes.wait(1)
    gate.open()
    outcomes.wait(2)


def test_a_job_has_started_when_its_first_stage_runs(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    outcomes, before = Outcomes(), time.monotonic()
    StageRunner([(make_share(), nothing)], timer).start(outcomes.job())
    (job,) = outcomes.wait()
    assert before <= job.started <= job.finished


# -- failure --


def test_a_stage_that_raises_ends_its_own_job_alone(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    share, outcomes, after = make_share(), Outcomes(), Outcomes()
    ran: list[str] = []
    broken = StageRunner([(share, fail), (share, lambda _: ran.append("later stage"))], timer)
    broken.start(outcomes.job())
    StageRunner([(share, nothing)], timer).start(after.job())
    (failed,), (other,) = outcomes.wait(), after.wait()
    assert isinstance(failed.error, InvalidArgument)
    assert (failed.outcome, failed.outputs, ran) == (Outcome.FAILED, {}, [])
    assert other.outcome is Outcome.COMPLETED


@pytest.mark.parametrize("inline", [False, True])
def test_a_stage_that_ends_its_thread_fails_its_job_and_the_device_works_on(
    timer: Timer, make_share: Callable[..., Share], inline: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(job: Job) -> None:
        raise SystemExit(1)

    share, outcomes = make_share(), Outcomes()
    StageRunner([(share, leave)], timer, inline=Quick()).start(outcomes.job(may_run_inline=inline))
    outcomes.wait(1)
    StageRunner([(share, nothing)], timer).start(outcomes.job())
    failed, other = outcomes.wait(2)
    assert isinstance(failed.error, Internal)
    assert other.outcome is Outcome.COMPLETED
    (record,) = (each for each in caplog.records if each.exc_info)
    assert "in leave" in logging.Formatter().formatException(record.exc_info)  # type: ignore[arg-type]


def test_a_next_hop_on_a_stopped_executor_fails_the_job(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    host, device = make_share("HOST"), make_share("DEVICE")
    outcomes = Outcomes()
    device.executor.stop(PATIENCE_SECONDS)
    StageRunner([(host, nothing), (device, nothing)], timer).start(outcomes.job())
    (job,) = outcomes.wait()
    assert (job.outcome, getattr(job.error, "status", None)) == (Outcome.FAILED, "UNAVAILABLE")


# -- cancel --


def occupied(share: Share, timer: Timer, outcomes: Outcomes) -> Gate:
    gate = Gate()
    StageRunner([(share, lambda _: gate())], timer).start(outcomes.job())
    gate.await_arrivals()
    return gate


def test_a_cancelled_job_leaves_the_queue_at_once(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    share, blocker, outcomes = make_share(), Outcomes(), Outcomes()
    gate = occupied(share, timer, blocker)
    job = outcomes.job()
    StageRunner([(share, nothing)], timer).start(job)
    assert share.executor.waiting == 1
    job.token.cancel(Cancelled("enough"))
    assert (job.outcome, job.started) == (Outcome.CANCELLED, 0.0)
    assert share.executor.waiting == 0
    gate.open()
    blocker.wait()


def test_a_job_cancelled_before_it_starts_does_not_run(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    ran: list[Job] = []
    outcomes, token = Outcomes(), CancelToken()
    token.cancel(Cancelled("too late"))
    StageRunner([(make_share(), ran.append)], timer).start(outcomes.job(token=token))
    assert outcomes.wait()[0].outcome is Outcome.CANCELLED
    assert ran == []


def test_a_job_cancelled_in_the_queue_of_a_later_hop_leaves_it_at_once(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    host, device, blocker, outcomes = make_share("HOST"), make_share(), Outcomes(), Outcomes()
    gate = occupied(device, timer, blocker)
    before = Gate()
    job = outcomes.job()
    StageRunner([(host, lambda _: before()), (device, nothing)], timer).start(job)
    before.await_arrivals()
    before.open()
    # The host's stream is free again when the job stands in the device's queue.
    probe = Outcomes()
    StageRunner([(host, nothing)], timer).start(probe.job())
    probe.wait()
    assert device.executor.waiting == 1
    job.token.cancel(Cancelled("enough"))
    assert job.outcome is Outcome.CANCELLED
    assert device.executor.waiting == 0
    gate.open()
    blocker.wait()


def test_a_running_job_ends_when_its_stage_returns_and_skips_the_stages_left(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    share, gate, outcomes, ran = make_share(), Gate(), Outcomes(), list[Job]()
    job = outcomes.job()
    StageRunner([(share, lambda _: gate()), (share, ran.append)], timer).start(job)
    gate.await_arrivals()
    job.token.cancel(Cancelled("enough"))
    assert job.outcome is None
    gate.open()
    outcomes.wait()
    assert outcomes.count() == {Outcome.CANCELLED: 1}
    assert ran == []


class Slow(Share):
    """Runs a task before `submit` returns, as a stream may that is quicker than the submitter."""

    def submit(self, task: Task) -> None:
        place = self.executor.enter(self.flow)
        if place is None:
            super().submit(task)
            return
        try:
            task.run(place.index)
        finally:
            self.executor.leave(place, self.flow)


def test_a_job_that_ended_leaves_no_hook_on_its_token(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    share, outcomes, token = make_share(), Outcomes(), CancelToken()
    quicker = Slow(share.executor, share.flow)
    for each in (share, quicker):
        for stage in (nothing, fail):
            StageRunner([(each, stage)], timer).start(outcomes.job(token=token))
    outcomes.wait(4)
    probe = Outcomes()
    StageRunner([(share, nothing)], timer).start(probe.job())
    probe.wait()
    assert token._hooks == CancelToken()._hooks


def test_cancelling_at_any_moment_gives_every_job_one_outcome(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    host, device, outcomes = make_share("HOST"), make_share("DEVICE", 2), Outcomes()
    runner = StageRunner([(host, nothing), (device, nothing), (host, nothing)], timer)
    jobs = [outcomes.job() for _ in range(600)]

    def submit() -> None:
        for job in jobs:
            runner.start(job)

    def cancel() -> None:
        for job in jobs:
            job.token.cancel(Cancelled("enough"))

    with frequent_switches():
        run_together(submit, cancel, cancel)
    outcomes.wait(600)
    assert len(set(map(id, outcomes.jobs))) == 600
    assert set(outcomes.count()) <= {Outcome.COMPLETED, Outcome.CANCELLED}
    assert (host.executor.waiting, device.executor.waiting) == (0, 0)


# -- deadline and timeout --


def test_a_job_whose_deadline_has_passed_does_not_run(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    ran: list[Job] = []
    outcomes = Outcomes()
    StageRunner([(make_share(), ran.append)], timer).start(
        outcomes.job(deadline=time.monotonic() - 1)
    )
    (job,) = outcomes.wait()
    assert (job.outcome, job.started, ran) == (Outcome.EXPIRED, 0.0, [])
    assert isinstance(job.error, DeadlineExceeded)


def waits_for_cancel(job: Job) -> None:
    cancelled = threading.Event()
    job.token.attach(cancelled.set)
    assert cancelled.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("inline", [False, True])
def test_a_run_ends_at_the_execution_timeout(
    timer: Timer, make_share: Callable[..., Share], inline: bool
) -> None:
    outcomes = Outcomes()
    runner = StageRunner(
        [(make_share(), waits_for_cancel)], timer, execution_timeout=0.02, inline=Quick()
    )
    runner.start(outcomes.job(may_run_inline=inline))
    (job,) = outcomes.wait()
    assert job.outcome is Outcome.EXPIRED
    assert "EXECUTION_TIMEOUT, 0.02 seconds" in str(job.error)
    assert job.execution_seconds >= 0.02


# -- inline --


def test_a_job_that_may_runs_inline_on_a_quick_network(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    outcomes, budget = Outcomes(), Quick()
    runner = StageRunner([(make_share(), writes_thread)], timer, inline=budget)
    job = outcomes.job(may_run_inline=True)
    runner.start(job)
    assert job.outcome is Outcome.COMPLETED
    assert job.outputs["threads"] == [threading.current_thread().name]
    assert len(budget.seconds) == 1


def test_a_job_runs_on_a_stream_if_it_may_not_run_inline_or_the_network_is_not_quick(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    share, outcomes = make_share(), Outcomes()
    StageRunner([(share, writes_thread)], timer, inline=Quick()).start(outcomes.job())
    outcomes.wait(1)
    unknown = StageRunner([(share, writes_thread)], timer, inline=InlineBudget())
    unknown.start(outcomes.job(may_run_inline=True))
    outcomes.wait(2)
    StageRunner([(share, writes_thread)], timer).start(outcomes.job(may_run_inline=True))
    for job in outcomes.wait(3):
        assert job.outputs["threads"] == ["FAKE-stream-0"]


def test_a_job_of_several_hops_never_runs_inline(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    host, device, outcomes = make_share("HOST"), make_share("DEVICE"), Outcomes()
    runner = StageRunner([(host, writes_thread), (device, nothing)], timer, inline=Quick())
    runner.start(outcomes.job(may_run_inline=True))
    assert outcomes.wait()[0].outputs["threads"] == ["HOST-stream-0"]


def test_a_run_on_a_stream_counts_processor_time_and_not_waiting(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    share, outcomes, budget = make_share(), Outcomes(), Quick()
    blocker = occupied(share, timer, outcomes)

    def waits(job: Job) -> None:
        threading.Event().wait(0.03)

    # It may run inline, but no stream is idle.
    StageRunner([(share, waits)], timer, inline=budget).start(outcomes.job(may_run_inline=True))
    blocker.open()
    outcomes.wait(2)
    assert budget.seconds[0] < 0.02


# -- memory --


@pytest.mark.parametrize("inline", [False, True])
def test_an_ended_job_is_freed_without_the_garbage_collector(
    timer: Timer, make_share: Callable[..., Share], inline: bool
) -> None:
    share = make_share()
    runner = StageRunner([(share, nothing)], timer, execution_timeout=600, inline=Quick())
    gc.collect()
    gc.disable()
    try:
        tensor, done = rows(), threading.Event()
        freed = weakref.ref(tensor)
        runner.start(Job({"x": tensor}, lambda _: done.set(), may_run_inline=inline))
        assert done.wait(PATIENCE_SECONDS)
        del tensor
        # The stream's thread lets go of the job before it takes another.
        probe = Outcomes()
        runner.start(probe.job())
        probe.wait()
        assert freed() is None
    finally:
        gc.enable()


# -- dispatching --


class Refusing:
    """A dispatcher that takes others along and then cannot start."""

    patience: Patience | None = None

    def __init__(self, meanwhile: Callable[[Sequence[Job]], object] = lambda _: None) -> None:
        self._meanwhile = meanwhile
        self.sizes: list[int] = []

    def fits(self, job: Job) -> bool:
        return True

    def most_others(self) -> int:
        return 3

    def dispatch(self, jobs: Sequence[Job], on_answer: object) -> bool:
        self.sizes.append(len(jobs))
        if len(jobs) > 1:
            self._meanwhile(jobs)
        return False


def start_ten(
    timer: Timer, share: Share, dispatcher: Refusing
) -> tuple[list[Job], list[Job], list[Job]]:
    """Starts ten jobs on a busy stream, and returns them, those that ran and those that ended."""
    gate, ran, ended = Gate(), list[Job](), Queue[Job]()

    def stage(job: Job) -> None:
        ran.append(job)
        gate()

    runner = StageRunner([(share, stage)], timer, dispatcher=dispatcher)
    jobs = [Job({}, ended.put, may_run_inline=True) for _ in range(10)]
    for job in jobs:
        runner.start(job)
    gate.open()
    return jobs, ran, [ended.get(timeout=PATIENCE_SECONDS) for _ in jobs]


def test_jobs_that_could_not_be_sent_together_run_in_the_order_in_which_they_came(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    dispatcher = Refusing()
    jobs, ran, ended = start_ten(timer, make_share(), dispatcher)
    assert max(dispatcher.sizes) == 4
    assert ran == ended == jobs


def test_a_job_that_is_cancelled_while_it_could_not_be_dispatched_does_not_run(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    wanted = Cancelled("nobody wants it")
    dispatcher = Refusing(lambda jobs: jobs[1].token.cancel(wanted))
    jobs, ran, ended = start_ten(timer, make_share(), dispatcher)
    assert set(map(id, ended)) == set(map(id, jobs))
    cancelled = [job for job in jobs if job.outcome is Outcome.CANCELLED]
    assert cancelled
    assert [job for job in jobs if job not in cancelled] == ran


def test_jobs_that_could_not_be_dispatched_are_told_of_a_stop(
    timer: Timer, make_share: Callable[..., Share]
) -> None:
    share = make_share()

    def stop(_: object) -> None:
        stopping = threading.Thread(target=share.executor.stop, args=(0.0,))
        stopping.start()
        stopping.join(PATIENCE_SECONDS)

    jobs, ran, ended = start_ten(timer, share, Refusing(stop))
    assert set(map(id, ended)) == set(map(id, jobs))
    assert ran == jobs[:2]
    assert all(isinstance(job.error, Unavailable) for job in jobs[2:])
