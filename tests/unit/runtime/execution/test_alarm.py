"""One timer entry for what is due next."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from headrace.runtime.execution.alarm import Alarm
from headrace.runtime.execution.timer import TimerEntry


class PaperTimer:
    """Keeps entries, and calls nobody."""

    def __init__(self) -> None:
        self.entries: dict[TimerEntry, float] = {}

    def schedule(self, when: float, callback: Callable[[], object]) -> TimerEntry:
        entry = TimerEntry(when, callback)
        self.entries[entry] = when
        return entry

    def cancel(self, entry: TimerEntry) -> None:
        del self.entries[entry]

    @property
    def due(self) -> list[float]:
        return [*self.entries.values()]

    def ring(self) -> None:
        ((entry, _),) = self.entries.items()
        del self.entries[entry]
        entry.callback()


@pytest.fixture
def timer() -> Any:
    return PaperTimer()


def test_it_rings_at_the_earliest_moment_that_it_was_set_to(timer: Any) -> None:
    alarm = Alarm(timer, lambda: None)
    alarm.set(5.0)
    alarm.set(3.0)
    alarm.set(4.0)
    assert timer.due == [3.0]


def test_without_a_moment_it_does_not_ring(timer: Any) -> None:
    Alarm(timer, lambda: None).set(math.inf)
    assert timer.due == []


def test_it_can_be_set_again_when_it_has_rung(timer: Any) -> None:
    def rang() -> None:
        alarm.rang()
        alarm.set(9.0)

    alarm = Alarm(timer, rang)
    alarm.set(1.0)
    timer.ring()
    assert timer.due == [9.0]


def test_one_that_is_closed_rings_no_more_and_cannot_be_set(timer: Any) -> None:
    alarm = Alarm(timer, lambda: None)
    alarm.set(1.0)
    alarm.close()
    alarm.set(2.0)
    assert timer.due == []
