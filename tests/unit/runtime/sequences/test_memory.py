"""The bound on all states: what does not fit is refused, what is given back fits again."""

from __future__ import annotations

import pytest

from headrace.runtime.errors import ResourceExhausted
from headrace.runtime.sequences.memory import StateMemory


def test_what_does_not_fit_is_refused_and_takes_nothing() -> None:
    memory = StateMemory(100)
    memory.take(60)
    with pytest.raises(ResourceExhausted, match=r"41 more bytes .* 60 of 100 .*--max-state-bytes"):
        memory.take(41)
    memory.take(40)
    memory.take(-40)
    memory.take(40)
    assert memory.taken == 100


def test_giving_back_never_fails() -> None:
    memory = StateMemory(100)
    memory.take(100)
    memory.take(0)
    memory.take(-100)
    assert memory.taken == 0


def test_one_identity_leaves_an_eighth_to_others_and_gets_it_back() -> None:
    memory = StateMemory(80)
    memory.take(70, "eve")
    with pytest.raises(ResourceExhausted, match=r"70 of 80 .* 70 of them by you"):
        memory.take(1, "eve")
    memory.take(8, "bob")
    memory.take(-70, "eve")
    memory.take(60, "eve")
    assert memory.taken == 68


def test_without_an_identity_there_is_no_share() -> None:
    memory = StateMemory(80)
    memory.take(80)
    assert memory.taken == 80
