"""How many requests of a pipeline run at once, and what becomes of those that wait."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial

import pytest

from headrace.plugins.pipeline.running.window import WaitingRequest, Window
from headrace.runtime.errors import Cancelled
from headrace.runtime.execution.job import Job, Outcome
from tests.support.fake_device import Outcomes
from tests.support.gate import run_together


class Entrance:
    """A window, and the requests that it has let in."""

    def __init__(self, limit: int) -> None:
        self.window = Window(limit)
        self.outcomes = Outcomes()
        self.begun: list[Job] = []

    def enter(self, begin: Callable[[Job], object] | None = None, priority: int = 0) -> Job:
        job = self.outcomes.job(priority=priority)

        def begun() -> None:
            self.begun.append(job)
            if begin is not None:
                begin(job)

        self.window.enter(WaitingRequest(job, begun))
        return job


def test_so_many_requests_run_at_once_and_the_others_in_their_order() -> None:
    entrance = Entrance(2)
    jobs = [entrance.enter() for _ in range(5)]
    assert entrance.begun == jobs[:2]
    assert (entrance.window.running, entrance.window.waiting) == (2, 3)
    jobs[1].complete()
    jobs[0].complete()
    assert entrance.begun == jobs[:4]
    for job in jobs[2:]:
        job.complete()
    assert (entrance.window.running, entrance.window.waiting) == (0, 0)


def test_a_higher_priority_is_let_in_first() -> None:
    entrance = Entrance(1)
    first, low, high = (entrance.enter(priority=priority) for priority in (0, 0, 5))
    first.complete()
    assert entrance.begun == [first, high]
    high.complete()
    low.complete()


def test_a_request_that_is_cancelled_while_it_waits_ends_at_once_and_never_begins() -> None:
    entrance = Entrance(1)
    first, second, third = (entrance.enter() for _ in range(3))
    second.token.cancel(Cancelled("enough"))
    assert second.outcome is Outcome.CANCELLED
    first.complete()
    assert entrance.begun == [first, third]
    third.complete()
    assert entrance.window.running == 0


def test_a_request_that_is_cancelled_before_it_waits_ends_at_once() -> None:
    entrance = Entrance(1)
    first = entrance.enter()
    job = entrance.outcomes.job()
    job.token.cancel(Cancelled("enough"))
    entrance.window.enter(WaitingRequest(job, lambda: pytest.fail("it began")))
    assert job.outcome is Outcome.CANCELLED
    first.complete()


def test_a_long_row_of_requests_that_end_at_once_needs_no_deep_stack() -> None:
    entrance = Entrance(1)
    first = entrance.enter()
    for _ in range(5000):
        entrance.enter(lambda job: job.complete())
    first.complete()
    assert len(entrance.begun) == 5001
    assert entrance.window.running == 0


def test_a_wider_window_lets_in_those_that_wait() -> None:
    entrance = Entrance(1)
    jobs = [entrance.enter() for _ in range(3)]
    entrance.window.resize(3)
    assert entrance.begun == jobs
    for job in jobs:
        job.complete()


@pytest.mark.parametrize("seed", range(3))
def test_every_request_ends_once_and_the_window_holds_in_a_storm(seed: int) -> None:
    entrance = Entrance(3)
    lock = threading.Lock()
    running: list[int] = [0, 0]  # now, and the most

    def begin(job: Job) -> None:
        with lock:
            running[0] += 1
            running[1] = max(running)
        with lock:
            running[0] -= 1
        job.complete()

    def submit(number: int) -> None:
        choose = random.Random(f"{seed} {number}")
        for _ in range(300):
            job = entrance.enter(begin, choose.randint(-10, 10))
            if choose.random() < 0.3:
                job.token.cancel(Cancelled("enough"))

    run_together(*[partial(submit, number) for number in range(4)])
    assert len(entrance.outcomes.wait(1200)) == 1200
    assert running[1] <= 3
    assert (entrance.window.running, entrance.window.waiting) == (0, 0)
