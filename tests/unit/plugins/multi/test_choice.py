"""Which devices have a network, as a state machine, also under a simulated clock."""

from __future__ import annotations

import math
from functools import partial

import pytest

from headrace.plugins.multi.choice import (
    FIRST_RELOAD_SECONDS,
    LONGEST_RELOAD_SECONDS,
    Choice,
    Instruction,
    LoadDevice,
    Serve,
    UnloadDevice,
)
from headrace.plugins.multi.device_list import Failure
from headrace.runtime.errors import HeadraceError, InvalidModel, Unavailable
from tests.support.simulated_devices import Device, World

SEQUENCES = 300


def failure(device: str, error: HeadraceError | None = None) -> Failure:
    return Failure(device, error or Unavailable("out of order"))


def choice(
    candidates: str, loaded: str, failed: str = "", *, fallback: bool = True, every: bool = False
) -> Choice:
    failures = [failure(device) for device in failed]
    return Choice(candidates, loaded, failures, all_of_them=every, fallback=fallback)


def test_the_best_device_is_loaded_while_another_one_serves() -> None:
    assert choice("ABC", "C").look("C", 0) == [LoadDevice("A")]


def test_nothing_is_loaded_where_the_best_one_serves() -> None:
    assert choice("ABC", "A").look("A", 0) == []


def test_one_load_at_a_time() -> None:
    made = choice("ABC", "C")
    made.look("C", 0)
    assert made.look("C", 0) == []
    assert made.loading == "A"


def test_a_better_device_goes_to_the_front_when_it_is_ready() -> None:
    made = choice("ABC", "C")
    made.look("C", 0)
    assert made.loaded("C", 0) == [Serve(("A", "C"))]


def test_without_fallback_the_other_ones_are_given_up() -> None:
    made = choice("ABC", "C", fallback=False)
    made.look("C", 0)
    assert made.loaded("C", 0) == [Serve(("A",)), UnloadDevice("C")]
    assert made.look("", 0) == []


def test_the_next_best_is_tried_if_the_best_one_fails() -> None:
    made = choice("ABC", "C")
    made.look("C", 0)
    assert made.failed(failure("A"), "C", 0) == [LoadDevice("B")]
    assert made.failed(failure("B"), "C", 0) == []


def test_a_device_that_failed_before_is_not_tried() -> None:
    assert choice("ABC", "C", "AB").look("C", 0) == []


def test_worse_devices_are_loaded_only_if_nothing_serves() -> None:
    made = choice("ABC", "A")
    assert made.look("A", 0) == []
    assert made.look("", 0) == [LoadDevice("B")]
    assert made.loaded("", 0) == [Serve(("A", "B"))]
    assert made.look("B", 0) == []
    assert made.look("", 0) == [LoadDevice("C")]


def test_a_device_that_failed_is_tried_again_after_a_delay_and_once() -> None:
    made = choice("AC", "C", "A")
    assert made.look("C", 0) == []
    assert made.wake_at == FIRST_RELOAD_SECONDS
    assert made.look("C", FIRST_RELOAD_SECONDS) == [LoadDevice("A")]
    assert made.look("C", 100) == []
    assert made.wake_at == math.inf


def test_delays_double_up_to_the_longest() -> None:
    made, now, delays = choice("AC", "C", "A"), 0.0, [FIRST_RELOAD_SECONDS]
    for _ in range(12):
        now += delays[-1]
        assert made.look("C", now) == [LoadDevice("A")]
        made.failed(failure("A"), "C", now)
        delays.append(made.wake_at - now)
    assert delays[:4] == [FIRST_RELOAD_SECONDS * 2**n for n in range(4)]
    assert delays[-1] == LONGEST_RELOAD_SECONDS


def test_a_device_that_says_that_it_is_up_is_tried_at_once_and_then_no_sooner() -> None:
    made = choice("AC", "C", "A")
    assert made.up(["A"], "C", 0.1) == [LoadDevice("A")]
    made.failed(failure("A"), "C", 0.1)
    assert made.wake_at == 0.1 + 2 * FIRST_RELOAD_SECONDS


def test_a_device_that_does_not_support_the_network_is_not_tried_again() -> None:
    made = choice("AC", "C")
    made.look("C", 0)
    made.failed(failure("A", InvalidModel("too odd")), "C", 0)
    assert made.wake_at == math.inf
    assert made.up(["A"], "C", 1) == []
    assert [*made.failures] == ["A"]


def test_a_device_that_is_due_but_no_better_waits_until_nothing_serves() -> None:
    made = choice("AC", "A", "C")
    assert made.look("A", 10) == []
    assert made.wake_at == math.inf
    assert made.look("", 11) == [LoadDevice("C")]


# -- every device of a list --


def test_every_device_that_failed_is_tried_again_one_after_the_other() -> None:
    made = choice("ABC", "B", "AC", every=True)
    assert made.look("B", 1) == [LoadDevice("A")]
    assert made.loaded("B", 2) == [Serve(("A", "B")), LoadDevice("C")]
    assert made.loaded("AB", 3) == [Serve(("A", "B", "C"))]
    assert not made.failures


def test_a_device_that_never_will_has_no_place_in_the_order() -> None:
    failures = [failure("A", InvalidModel("too odd")), failure("D")]
    made = Choice("ABC", "BC", failures, all_of_them=True)
    assert made.order == ("B", "C")
    assert [*made.failures] == ["A", "D"]


def test_a_device_that_is_left_out_is_not_tried_until_it_is_wanted_again() -> None:
    made = choice("AB", "B", "A", every=True)
    assert made.arrange("B", "B", 0) == [Serve(("B",))]
    assert made.look("B", 100) == []
    assert made.arrange("BA", "B", 0) == [Serve(("B",)), LoadDevice("A")]
    assert made.loaded("B", 0) == [Serve(("B", "A"))]


def test_one_that_is_wanted_again_while_it_loads_is_loaded_once() -> None:
    made = choice("AB", "B", "A", every=True)
    assert made.look("B", 1) == [LoadDevice("A")]
    assert made.arrange("BA", "B", 1) == [Serve(("B",))]
    assert made.loaded("B", 1) == [Serve(("B", "A"))]


# -- with the schedule --


@pytest.mark.parametrize("fallback", [True, False])
def test_whatever_happens_no_reply_is_lost_or_doubled_by_a_switch(fallback: bool) -> None:
    """`World` checks after each event that each request has one answer at most, that no device is
    over its limit, and that nobody waits while the device that serves is free."""
    for seed in range(SEQUENCES):
        try:
            random_life(seed, fallback)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


class Auto:
    """A choice that arranges a world's devices."""

    def __init__(self, world: World, candidates: str, loaded: str, fallback: bool) -> None:
        self.world = world
        self.choice = Choice(candidates, loaded, fallback=fallback)

    def serving(self) -> list[str]:
        return [
            each.name
            for each in self.world.schedule.devices
            if each.availability.value == "serving"
        ]

    def follow(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, Serve):
                limits = {**self.world.limits, **dict.fromkeys(each.devices, 2)}
                self.world.arrange(*((name, limits[name]) for name in each.devices))
                assert self.serving() or self.world.reports

    def go_on(self) -> None:
        now = self.world.now
        if self.world.random.random() < 0.1:
            up = self.world.random.choice("ABC")
            self.follow(self.choice.up([up], self.serving(), now))
        self.follow(self.choice.look(self.serving(), now))
        loading = self.choice.loading
        if loading is not None and self.world.random.random() < 0.3:
            works = self.world.random.random() < 0.7
            event = self.choice.loaded if works else partial(self.choice.failed, failure(loading))
            self.follow(event(self.serving(), now))


def random_life(seed: int, fallback: bool) -> None:
    names = "ABC"
    world = World([(Device("C", 0.05), 1)], spill=False, seed=seed)
    dice = world.random
    for name, seconds in zip("AB", (0.005, 0.02), strict=True):
        world.devices[name] = Device(name, seconds)
    auto = Auto(world, names, "C", fallback)
    for _ in range(40):
        what = dice.random()
        listed = [each.name for each in world.schedule.devices]
        device = dice.choice(listed)
        if what < 0.5:
            for _ in range(dice.randint(1, 4)):
                asked = world.arrive(dice.randint(-1, 1))
                if dice.random() < 0.2:
                    world.expire_at(asked, world.now + dice.uniform(0, 0.2))
        elif what < 0.6 and world.asked:
            world.cancel(dice.choice(world.asked))
        elif what < 0.7:
            world.down(device)
        elif what < 0.85:
            world.up(device)
        elif what < 0.9:
            world.devices[device].is_gone ^= True
        auto.go_on()
        world.run_until(world.now + dice.choice([0.0, 0.005, 0.1]))
    world.run_out()
    assert world.schedule.waiting == 0


def test_the_first_reply_comes_before_the_better_device_is_ready() -> None:
    world = World([(Device("C", 0.05), 1)], spill=False)
    first = world.arrive()
    world.run_until(0.1)
    assert first.error is None
    assert first.is_answered
    world.arrange(("A", 2), ("C", 1))
    assert world.arrive().runs_on == "A"


def test_requests_go_back_to_the_better_device_once_it_works_again() -> None:
    world = World([(Device("A", 0.01), 2), (Device("C", 0.05), 1)], spill=False)
    world.down("A")
    assert world.arrive().runs_on == "C"
    world.up("A")
    assert world.arrive().runs_on == "A"


def test_unloading_is_asked_for_once() -> None:
    made = choice("AC", "C", fallback=False)
    made.look("C", 0)
    assert made.loaded("C", 0).count(UnloadDevice("C")) == 1
    assert made.look("A", 0) == []


def test_a_device_that_is_measured_to_be_the_fastest_goes_to_the_front() -> None:
    made = choice("ABC", "A")
    assert made.prefer("C", "A", 0) == [Serve(("C", "A"))]
    assert made.order == ("C", "A", "B")
    assert made.look("CA", 0) == []  # none is better any more


def test_beside_the_fastest_device_one_other_stays() -> None:
    made = choice("ABC", "AC")
    assert made.prefer("B", "AC", 0) == [Serve(("B", "A")), UnloadDevice("C")]
    assert made.serve == Serve(("B", "A"))


def test_without_fallback_the_fastest_device_stays_alone() -> None:
    made = choice("ABC", "A", fallback=False)
    assert made.prefer("B", "A", 0) == [Serve(("B",)), UnloadDevice("A")]
    assert made.serve == Serve(("B",))


def test_the_next_device_is_loaded_if_the_fastest_one_fails() -> None:
    made = choice("AB", "A", fallback=False)
    made.prefer("B", "A", 0)
    assert made.look("", 0) == []  # without fallback, it waits for it
    made = choice("ABC", "A")
    made.prefer("B", "A", 0)
    assert made.look("", 0) == [LoadDevice("C")]
