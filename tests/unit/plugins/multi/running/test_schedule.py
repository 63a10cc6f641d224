"""Which request runs on which device, and when: under a simulated clock."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest

from headrace.plugins.multi.running.availability import Availability
from headrace.plugins.multi.running.requests import ReportOutage
from headrace.plugins.multi.running.schedule import PATIENCE_SECONDS
from headrace.runtime.errors import InvalidArgument, Unavailable
from tests.support.simulated_devices import Asked, Device, World

SEQUENCES = 300


def two(fast: int = 2, slow: int = 1, *, spill: bool = True) -> World:
    """A fast device, preferred, and a slow one."""
    return World([(Device("A", 0.01), fast), (Device("B", 0.1), slow)], spill=spill)


def ran_on(asked: list[Asked]) -> Counter[str]:
    return Counter(each.ran_on[-1] for each in asked)


# -- hundreds of random sequences --


@pytest.mark.parametrize("spill", [True, False])
def test_whatever_happens_requests_and_devices_get_their_due(spill: bool) -> None:
    """Exactly one answer each, no device over its limit or used while it is out, nobody waits while
    a device that may run it is free, nobody is passed too often, no request runs a third time or
    twice on one device: `World` checks it after each event."""
    for seed in range(SEQUENCES):
        try:
            random_life(seed, spill)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def random_life(seed: int, spill: bool) -> None:
    names = "ABC"
    world = World([], spill=spill, seed=seed)
    dice = world.random
    count = dice.randint(1, 3)
    places = [(name, dice.randint(1, 3)) for name in names[:count]]
    for name in names:
        world.devices[name] = Device(name, dice.choice([0.001, 0.01, 0.1]))
    world.arrange(*places)
    is_arranged_anew = False
    for _ in range(dice.randint(20, 60)):
        what = dice.random()
        device = dice.choice(names[:count])
        if what < 0.5:
            for _ in range(dice.randint(1, 4)):
                asked = world.arrive(
                    dice.randint(-2, 2), is_bad=dice.random() < 0.05, fails=dice.random() < 0.03
                )
                if dice.random() < 0.2:
                    world.expire_at(asked, world.now + dice.uniform(0, 0.2))
        elif what < 0.6 and world.asked:
            world.cancel(dice.choice(world.asked))
        elif what < 0.65:
            world.down(device)
        elif what < 0.75:
            world.up(device)
        elif what < 0.8:
            world.devices[device].is_broken ^= True
        elif what < 0.85:
            world.devices[device].is_gone ^= True
        elif what < 0.87:
            world.devices[device].is_choosy ^= True
        elif what < 0.9:
            is_arranged_anew = True
            order = dice.sample(names[:count], dice.randint(1, count))
            world.arrange(*((name, dice.randint(1, 3)) for name in order))
        world.run_until(world.now + dice.choice([0.0, 0.001, 0.02, 0.5]))
    world.run_out()
    if not is_arranged_anew:
        world.check_turns()
    assert world.schedule.waiting == 0
    assert all(not each.at_work for each in world.schedule.devices)


# -- who gets the next request --


def test_the_first_device_in_the_list_that_is_free_takes_a_request() -> None:
    world = two(fast=2, slow=1)
    asked = [world.arrive() for _ in range(4)]
    assert [each.runs_on for each in asked] == ["A", "A", "B", ""]


def test_a_request_that_waits_goes_to_whichever_device_is_free_first() -> None:
    world = two(fast=1, slow=1)
    asked = [world.arrive() for _ in range(12)]
    world.run_out()
    assert ran_on(asked)["A"] > ran_on(asked)["B"] >= 1


def test_devices_share_as_their_speeds_do() -> None:
    world = two(fast=1, slow=1)
    asked = [world.arrive() for _ in range(1100)]
    world.run_out()
    assert ran_on(asked)["B"] == pytest.approx(100, rel=0.1)
    # As fast as both together: neither ever waited for the other.
    assert world.now == pytest.approx(1100 / (100 + 10), rel=0.05)


def test_without_spilling_a_second_device_helps_only_while_the_first_does_not_serve() -> None:
    world = two(fast=1, slow=1, spill=False)
    asked = [world.arrive() for _ in range(3)]
    assert [each.runs_on for each in asked] == ["A", "", ""]
    world.down("A")
    assert [each.runs_on for each in asked] == ["A", "B", ""]


def test_a_higher_priority_goes_first() -> None:
    world = World([(Device("A", 0.01), 1)])
    world.arrive()
    low, high = world.arrive(-1), world.arrive(1)
    world.run_out()
    assert high.answered_at < low.answered_at


def test_a_stream_of_high_priorities_does_not_starve_a_low_one() -> None:
    world = World([(Device("A", 0.01), 1)])
    world.arrive(10)
    patient = world.arrive(-10)
    for turn in range(400):
        world.arrive(10)
        world.run_until(0.01 * turn)
    world.run_out()
    world.check_turns()
    assert patient.error is None


# -- limits and order may change --


def test_another_order_counts_for_the_next_request() -> None:
    world = two(fast=1, slow=1)
    world.arrange(("B", 1), ("A", 1))
    assert world.arrive().runs_on == "B"


def test_a_higher_limit_starts_what_waits() -> None:
    world = two(fast=1, slow=1)
    asked = [world.arrive() for _ in range(4)]
    world.arrange(("A", 3), ("B", 1))
    assert all(each.runs_on for each in asked)


def test_a_lower_limit_lets_what_runs_finish() -> None:
    world = two(fast=3, slow=1)
    asked = [world.arrive() for _ in range(5)]
    world.limits["A"] = 1
    world.arrange(("A", 1), ("B", 1))
    world.run_out()
    assert all(each.error is None for each in asked)


def test_a_device_that_is_left_out_finishes_what_it_has_and_gets_no_more() -> None:
    world = two(fast=1, slow=1)
    first = world.arrive()
    world.arrange(("B", 1))
    later = [world.arrive() for _ in range(3)]
    world.run_out()
    assert first.ran_on == ["A"]
    assert ran_on(later) == {"B": 3}


def test_a_device_may_join_while_requests_run() -> None:
    world = World([(Device("B", 0.1), 1)], spill=False)
    asked = [world.arrive() for _ in range(5)]
    world.arrange(("A", 2), ("B", 1))
    assert [each.runs_on for each in asked] == ["B", "A", "A", "", ""]
    world.run_out()
    assert ran_on(asked) == {"B": 1, "A": 4}


# -- devices that fail --


def test_a_request_runs_again_elsewhere_if_its_device_went_away() -> None:
    world = two()
    asked = world.arrive()
    world.devices["A"].is_gone = True
    world.run_out()
    assert asked.ran_on == ["A", "B"]
    assert asked.error is None
    assert world.reports == [ReportOutage("A", "gone")]


def test_it_does_so_once() -> None:
    world = World([(Device(name, 0.01, is_gone=True), 1) for name in "ABC"])
    asked = world.arrive()
    world.run_out()
    assert asked.ran_on == ["A", "B"]
    assert isinstance(asked.error, Unavailable)


def test_values_that_no_device_takes_are_refused_and_the_devices_go_on() -> None:
    world = two()
    asked = world.arrive(is_bad=True)
    world.run_out()
    assert isinstance(asked.error, InvalidArgument)
    assert asked.ran_on == ["A", "B"]
    assert not world.reports


def test_values_that_one_device_does_not_take_run_on_another_and_both_go_on() -> None:
    world = two()
    world.devices["A"].is_choosy = True
    asked = world.arrive()
    world.run_out()
    assert asked.error is None
    assert asked.ran_on == ["A", "B"]
    assert not world.reports


def test_values_that_a_device_does_not_take_are_refused_at_once_where_no_other_one_serves() -> None:
    world = two()
    world.devices["A"].is_choosy = True
    world.down("B")
    asked = world.arrive()
    world.run_out()
    assert isinstance(asked.error, InvalidArgument)
    assert asked.ran_on == ["A"]
    assert world.now < PATIENCE_SECONDS


def test_a_failure_for_unknown_reasons_is_the_devices_if_another_one_can_run_the_request() -> None:
    world = two()
    world.devices["A"].is_broken = True
    asked = world.arrive()
    world.run_out()
    assert asked.ran_on == ["A", "B"]
    assert asked.error is None
    (told,) = world.reports
    assert told.device == "A"
    assert "B could run what failed there" in told.reason


def test_it_is_the_requests_if_no_other_one_can_and_no_device_suffers() -> None:
    world = two()
    asked = world.arrive(fails=True)
    world.run_out()
    assert asked.ran_on == ["A", "B"]
    assert isinstance(asked.error, RuntimeError)
    assert not world.reports


def test_a_device_that_was_taken_out_gets_one_request_after_a_back_off_and_then_all() -> None:
    world = two(fast=2, slow=8)
    world.devices["A"].is_gone = True
    world.arrive()
    world.run_until(0.02)
    assert [world.arrive().runs_on for _ in range(3)] == ["B", "B", "B"]
    world.devices["A"].is_gone = False
    world.run_until(0.1)
    trial, other = world.arrive(), world.arrive()
    assert (trial.runs_on, other.runs_on) == ("A", "B")
    world.run_until(0.2)
    assert world.reports[-1] == ReportOutage("A")
    assert [world.arrive().runs_on for _ in range(3)] == ["A", "A", "B"]


def test_back_offs_double_while_trials_fail() -> None:
    world = two()
    world.devices["A"].is_gone = True
    trials = []
    for _ in range(800):
        asked = world.arrive()
        if asked.runs_on == "A":
            trials.append(world.now)
        world.run_until(world.now + 0.02)
    gaps = [later - earlier for earlier, later in pairwise(trials[1:])]
    assert len(trials) < 10
    assert all(later >= 1.5 * earlier for earlier, later in pairwise(gaps))
    assert all(each.error is None for each in world.asked if each.is_answered)


def test_a_trial_takes_no_request_for_its_last_time_while_another_device_serves() -> None:
    world = World([(Device("A", 0.01), 1), (Device("B", 0.3), 1), (Device("C", 0.3), 1)])
    world.devices["A"].is_gone = True
    world.arrive()
    world.run_until(0.02)  # it runs on B now, and A is out
    other = world.arrive()  # on C
    assert other.runs_on == "C"
    world.devices["C"].is_gone = True
    waiting = world.arrive()
    world.run_until(0.1)
    assert waiting.ran_on[0] == "A"  # on trial
    world.run_out()
    assert all(each.error is None for each in world.asked)


def test_a_device_that_says_that_it_is_down_is_not_tried_until_it_says_that_it_is_up() -> None:
    world = two()
    world.down("A")
    for _ in range(20):
        assert world.arrive().runs_on != "A"
        world.run_until(world.now + 1)
    world.up("A")
    assert world.arrive().runs_on == "A"
    assert world.reports == [ReportOutage("A", "unplugged"), ReportOutage("A")]


def test_what_was_on_a_device_before_it_was_taken_out_says_nothing_of_it_afterwards() -> None:
    world = World([(Device("A", 0.01), 2), (Device("B", 0.01), 2)])
    world.devices["A"].seconds = 10.0
    slow = world.arrive()
    world.down("A")
    world.up("A")
    world.devices["A"].is_gone = True
    world.run_until(20.0)
    assert slow.ran_on == ["A", "B"]
    assert len(world.reports) == 2  # down and up: the late failure is of the time before


# -- nobody serves --


def test_requests_wait_for_a_short_outage_of_all_devices() -> None:
    world = two()
    world.down("A")
    world.down("B")
    asked = world.arrive()
    world.run_until(PATIENCE_SECONDS / 2)
    world.up("B")
    world.run_out()
    assert asked.error is None


def test_they_are_told_of_a_long_one_with_each_devices_reason() -> None:
    world = two()
    world.down("A")
    world.down("B")
    asked = world.arrive()
    world.run_out()
    assert world.now == pytest.approx(PATIENCE_SECONDS)
    assert isinstance(asked.error, Unavailable)
    assert "A: unplugged; B: unplugged" in str(asked.error)
    assert asked.error.retry_delay_seconds
    assert world.arrive().is_answered


def test_a_request_that_failed_on_the_only_device_is_answered_at_once() -> None:
    world = World([(Device("A", 0.01, is_gone=True), 1)])
    asked = world.arrive()
    world.run_until(0.02)
    assert isinstance(asked.error, Unavailable)
    assert asked.ran_on == ["A"]


def test_a_cancelled_request_leaves_the_queue_at_once() -> None:
    world = World([(Device("A", 1.0), 1)])
    world.arrive()
    waiting = world.arrive()
    world.cancel(waiting)
    assert waiting.is_answered
    assert world.schedule.waiting == 0


def test_a_request_that_is_cancelled_on_its_device_does_not_run_again() -> None:
    world = two()
    asked = world.arrive()
    world.cancel(asked)
    assert not asked.is_answered
    world.devices["A"].is_gone = True
    world.run_out()
    assert asked.ran_on == ["A"]


def test_nothing_needs_to_be_woken_while_all_is_well() -> None:
    world = two()
    for _ in range(5):
        world.arrive()
    assert world.schedule.wake_at == math.inf
    assert all(each.availability is Availability.SERVING for each in world.schedule.devices)
