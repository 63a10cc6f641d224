"""What a request takes, measured by the runtime."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.virtual import timing


def test_a_turn_takes_the_best_of_as_many_runs_as_it_has_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took = iter([0.006, 0.002, 0.006, 0.001])
    monkeypatch.setattr(timing, "seconds", lambda *_, **__: next(took))
    network: Any = None
    assert timing.quickest(network, {}, CancelToken()) == 0.002
    assert next(took) == 0.001  # the fourth run had no time left


def test_networks_are_compared_round_by_round() -> None:
    theirs = [1.0, 3.0, 1.2, 1.1, 5.0] * 8  # what else the machine does falls on both
    ratio, low, high = timing.compare([each / 1.1 for each in theirs], theirs)
    assert (ratio, low, high) == pytest.approx((1.1, 1.1, 1.1))


def test_the_error_of_a_comparison_shrinks_with_its_rounds() -> None:
    def width(rounds: int) -> float:
        found = timing.compare([1.0] * rounds, [1.0 + at % 10 / 100 for at in range(rounds)])
        assert found.low <= found.ratio <= found.high
        return found.high - found.low

    assert width(10) > width(40) > width(160) > 0


def test_runs_take_turns_until_it_is_enough() -> None:
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = timing.in_turns(
        [partial(run, "a"), partial(run, "b")],
        fewest=2,
        most=9,
        left_seconds=1.0,
        enough=lambda took: len(took[0]) == 3,
        clock=lambda: 0.0,
    )
    assert "".join(order) == "ababab"
    assert found == [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]


def test_no_round_begins_for_which_no_time_is_left() -> None:
    now = iter(range(100))
    found = timing.in_turns(
        [lambda: 1.0], fewest=2, most=9, left_seconds=6.0, clock=lambda: float(next(now))
    )
    assert found == [[1.0, 1.0, 1.0]]  # of a round that takes one second, and one between two
