"""Counts and sums of the requests to one network."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.runtime.errors import Cancelled, DeadlineExceeded, InvalidArgument
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.metrics.statistics import MAX_SIZES, Statistics


def ended(error: Exception | None = None, *times: float) -> Job:
    """A job that took the times: queued, started, prepared, inferred, finished."""
    job = Job({}, lambda _: None)
    job.settle(error)
    job.queued, job.started, job.prepared, job.inferred, job.finished = times or (1, 2, 4, 8, 16)
    return job


def test_a_completed_request_is_told_in_stages() -> None:
    statistics = Statistics()
    for _ in range(2):
        statistics.observe(ended(), 3, is_run=True)
    totals = statistics.totals()
    assert totals.outcomes[Outcome.COMPLETED].count == 2
    assert totals.outcomes[Outcome.COMPLETED].nanoseconds == 30_000_000_000
    stages = totals.stages
    assert [
        (each.count, each.seconds)
        for each in (totals.queue, stages.preparation, stages.inference, stages.completion)
    ] == [(2, 2.0), (2, 4.0), (2, 8.0), (2, 16.0)]
    assert totals.rows == 6
    assert totals.runs == {3: stages}
    assert totals.last_end == 16


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (InvalidArgument("no"), Outcome.FAILED),
        (Cancelled("no"), Outcome.CANCELLED),
        (DeadlineExceeded("no"), Outcome.EXPIRED),
    ],
)
def test_a_request_that_failed_has_its_outcome_alone(error: Exception, outcome: Outcome) -> None:
    statistics = Statistics()
    statistics.observe(ended(error), 3, is_run=True)
    totals = statistics.totals()
    assert {each: total.count for each, total in totals.outcomes.items() if total.count} == {
        outcome: 1
    }
    assert (totals.queue.count, totals.rows, totals.runs) == (0, 0, {})


def test_a_device_that_tells_no_stages_computes_all_the_time() -> None:
    statistics = Statistics()
    statistics.observe(ended(None, 1, 2, 0, 0, 16), 1, is_run=True)
    stages = statistics.totals().stages
    assert stages.preparation.seconds == stages.completion.seconds == 0
    assert stages.inference.seconds == 14


def test_runs_of_several_requests_are_counted_by_themselves() -> None:
    statistics = Statistics()
    for _ in range(3):
        statistics.observe(ended(), 1, is_run=False)
    statistics.observe_run(ended(), 3)
    totals = statistics.totals()
    assert totals.rows == 3
    assert {rows: stages.inference.count for rows, stages in totals.runs.items()} == {3: 1}


def test_clients_cannot_make_it_grow_without_end() -> None:
    statistics = Statistics()
    for rows in range(1, 2 * MAX_SIZES):
        statistics.observe_run(ended(), rows)
    runs = statistics.totals().runs
    assert len(runs) == MAX_SIZES + 1
    assert runs[0].inference.count == MAX_SIZES - 1


def test_what_was_read_changes_no_more() -> None:
    statistics = Statistics()
    before = statistics.totals()
    statistics.observe(ended(), 1, is_run=True)
    assert before.rows == 0


def test_nothing_is_lost_between_threads() -> None:
    statistics = Statistics()

    def count(_: int) -> None:
        for _ in range(1000):
            statistics.observe(ended(), 2, is_run=True)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count, range(4)))
    totals = statistics.totals()
    assert totals.outcomes[Outcome.COMPLETED].count == totals.stages.inference.count == 4000
    assert totals.rows == 8000
