"""Whether a network is quick enough for the front-end's own thread."""

from __future__ import annotations

from headrace.runtime.inline_budget import LIMIT_SECONDS, SPIKE_SECONDS, InlineBudget

QUICK = LIMIT_SECONDS / 10


def after(*seconds: float) -> InlineBudget:
    budget = InlineBudget()
    for each in seconds:
        budget.record(each)
    return budget


def test_a_network_that_never_ran_is_not_allowed() -> None:
    assert not InlineBudget().allows


def test_some_quick_runs_allow_it_and_fewer_do_not() -> None:
    assert not after(*[QUICK] * 3).allows
    assert after(*[QUICK] * 4).allows


def test_a_network_over_the_limit_is_never_allowed() -> None:
    budget = InlineBudget()
    for _ in range(100):
        budget.record(LIMIT_SECONDS * 1.5)
        assert not budget.allows


def test_a_slow_first_run_is_made_up_for_by_quick_ones() -> None:
    assert after(10 * LIMIT_SECONDS, *[QUICK] * 20).allows


def test_a_network_that_grows_slow_is_not_allowed_any_more() -> None:
    assert not after(*[QUICK] * 50, *[LIMIT_SECONDS * 1.5] * 30).allows


def test_one_spike_forbids_it_for_a_long_while_and_not_for_ever() -> None:
    budget = after(*[QUICK] * 50, SPIKE_SECONDS * 2)
    for _ in range(4095):
        assert not budget.allows
        budget.record(QUICK)
    budget.record(QUICK)
    assert budget.allows
