"""Steps that bring up steps, without recursion."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.runtime.execution.trampoline import Trampoline
from tests.support.patience import PATIENCE_SECONDS


def test_a_step_that_brings_up_others_returns_before_they_are_taken() -> None:
    taken: list[str] = []

    def take(step: str, _: bool) -> None:
        taken.append(f"{step} begins")
        if step == "first":
            go(take, ["third"])
        taken.append(f"{step} ends")

    go: Trampoline[str] = Trampoline()
    go(take, ["first", "second"])
    order = ["first", "second", "third"]
    assert taken == [f"{step} {what}" for step in order for what in ("begins", "ends")]


def test_the_stack_does_not_grow_with_the_steps() -> None:
    def take(step: int, _: bool) -> None:
        if step:
            go(take, [step - 1])
        else:
            ended.append(step)

    ended: list[int] = []
    go: Trampoline[int] = Trampoline()
    go(take, [100_000])
    assert ended == [0]


def inlines(steps: list[str], *, inline: bool, inline_seconds: float = 0.0) -> list[bool]:
    """What each step was told, where the first brings up a further one."""
    told: list[bool] = []

    def take(step: str, inline: bool) -> None:
        told.append(inline)
        if step == "first":
            go(take, ["brought up"])

    go: Trampoline[str] = Trampoline(inline_seconds=inline_seconds)
    go(take, steps, inline=inline)
    return told


def test_the_first_step_alone_runs_inline() -> None:
    assert inlines(["first"], inline=True) == [True, False]


def test_further_steps_run_inline_while_there_is_time() -> None:
    assert inlines(["first"], inline=True, inline_seconds=3600) == [True, True]


def test_no_step_runs_inline_before_another_that_waits() -> None:
    told = inlines(["first", "second"], inline=True, inline_seconds=3600)
    assert told == [False, False, True]


def test_no_step_runs_inline_where_the_thread_has_no_time() -> None:
    assert inlines(["first"], inline=False, inline_seconds=3600) == [False, False]


def test_each_thread_takes_its_own_steps() -> None:
    threads: dict[str, int] = {}

    def take(step: str, _: bool) -> None:
        threads[step] = threading.get_ident()
        if step == "outer":
            run(lambda: go(take, ["elsewhere"]))

    def run(action: Callable[[], object]) -> None:
        thread = threading.Thread(target=action)
        thread.start()
        thread.join(PATIENCE_SECONDS)

    go: Trampoline[str] = Trampoline()
    go(take, ["outer"])
    assert threads["outer"] == threading.get_ident() != threads["elsewhere"]
