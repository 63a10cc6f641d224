"""Admission: exactly as many requests as there is room for, and a delay for the others."""

from __future__ import annotations

import threading
import time

import pytest

from headrace.runtime.errors import DeadlineExceeded, QueueFull
from headrace.runtime.execution.admission import Admission
from headrace.runtime.execution.job import Job
from tests.support.gate import run_together
from tests.support.interleaving import frequent_switches


def request() -> Job:
    return Job({}, lambda _: None)


def ran(seconds: float) -> Job:
    job = request()
    job.started = time.monotonic() - seconds
    job.complete()
    return job


def test_it_takes_what_may_wait_and_what_may_run() -> None:
    admission = Admission("CPU", 2, lambda: 3)
    for _ in range(5):
        admission.admit(request())
    with pytest.raises(QueueFull, match=r"queue of CPU is full: 5 requests .* QUEUE_CAPACITY is 2"):
        admission.admit(request())
    assert admission.in_flight == 5


def test_a_release_makes_room_for_one() -> None:
    admission = Admission("CPU", 0, lambda: 1)
    admission.admit(request())
    admission.release(ran(0.0))
    admission.admit(request())
    assert admission.in_flight == 1


def test_a_job_that_ends_learns_how_many_others_are_in_flight() -> None:
    admission = Admission("CPU", 8, lambda: 1)
    jobs = [ran(0.0) for _ in range(3)]
    for job in jobs:
        admission.admit(job)
    for job in jobs:
        admission.release(job)
    assert [job.in_flight for job in jobs] == [2, 1, 0]


def test_an_admitted_job_has_a_ticket_and_a_refused_one_has_none() -> None:
    admission = Admission("CPU", 0, lambda: 1)
    admitted, refused = request(), request()
    admission.admit(admitted)
    with pytest.raises(QueueFull):
        admission.admit(refused)
    assert admitted.ticket is not None
    assert admitted.ticket.admitted_by == "CPU"
    assert refused.ticket is None


def test_capacity_and_streams_count_as_they_are_at_the_moment() -> None:
    streams = [1]
    admission = Admission("CPU", 0, lambda: streams[0])
    admission.admit(request())
    streams[0] = 2
    admission.admit(request())
    admission.capacity = 1
    admission.admit(request())
    with pytest.raises(QueueFull):
        admission.admit(request())


def refusal(admission: Admission) -> QueueFull:
    with pytest.raises(QueueFull) as caught:
        admission.admit(request())
    return caught.value


def test_the_delay_is_the_time_in_which_the_queue_empties() -> None:
    admission = Admission("CPU", 2, lambda: 2)
    for _ in range(200):
        admission.admit(request())
        admission.release(ran(1.0))
    for _ in range(4):
        admission.admit(request())
    assert refusal(admission).retry_delay_seconds == pytest.approx(4 * 1.0 / 2, rel=0.1)


def test_jobs_that_never_ran_do_not_shorten_the_delay() -> None:
    admission = Admission("CPU", 0, lambda: 1)
    for _ in range(200):
        admission.admit(request())
        admission.release(ran(1.0))
    for _ in range(200):
        admission.admit(request())
        late = request()
        late.fail(DeadlineExceeded("late"))
        admission.release(late)
    admission.admit(request())
    assert refusal(admission).retry_delay_seconds == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(("seconds", "delay"), [(0.0, 0.001), (1e6, 60.0)])
def test_the_delay_is_kept_within_reason(seconds: float, delay: float) -> None:
    admission = Admission("CPU", 0, lambda: 1)
    admission.admit(request())
    admission.release(ran(seconds))
    admission.admit(request())
    assert refusal(admission).retry_delay_seconds == delay


def test_no_thread_gets_a_place_too_many_or_too_few() -> None:
    admission = Admission("CPU", 3, lambda: 2)
    lock, inside, most, refused = threading.Lock(), [0], [0], [0]

    def knock() -> None:
        for _ in range(500):
            job = request()
            try:
                admission.admit(job)
            except QueueFull:
                with lock:
                    refused[0] += 1
                continue
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with lock:
                inside[0] -= 1
            admission.release(job)

    with frequent_switches():
        run_together(*[knock] * 8)
    assert most[0] <= 5
    assert admission.in_flight == 0
    # All the room is there again.
    for _ in range(5):
        admission.admit(request())
    refusal(admission)


def test_threads_that_all_want_in_fill_it_exactly() -> None:
    for _ in range(50):
        admission = Admission("CPU", 3, lambda: 2)
        results: list[bool] = []

        def knock(admission: Admission = admission, results: list[bool] = results) -> None:
            try:
                admission.admit(request())
            except QueueFull:
                results.append(False)
            else:
                results.append(True)

        with frequent_switches():
            run_together(*[knock] * 8)
        assert (results.count(True), results.count(False)) == (5, 3)
