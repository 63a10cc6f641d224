"""Which devices AUTO has a network on, as a state machine, also under a simulated clock."""

from __future__ import annotations

import pytest

from headrace.plugins.auto.choice import Choice, Instruction, Load, Serve, Unload
from tests.support.simulated_devices import Device, World

SEQUENCES = 300


def choice(candidates: str, loaded: str, failed: str = "", *, fallback: bool = True) -> Choice:
    return Choice(candidates, loaded, failed, fallback=fallback)


def test_the_best_device_is_loaded_while_another_one_serves() -> None:
    assert choice("ABC", "C").look("C") == [Load("A")]


def test_nothing_is_loaded_where_the_best_one_serves() -> None:
    assert choice("ABC", "A").look("A") == []


def test_one_load_at_a_time() -> None:
    made = choice("ABC", "C")
    made.look("C")
    assert made.look("C") == []
    assert made.loading == "A"


def test_a_better_device_goes_to_the_front_when_it_is_ready() -> None:
    made = choice("ABC", "C")
    made.look("C")
    assert made.loaded("C") == [Serve(("A", "C"))]


def test_without_fallback_the_other_ones_are_given_up() -> None:
    made = choice("ABC", "C", fallback=False)
    made.look("C")
    assert made.loaded("C") == [Serve(("A",)), Unload("C")]
    assert made.look("") == []


def test_the_next_best_is_tried_if_the_best_one_fails() -> None:
    made = choice("ABC", "C")
    made.look("C")
    assert made.failed("C") == [Load("B")]
    assert made.failed("C") == []


def test_a_device_that_failed_before_is_not_tried() -> None:
    assert choice("ABC", "C", "AB").look("C") == []


def test_worse_devices_are_loaded_only_if_nothing_serves() -> None:
    made = choice("ABC", "A")
    assert made.look("A") == []
    assert made.look("") == [Load("B")]
    assert made.loaded("") == [Serve(("A", "B"))]
    assert made.look("B") == []
    assert made.look("") == [Load("C")]


def test_a_device_that_failed_may_be_tried_again() -> None:
    made = choice("AC", "C", "A")
    assert made.look("C") == []
    made.forgive("A")
    assert made.look("C") == [Load("A")]


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
        self.choice = Choice(candidates, loaded, (), fallback=fallback)

    def serving(self) -> list[str]:
        return [
            each.name for each in self.world.schedule.devices if each.standing.value == "serving"
        ]

    def follow(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, Serve):
                limits = {**self.world.limits, **dict.fromkeys(each.devices, 2)}
                self.world.arrange(*((name, limits[name]) for name in each.devices))
                assert self.serving() or self.world.reports

    def go_on(self) -> None:
        if self.world.random.random() < 0.1:
            self.choice.forgive(self.world.random.choice("ABC"))
        self.follow(self.choice.look(self.serving()))
        if self.choice.loading is not None and self.world.random.random() < 0.3:
            works = self.world.random.random() < 0.7
            event = self.choice.loaded if works else self.choice.failed
            self.follow(event(self.serving()))


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
    made.look("C")
    assert made.loaded("C").count(Unload("C")) == 1
    assert made.look("A") == []
