"""EXECUTION_TIMEOUT for many runs with one timer entry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from headrace.runtime.errors import DeadlineExceeded
from headrace.runtime.execution.execution_timeout import ExecutionTimeout, Patience
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.timer import Timer, TimerEntry, TimerWheel
from tests.support.manual_clock import ManualClock
from tests.support.patience import PATIENCE_SECONDS


class ManualTimer(Timer):
    """A timer without a thread, that the test lets go on."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.wheel = TimerWheel()

    def schedule(
        self, when: float, callback: Callable[[], object], resolution: float = 0.005
    ) -> TimerEntry:
        return self.wheel.schedule(when, callback, resolution)

    def cancel(self, entry: TimerEntry) -> None:
        self.wheel.cancel(entry)

    def advance(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while (slot := self.wheel.next_slot()) is not None and slot <= until:
            self.clock.now = slot
            for entry in self.wheel.take_due(slot):
                entry.callback()
        self.clock.now = until


@pytest.fixture
def timer() -> ManualTimer:
    return ManualTimer(ManualClock(1000.0))


def bound(timer: ManualTimer, seconds: float) -> ExecutionTimeout:
    return ExecutionTimeout(timer, seconds, timer.clock)


def started(timer: ManualTimer) -> Job:
    job = Job({}, lambda _: None)
    job.started = timer.clock.now
    return job


def test_a_run_is_cancelled_when_its_time_is_up_and_not_before(timer: ManualTimer) -> None:
    timeout, job = bound(timer, 10.0), started(timer)
    timeout.begin(job)
    timer.advance(9.999)
    assert not job.token.cancelled
    timer.advance(0.001 + 10 / 64)
    assert isinstance(job.token.error, DeadlineExceeded)
    assert "longer than EXECUTION_TIMEOUT, 10 seconds" in job.token.error.message


def test_a_run_that_ended_is_left_alone(timer: ManualTimer) -> None:
    timeout, job = bound(timer, 10.0), started(timer)
    timeout.begin(job)
    timeout.end(job)
    timeout.end(job)
    timer.advance(100)
    assert not job.token.cancelled


def test_each_of_several_runs_has_its_own_time(timer: ManualTimer) -> None:
    timeout = bound(timer, 10.0)
    jobs = []
    for _ in range(3):
        jobs.append(started(timer))
        timeout.begin(jobs[-1])
        timer.advance(4)
    timeout.end(jobs[1])
    timer.advance(2)
    assert [job.token.cancelled for job in jobs] == [True, False, False]
    timer.advance(5)
    assert [job.token.cancelled for job in jobs] == [True, False, True]


def test_one_timer_entry_serves_any_number_of_runs(timer: ManualTimer) -> None:
    timeout = bound(timer, 10.0)
    for _ in range(100):
        job = started(timer)
        timeout.begin(job)
        timeout.end(job)
        timer.advance(0.01)
    assert len(timer.wheel) == 1
    timer.advance(20)
    assert len(timer.wheel) == 0


def test_parts_that_share_a_token_are_runs_of_their_own(timer: ManualTimer) -> None:
    timeout, first = bound(timer, 10.0), started(timer)
    second = Job({}, lambda _: None, token=first.token)
    second.started = timer.clock.now
    timeout.begin(first)
    timeout.begin(second)
    timeout.end(first)
    timer.advance(11)
    assert second.token.cancelled


def test_zero_means_never(timer: ManualTimer) -> None:
    timeout, job = bound(timer, 0.0), started(timer)
    timeout.begin(job)
    assert len(timer.wheel) == 0
    timer.advance(1e6)
    assert not job.token.cancelled


@pytest.mark.parametrize(("before", "after"), [(600.0, 5.0), (0.0, 5.0)])
def test_a_shorter_limit_counts_for_what_runs(
    timer: ManualTimer, before: float, after: float
) -> None:
    timeout, job = bound(timer, before), started(timer)
    timeout.begin(job)
    timeout.seconds = after
    assert timeout.seconds == after
    timer.advance(6)
    assert job.token.cancelled


def test_no_limit_any_more_lets_what_runs_go_on(timer: ManualTimer) -> None:
    timeout, job = bound(timer, 5.0), started(timer)
    timeout.begin(job)
    timeout.seconds = 0.0
    timer.advance(100)
    assert not job.token.cancelled
    assert len(timer.wheel) == 0


def test_a_run_that_ends_meanwhile_and_begins_elsewhere_is_left_alone(timer: ManualTimer) -> None:
    timeout = bound(timer, 10.0)
    first, second = jobs = started(timer), started(timer)

    def run_elsewhere() -> None:
        timeout.end(second)
        second.started = 0.0

    first.token.attach(run_elsewhere)
    for job in jobs:
        timeout.begin(job)
    timer.advance(11)
    assert first.token.cancelled
    assert not second.token.cancelled


def test_patience_ends_once_with_each_run_that_ignores_its_cancel(timer: ManualTimer) -> None:
    ended: list[float] = []
    patience = Patience(2.0, lambda _: ended.append(timer.clock.now))
    timeout = ExecutionTimeout(timer, 10.0, timer.clock, patience)
    obeys, ignores, quick = jobs = [started(timer) for _ in range(3)]
    for job in jobs:
        timeout.begin(job)
    timeout.end(quick)
    obeys.token.attach(lambda: timeout.end(obeys))
    timer.advance(11)
    assert ignores.token.cancelled
    assert not ended
    timer.advance(100)
    (when,) = ended
    assert 1012 <= when <= 1013
    timeout.end(ignores)
    assert len(timer.wheel) == 0


def test_patience_forgets_a_run_that_ends_in_time(timer: ManualTimer) -> None:
    ended: list[Job] = []
    timeout = ExecutionTimeout(timer, 10.0, timer.clock, Patience(2.0, ended.append))
    job = started(timer)
    timeout.begin(job)
    timer.advance(11)
    assert job.token.cancelled
    timeout.end(job)
    timer.advance(100)
    assert not ended


def test_runs_that_begin_and_end_on_many_threads_leave_none_unbounded() -> None:
    timer = Timer()
    timeout = ExecutionTimeout(timer, 0.005)
    jobs = [Job({}, lambda _: None) for _ in range(400)]

    def run(offset: int) -> None:
        for index in range(offset, 400, 4):
            job, cancelled = jobs[index], threading.Event()
            job.token.attach(cancelled.set)
            job.started = time.monotonic()
            timeout.begin(job)
            if index % 20 == 0:
                assert cancelled.wait(PATIENCE_SECONDS)
            timeout.end(job)

    threads = [threading.Thread(target=run, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    timer.stop()
    assert all(jobs[index].token.cancelled for index in range(0, 400, 20))
