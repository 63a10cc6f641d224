"""Which device runs which shape: a table that is told what happened, without threads or clocks."""

from __future__ import annotations

import pytest

from headrace.plugins.openvino.running.shapes import (
    COMPILING,
    DIFFERED,
    DOWN,
    MISFITS,
    MOST_TRIALS,
    SLOWER,
    TRIALS,
    UNCLAIMED,
    VALUES,
    CompileBudget,
    ShapeTable,
    is_faster,
)

Table = ShapeTable[str, str]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def table(most: int = 2) -> Table:
    return Table(most, CompileBudget(Clock()))


def compiled(shapes: Table, *keys: str) -> None:
    for key in keys:
        assert shapes.begin(key)
        shapes.compiled(key, f"compilation of {key}", 0.1)


def tried(shapes: Table, key: str, times: int, ours: float = 1, theirs: float = 2) -> str:
    compilation = shapes.ask(key).compilation
    assert compilation is not None
    found = [shapes.tried(key, compilation, (ours, theirs), equal=True) for _ in range(times)]
    return found[-1]


def test_a_shape_is_compiled_when_cpu_has_answered_it_twice() -> None:
    shapes = table()
    assert [shapes.answered("a") for _ in range(2)] == [False, True]
    assert shapes.ask("a") == (None, COMPILING, False)


def test_shapes_that_never_repeat_are_not_compiled() -> None:
    shapes = table()
    assert not any(shapes.answered(str(number)) for number in range(10_000))


def test_a_network_compiles_one_shape_at_a_time() -> None:
    shapes = table()
    assert shapes.begin("a")
    assert not shapes.begin("b")
    shapes.compiled("a", "compilation", 0.1)
    assert shapes.begin("b")


def test_what_is_compiled_runs_on_both_at_first() -> None:
    shapes = table()
    compiled(shapes, "a")
    assert shapes.ask("a").trial
    assert tried(shapes, "a", TRIALS) == ""
    assert shapes.ask("a") == ("compilation of a", "", False)


def test_what_is_slower_than_cpu_in_each_of_its_trials_stays_on_cpu() -> None:
    shapes = table()
    compiled(shapes, "a")
    assert tried(shapes, "a", TRIALS, ours=2, theirs=1) == SLOWER
    assert shapes.ask("a") == (None, SLOWER, False)
    assert not shapes.answered("a")


COLD = (100e-3, 1e-3)


def test_the_time_of_the_first_trial_does_not_count() -> None:
    ours, theirs = (1.0e-3, 1.1e-3), (1.1e-3, 1.0e-3)
    assert is_faster([COLD, *[ours] * (TRIALS - 2)]) is None
    assert is_faster([COLD, *[ours] * (TRIALS - 1)]) is True
    assert is_faster([COLD[::-1], *[theirs] * (TRIALS - 1)]) is False


def test_one_lucky_trial_decides_nothing() -> None:
    lucky, usual = (0.5e-3, 1e-3), (1.2e-3, 1e-3)
    trials = [COLD, lucky, *[usual] * (TRIALS - 2)]
    assert is_faster(trials) is None
    assert is_faster([*trials, *[usual] * 4]) is False


def test_what_takes_equally_long_is_tried_for_a_limited_number_of_times() -> None:
    pairs = [(1.2e-3, 1e-3), (1e-3, 1.2e-3)] * MOST_TRIALS
    trials = [COLD, *pairs][:MOST_TRIALS]
    assert is_faster(trials[:-1]) is None
    assert is_faster(trials) is not None


def test_trials_of_a_slow_network_end_after_seconds() -> None:
    trials = [(2.0, 1.0), (1.0, 2.0)] * TRIALS
    assert is_faster(trials[: TRIALS - 1]) is None
    assert is_faster(trials[:TRIALS]) is not None


def test_a_late_trial_does_not_change_what_was_decided() -> None:
    shapes = table()
    compiled(shapes, "a")
    tried(shapes, "a", TRIALS)
    assert tried(shapes, "a", MOST_TRIALS, ours=2, theirs=1) == ""
    assert shapes.ask("a") == ("compilation of a", "", False)


def test_one_answer_that_differs_ends_it() -> None:
    shapes = table()
    compiled(shapes, "a")
    compilation = shapes.ask("a").compilation
    assert compilation is not None
    assert shapes.tried("a", compilation, (1, 2), equal=False) == DIFFERED
    assert shapes.ask("a") == (None, DIFFERED, False)
    assert list(shapes.left_to_cpu()) == [("a", DIFFERED)]


def misfits(shapes: Table, times: int) -> list[bool]:
    compilation = shapes.ask("a").compilation
    assert compilation is not None
    return [shapes.misfit("a", compilation) for _ in range(times)]


def test_a_shape_of_values_that_openvino_may_get_wrong_stays_on_cpu() -> None:
    shapes = table()
    compiled(shapes, "a")
    assert misfits(shapes, MISFITS) == [False] * (MISFITS - 1) + [True]
    assert shapes.ask("a") == (None, VALUES, False)


def test_one_request_that_can_be_tried_shows_that_not_all_have_such_values() -> None:
    shapes = table()
    compiled(shapes, "a")
    misfits(shapes, MISFITS - 1)
    tried(shapes, "a", 1)
    assert misfits(shapes, MISFITS - 1) == [False] * (MISFITS - 1)
    assert shapes.ask("a").trial


def test_without_a_budget_such_a_shape_keeps_its_compilation() -> None:
    shapes = Table(2, None)
    compiled(shapes, "a")
    assert not any(misfits(shapes, 2 * MISFITS))
    assert shapes.ask("a").compilation is not None


def test_a_compilation_tells_which_ones_make_room_for_it() -> None:
    shapes = table(most=1)
    assert shapes.begin("a")
    assert shapes.compiled("a", "of a", 0.1) == []
    assert shapes.begin("b")
    assert shapes.compiled("b", "of b", 0.1) == ["of a"]
    assert shapes.clear() == ["of b"]


def test_a_compilation_that_is_lost_is_made_again_after_two_more_answers() -> None:
    shapes = table()
    compiled(shapes, "a")
    of_a = shapes.ask("a").compilation
    assert of_a is not None
    assert shapes.lost("a", of_a)
    assert not shapes.lost("a", of_a), "somebody else may have told"
    assert shapes.ask("a").compilation is None
    assert [shapes.answered("a"), shapes.answered("a")] == [False, True]


def test_one_that_is_lost_with_a_reason_is_not() -> None:
    shapes = table()
    compiled(shapes, "a")
    of_a = shapes.ask("a").compilation
    assert of_a is not None
    assert shapes.lost("a", of_a, DOWN)
    assert shapes.ask("a") == (None, DOWN, False)
    assert not shapes.begin("a")


def test_the_reason_counts_though_another_thread_has_told_before_that_it_is_lost() -> None:
    shapes = table()
    compiled(shapes, "a")
    of_a = shapes.ask("a").compilation
    assert of_a is not None
    assert shapes.lost("a", of_a)
    assert not shapes.lost("a", of_a, DOWN)
    assert shapes.ask("a") == (None, DOWN, False)


def test_what_cannot_be_compiled_now_is_tried_again_after_two_more_answers() -> None:
    shapes = table()
    assert shapes.begin("a")
    shapes.postponed("a", 0.1)
    assert shapes.ask("a").reason == COMPILING
    assert [shapes.answered("a"), shapes.answered("a")] == [False, True]


def test_a_late_report_of_an_earlier_compilation_counts_nothing() -> None:
    shapes = table(most=1)
    compiled(shapes, "a", "b", "a")
    assert shapes.tried("a", "another", (1, 2), equal=False) == ""
    assert shapes.ask("a").compilation


def test_what_cannot_be_compiled_is_not_tried_again() -> None:
    shapes = table()
    assert shapes.begin("a")
    shapes.refused("a", 0.1)
    assert shapes.ask("a").reason == UNCLAIMED
    assert not shapes.begin("a")
    assert shapes.begin("b")


def test_the_least_recently_used_compilation_goes_first() -> None:
    shapes = table(most=2)
    compiled(shapes, "a", "b")
    shapes.ask("a")
    compiled(shapes, "c")
    assert [key for key, _ in shapes.compilations()] == ["a", "c"]
    assert shapes.answered("b"), "it is compiled again as soon as it is seen again"


def test_shapes_without_end_are_forgotten_and_compilations_are_not() -> None:
    shapes = table()
    compiled(shapes, "a")
    for number in range(10_000):
        shapes.ask(str(number))
    assert len(shapes._shapes) <= 4096
    assert shapes.ask("a").compilation


@pytest.mark.parametrize(("inputs", "most"), [(16, 4096), (1024, 64), (10**6, 3)])
def test_fewer_shapes_are_remembered_of_a_network_with_many_inputs(inputs: int, most: int) -> None:
    shapes = Table(2, None, inputs)
    for number in range(5000):
        shapes.ask(str(number))
    assert len(shapes._shapes) == most


def test_without_a_budget_a_slower_compilation_stays() -> None:
    shapes = Table(2, None)
    compiled(shapes, "a")
    assert tried(shapes, "a", TRIALS, ours=2, theirs=1) == ""


def test_compiles_get_a_quarter_of_the_time() -> None:
    clock = Clock()
    budget = CompileBudget(clock)
    budget.spend(30)
    assert not budget.has_some()
    clock.now = 79
    assert not budget.has_some()
    clock.now = 80
    assert budget.has_some()


@pytest.mark.parametrize("idle", [1000, 100_000])
def test_no_more_than_ten_seconds_are_saved(idle: float) -> None:
    clock = Clock()
    budget = CompileBudget(clock)
    clock.now = idle
    assert budget.has_some()
    budget.spend(11)
    assert not budget.has_some()
