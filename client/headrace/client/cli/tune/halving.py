"""Successive halving, here into thirds: all candidates are measured for a short time, then the
better third for three times as long, and so on (K. Jamieson, A. Talwalkar, "Non-stochastic best arm
identification and hyperparameter optimization", 2016). The first candidate, the default, stays to
the end. The best of the others has to win against it twice, in turns: the machine may do other
work, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.client.cli.tune.candidates import Variant
from headrace.client.cli.tune.figures import NOTHING, CallersFigures

MARGIN: Final = 1.03
"""How much better than the default the choice has to be."""

_TURNS: Final = 2
_PART: Final = 3  # of which one stays


@dataclass(eq=False, slots=True)
class Trial:
    """What was found about a candidate.

    Attributes:
        turns: the figures of each round in which it was measured.
        reason: why it cannot be chosen; empty if it can.
    """

    candidate: Variant
    turns: list[Sequence[CallersFigures]] = field(default_factory=list)
    reason: str = ""

    def best(self, target: float, turn: int = -1) -> CallersFigures:
        """The best of a round, by default of the last one."""
        if not self.turns:
            return NOTHING
        return max(self.turns[turn], key=lambda each: each.score(target), default=NOTHING)


def rounds(trials: Sequence[Trial], seconds: float, target: float) -> Iterator[tuple[Trial, float]]:
    """Yields what to measure next and for how many seconds. Each trial has to be told what was
    found, or its reason, before the next is asked for.

    Args:
        trials: the first is the default.
        seconds: for all measurements together.
        target: the 99th percentile that is wanted, in seconds.
    """
    default, *others = trials
    share = seconds / _rounds(len(trials))
    last_turns = 0
    while last_turns < _TURNS:
        for trial in (alive := [default, *others]):
            yield trial, share / len(alive)
        last_turns += len(alive) <= 2
        others = [each for each in others if not each.reason]
        others.sort(key=lambda each: each.best(target).score(target), reverse=True)
        others = others[: _fewer(1 + len(others)) - 1]


def _rounds(count: int) -> int:
    return 1 + _rounds(_fewer(count)) if count > 2 else _TURNS


def _fewer(count: int) -> int:
    """How many of so many are measured once more."""
    return max(2, count // _PART)


def chosen(trials: Sequence[Trial], target: float) -> Trial:
    """The one that stayed to the end beside the default, if it was better each time; otherwise the
    default."""
    default, *others = trials
    for each in others:
        if len(each.turns) == len(default.turns) >= _TURNS and not each.reason:
            turns = range(-_TURNS, 0)
            if all(_wins(each.best(target, at), default.best(target, at), target) for at in turns):
                return each
    return default


def _wins(theirs: CallersFigures, ours: CallersFigures, target: float) -> bool:
    if theirs.score(target)[0] and ours.score(target)[0]:
        return theirs.throughput >= MARGIN * ours.throughput
    return theirs.score(target) > ours.score(target)
