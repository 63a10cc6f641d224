"""A worker that dies is started again at once, one that keeps dying less and less often."""

from __future__ import annotations

from headrace.runtime.system.backoff import Backoff


def test_delays_double_up_to_the_longest_while_workers_die_at_once() -> None:
    backoff = Backoff(first=1.0, longest=10.0)
    delays = [backoff.died(100.0, useful=False) for _ in range(6)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_worker_that_did_some_work_is_started_again_soon() -> None:
    backoff = Backoff(first=1.0, longest=10.0)
    for _ in range(4):
        backoff.died(0.0, useful=False)
    backoff.started(1.0)
    assert backoff.died(1.5, useful=True) == 1.0
    assert not backoff.keeps_failing


def test_a_worker_that_lived_long_is_started_again_soon() -> None:
    backoff = Backoff(first=1.0, longest=10.0)
    for _ in range(4):
        backoff.died(0.0, useful=False)
    backoff.started(1.0)
    assert backoff.died(11.0, useful=False) == 1.0
    assert backoff.died(11.5, useful=False) == 2.0


def test_a_worker_that_dies_young_makes_the_next_one_wait() -> None:
    backoff = Backoff(first=1.0, longest=10.0)
    assert backoff.died(0.0, useful=False) == 1.0
    backoff.started(1.0)
    assert backoff.died(2.0, useful=False) == 2.0


def test_one_failure_is_no_series() -> None:
    backoff = Backoff(first=1.0, longest=10.0)
    assert not backoff.keeps_failing
    backoff.died(0.0, useful=True)
    assert not backoff.keeps_failing
    backoff.died(1.0, useful=False)
    assert backoff.keeps_failing
