"""Whether a network is quick enough for the front-end's own thread."""

from __future__ import annotations

import time

import pytest

from headrace.runtime.execution.inline_budget import LIMIT_SECONDS, SPIKE_SECONDS, InlineBudget

QUICK = LIMIT_SECONDS / 10
SLOW = LIMIT_SECONDS * 1.5


def after(*seconds: float) -> InlineBudget:
    budget = InlineBudget()
    for each in seconds:
        budget.record(each)
    return budget


def test_a_network_that_never_ran_is_not_allowed() -> None:
    assert not InlineBudget().allowed


def test_some_quick_runs_allow_it_and_fewer_do_not() -> None:
    assert not after(*[QUICK] * 3).allowed
    assert after(*[QUICK] * 4).allowed


def test_a_network_over_the_limit_is_never_allowed() -> None:
    budget = InlineBudget()
    for _ in range(100):
        budget.record(SLOW)
        assert not budget.allowed


def test_a_slow_first_run_is_made_up_for_by_quick_ones() -> None:
    assert after(10 * LIMIT_SECONDS, *[QUICK] * 30).allowed


def test_a_network_that_grows_slow_is_not_allowed_any_more() -> None:
    assert not after(*[QUICK] * 50, *[SLOW] * 40).allowed


def test_processor_time_decides_and_the_wall_clock_only_watches() -> None:
    budget = InlineBudget()
    assert budget.clock is time.thread_time
    for _ in range(4):
        budget.record(QUICK)
    assert budget.clock is time.monotonic
    budget.record(SPIKE_SECONDS * 2)
    assert budget.clock is time.thread_time


def test_a_run_that_only_waited_long_changes_nothing() -> None:
    budget = after(*[QUICK] * 50, SPIKE_SECONDS * 2)
    for _ in range(16 * 8):  # 16 precise ones, and at most 7 between two
        assert budget.allowed
        budget.record(QUICK)
    assert budget.allowed
    assert budget.clock is time.monotonic


@pytest.mark.parametrize("quick", [1, 7, 16, 99, 100, 127, 400])
def test_a_network_that_is_slow_now_and_then_is_found_out(quick: int) -> None:
    budget = after(*[QUICK] * 4)
    spikes = 0
    while budget.allowed:
        spikes += 1
        for seconds in (*[QUICK] * quick, SPIKE_SECONDS * 2):
            budget.record(seconds)
    assert spikes < 60


def test_most_runs_after_a_slow_looking_one_are_measured_with_the_cheap_clock() -> None:
    budget = after(*[QUICK] * 4, SPIKE_SECONDS * 2)
    cheap = 0
    for _ in range(40):
        cheap += budget.clock is time.monotonic
        budget.record(QUICK)
    assert cheap > 20


def test_a_run_that_computed_long_forbids_it_for_a_long_while_and_not_for_ever() -> None:
    budget = after(*[QUICK] * 50, SPIKE_SECONDS * 2, SPIKE_SECONDS * 2)
    for _ in range(4095):
        budget.record(QUICK)
        assert not budget.allowed
    budget.record(QUICK)
    assert budget.allowed
