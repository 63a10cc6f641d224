"""When a device that did not load a network is asked again."""

from __future__ import annotations

import math

from headrace.plugins.multi.devices import (
    FIRST_RELOAD_SECONDS,
    LONGEST_RELOAD_SECONDS,
    Reloads,
)


def test_nothing_is_due_where_nothing_has_failed() -> None:
    assert Reloads().wake_at == math.inf


def test_a_device_is_asked_again_after_a_delay_and_once() -> None:
    reloads = Reloads()
    assert reloads.failed("A", 10.0) == FIRST_RELOAD_SECONDS
    assert reloads.wake_at == 10.0 + FIRST_RELOAD_SECONDS
    assert reloads.due(10.0) == []
    assert reloads.due(10.0 + FIRST_RELOAD_SECONDS) == ["A"]
    assert reloads.due(100.0) == []  # while it is being asked
    assert reloads.wake_at == math.inf


def test_delays_double_up_to_the_longest() -> None:
    reloads = Reloads()
    delays = [reloads.failed("A", 0.0) for _ in range(12)]
    assert delays[:4] == [FIRST_RELOAD_SECONDS * 2**n for n in range(4)]
    assert delays[-1] == LONGEST_RELOAD_SECONDS


def test_devices_wait_each_for_itself() -> None:
    reloads = Reloads()
    reloads.failed("A", 0.0)
    reloads.failed("A", 0.0)
    reloads.failed("B", 0.1)
    assert reloads.due(0.1 + FIRST_RELOAD_SECONDS) == ["B"]


def test_one_that_says_that_it_is_up_is_asked_at_once() -> None:
    reloads = Reloads()
    for _ in range(5):
        reloads.failed("A", 0.0)
    reloads.up("A", 1.0)
    assert reloads.due(1.0) == ["A"]
    assert reloads.failed("A", 1.0) == FIRST_RELOAD_SECONDS * 2**5  # no quicker for all that


def test_one_that_is_being_asked_is_not_asked_twice() -> None:
    reloads = Reloads()
    reloads.failed("A", 0.0)
    reloads.due(1.0)
    reloads.up("A", 1.0)
    assert reloads.due(2.0) == []


def test_one_that_nobody_wants_is_not_asked() -> None:
    reloads = Reloads()
    reloads.failed("A", 0.0)
    reloads.drop("A")
    reloads.up("A", 1.0)
    assert "A" not in reloads
    assert reloads.due(1000.0) == []
