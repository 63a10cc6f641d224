"""Requests that wait for networks that are not loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from headrace.runtime.errors import (
    FailedPrecondition,
    InvalidModel,
    NotLoaded,
    ResourceExhausted,
    ShuttingDown,
    StillLoading,
)
from headrace.runtime.loading import cold_loads
from headrace.runtime.loading.cold_loads import (
    ColdLoads,
    ColdNetwork,
    LoadWaiter,
    WantedNetwork,
    next_load,
)
from headrace.runtime.loading.entry import NetworkEntry, NetworkKey, Tenancy
from headrace.testing.occupied import eventually


class World:
    """Networks whose loads the test ends."""

    def __init__(self) -> None:
        self.cold = ColdLoads()
        self.begun: list[str] = []
        self.loads: dict[str, Future[NetworkEntry]] = {}
        self.told: list[LoadWaiter] = []
        self.entries: dict[str, NetworkEntry] = {}

    def entry(self, name: str, load_seconds: float = 0.0) -> NetworkEntry:
        """Those whose name begins with pipeline are pipelines."""

        def again(_: NetworkEntry, who: str) -> Future[NetworkEntry]:
            self.loads[name] = Future()
            self.begun.append(name)
            return self.loads[name]

        if name not in self.entries:
            key = NetworkKey(name, "1", 1)
            device = "PIPELINE" if name.startswith("pipeline") else "CPU"
            self.entries[name] = NetworkEntry(key, device, None, Tenancy(again=again))
        self.entries[name].load_seconds = load_seconds
        return self.entries[name]

    def wait(self, name: str, **facts: object) -> LoadWaiter:
        return self.cold.wait(self.entry(name), self.told.append, **facts)  # type: ignore[arg-type]

    def until_begun(self, *names: str) -> None:
        eventually(lambda: self.begun == [*names], f"the loads of {names}")

    def hears(self, *waiters: LoadWaiter) -> None:
        """Waits until these have been told, and no others."""
        eventually(lambda: {*self.told} >= {*waiters}, "the end of loads")
        assert {*self.told} == {*waiters}

    def lacks(self, name: str, step: str) -> None:
        """Ends the load of a pipeline that lacks a network."""
        self.end(name, NotLoaded(f"no {step}", ColdNetwork(self.entry(step), self.cold)))

    def end(self, name: str, error: Exception | None = None) -> None:
        if error is not None:
            self.loads[name].set_exception(error)
        else:
            self.loads[name].set_result(self.entry(name))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.cold.stop()


def wanted(name: str, who: str, order: int, priority: int = 0) -> WantedNetwork:
    entry = NetworkEntry(NetworkKey(name, "1", 1), "CPU", None)
    found = WantedNetwork(entry, who, order)
    found.waiters[LoadWaiter(found, lambda _: None, who, priority)] = None
    return found


def test_the_most_urgent_request_is_served_first_and_then_the_first_one() -> None:
    waiting = [wanted("a", "", 1), wanted("b", "", 2, priority=5), wanted("c", "", 3, priority=5)]
    assert next_load(waiting, {}).entry.key.name == "b"


def test_an_identity_with_many_wishes_does_not_keep_another_one_waiting() -> None:
    waiting = [wanted("a", "greedy", 1, priority=9), wanted("b", "modest", 2)]
    assert next_load(waiting, Counter(["greedy"])).entry.key.name == "b"


def test_a_network_that_several_identities_want_is_loaded_for_the_one_that_is_next() -> None:
    both = wanted("both", "greedy", 2)
    both.waiters[LoadWaiter(both, lambda _: None, "modest", 0)] = None
    running = Counter(["greedy"])
    assert next_load([wanted("a", "greedy", 1), both], running) is both
    assert both.for_whom(running) == "modest"


def test_all_requests_to_a_network_wait_for_one_load(world: World) -> None:
    waiters = [world.wait("a") for _ in range(5)]
    world.until_begun("a")
    assert world.told == []
    world.end("a")
    world.hears(*waiters)
    assert all(waiter.error is None for waiter in waiters)


def test_after_the_load_the_most_urgent_request_goes_first_and_of_these_the_one_that_came_first(
    world: World,
) -> None:
    waiters = [world.wait("a", priority=priority) for priority in (0, 1, 0, 1, 0, 1)]
    world.until_begun("a")
    world.end("a")
    world.hears(*waiters)
    assert world.told == waiters[1::2] + waiters[::2]


def test_a_network_is_loaded_although_the_load_of_an_earlier_one_of_its_name_hangs(
    world: World,
) -> None:
    world.wait("a")
    world.until_begun("a")
    del world.entries["a"]  # it was unloaded, and another one has its name
    waiter = world.wait("a")
    world.until_begun("a", "a")
    world.end("a")
    world.hears(waiter)


def test_requests_hear_why_a_load_failed(world: World) -> None:
    waiter = world.wait("a")
    world.until_begun("a")
    error = InvalidModel("no model")
    world.end("a", error)
    world.hears(waiter)
    assert waiter.error is error


def test_few_loads_run_at_a_time(world: World) -> None:
    for name in "abc":
        world.wait(name)
    world.until_begun("a", "b")
    world.end("b")
    world.until_begun("a", "b", "c")


def test_an_identity_without_loads_does_not_wait_for_those_of_another_one(world: World) -> None:
    for name in "abc":
        world.wait(name, who="greedy")
    world.until_begun("a", "b")
    world.wait("d", who="modest")
    world.until_begun("a", "b", "d")
    world.wait("e", who="modest")
    world.end("a")
    world.end("d")
    world.until_begun("a", "b", "d", "e")


def test_a_load_that_waits_and_that_nobody_wants_any_more_does_not_begin(world: World) -> None:
    for name in "ab":
        world.wait(name)
    left = world.wait("c")
    world.wait("d")
    world.until_begun("a", "b")
    world.cold.leave(left)
    world.end("a")
    world.until_begun("a", "b", "d")


def test_a_network_stays_awaited_until_all_who_waited_have_left(world: World) -> None:
    one, other = world.wait("a"), world.wait("a")
    world.until_begun("a")
    world.end("a")
    world.cold.leave(one)
    assert world.cold.awaited() == {("a", "1")}
    world.cold.leave(other)
    assert world.cold.awaited() == set()


def test_a_request_without_enough_time_hears_how_long_the_load_takes_and_the_load_goes_on(
    world: World,
) -> None:
    world.entry("a", load_seconds=30.0)
    with pytest.raises(StillLoading, match="takes about 30 s") as caught:
        world.cold.wait(world.entries["a"], world.told.append, seconds=1.0)
    assert caught.value.retry_delay_seconds == 30.0
    world.until_begun("a")
    assert world.cold.awaited() == set()


def test_the_estimate_counts_the_loads_before_it(world: World) -> None:
    for name in "abcd":
        world.entry(name, load_seconds=30.0)
        world.cold.wait(world.entries[name], world.told.append)
    world.cold._mean_seconds = 10.0
    with pytest.raises(StillLoading) as caught:
        world.cold.wait(world.entry("e", 30.0), world.told.append, seconds=1.0)
    assert caught.value.retry_delay_seconds == 50.0


def test_the_estimate_leaves_out_loads_for_others(world: World) -> None:
    for name in "abcd":
        world.wait(name, who="greedy")
    world.cold._mean_seconds = 10.0
    world.cold.wait(world.entry("e", 2.0), world.told.append, who="modest", seconds=3.0)


def test_a_load_that_nobody_waits_for_begins_after_those_that_requests_want(world: World) -> None:
    for name in "abcd":
        world.cold.load(world.entry(name))
    world.until_begun("a", "b")
    world.wait("d")
    world.wait("e")
    world.end("a")
    world.until_begun("a", "b", "d")
    world.end("b")
    world.until_begun("a", "b", "d", "e")
    world.end("d")
    world.until_begun("a", "b", "d", "e", "c")


def test_the_estimate_leaves_out_loads_that_nobody_waits_for(world: World) -> None:
    for name in "abcde":
        world.cold.load(world.entry(name, load_seconds=30.0))
    world.until_begun("a", "b")
    world.cold._mean_seconds = 10.0
    with pytest.raises(StillLoading) as caught:
        world.cold.wait(world.entry("e", 30.0), world.told.append, seconds=1.0)
    assert caught.value.retry_delay_seconds == 40.0, "the two that run come before it"


def test_a_failed_load_that_nobody_waits_for_is_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.cold.load(world.entry("a"))
    world.until_begun("a")
    world.end("a", InvalidModel("no model"))
    said = ["network a was not loaded: no model"]
    eventually(lambda: caplog.messages == said, "a line in the log")


def test_one_identity_takes_half_of_the_places_to_wait_in(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_loads, "_MOST_WAITERS", 4)
    for _ in range(3):
        world.wait("a", who="greedy")
    with pytest.raises(ResourceExhausted, match="too many requests wait") as caught:
        world.wait("b", who="greedy")
    assert caught.value.retry_delay_seconds
    world.wait("b", who="modest")


def test_requests_without_enough_time_take_places_while_their_loads_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_loads, "_MOST_WAITERS", 4)
    for name in "abc":
        with pytest.raises(StillLoading):
            world.cold.wait(world.entry(name, 30.0), world.told.append, who="greedy", seconds=1.0)
    with pytest.raises(ResourceExhausted, match="too many requests wait"):
        world.wait("d", who="greedy")
    world.wait("d", who="modest")


def test_a_network_that_another_one_needs_is_loaded_first(world: World) -> None:
    waiter = world.wait("pipeline")
    world.until_begun("pipeline")
    world.lacks("pipeline", "step")
    world.until_begun("pipeline", "step")
    world.end("step")
    world.until_begun("pipeline", "step", "pipeline")
    assert ("step", "1") in world.cold.awaited()
    world.end("pipeline")
    world.hears(waiter)
    assert waiter.error is None
    eventually(lambda: world.cold.awaited() == {("pipeline", "1")}, "the step is let go")


def test_one_pipeline_is_loaded_at_a_time_with_those_among_its_steps(world: World) -> None:
    for name in ("pipeline1", "pipeline2", "a"):
        world.wait(name)
    world.until_begun("pipeline1", "a")
    world.end("a")
    world.lacks("pipeline1", "pipeline3")
    world.until_begun("pipeline1", "a", "pipeline3")
    world.end("pipeline3")
    world.until_begun("pipeline1", "a", "pipeline3", "pipeline1")
    world.end("pipeline1")
    world.until_begun("pipeline1", "a", "pipeline3", "pipeline1", "pipeline2")


def test_a_pipeline_s_loads_find_a_place_beside_loads_that_wait_for_its_steps_to_leave(
    world: World,
) -> None:
    for name in ("pipeline", "a", "b"):
        world.wait(name)
    world.wait("c", who="other")
    world.until_begun("pipeline", "a", "c")
    world.lacks("pipeline", "step1")
    world.until_begun("pipeline", "a", "c", "step1")
    world.end("step1")
    world.until_begun("pipeline", "a", "c", "step1", "pipeline")
    world.lacks("pipeline", "step2")
    world.until_begun("pipeline", "a", "c", "step1", "pipeline", "step2")
    assert {*world.cold.kept_together()} == {
        ("pipeline", "1"),
        ("step1", "1"),
        ("step2", "1"),
    }
    world.end("step2")
    world.until_begun("pipeline", "a", "c", "step1", "pipeline", "step2", "pipeline")
    world.end("pipeline")
    world.end("a")
    world.until_begun("pipeline", "a", "c", "step1", "pipeline", "step2", "pipeline", "b")


def test_a_step_that_fails_at_once_is_let_go_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: NetworkEntry, who: str) -> Future[NetworkEntry]:
        raise InvalidModel("it is broken")

    # Loads begin within the call that asks for them, so the step's has failed when that returns.
    monkeypatch.setattr(world.cold._threads, "submit", lambda run, *args: run(*args))
    waiter = world.wait("pipeline")
    world.entry("step").tenancy = Tenancy(again=fails)
    world.lacks("pipeline", "step")
    world.hears(waiter)
    assert isinstance(waiter.error, InvalidModel)
    world.cold.leave(waiter)
    assert world.cold.awaited() == set()


def test_networks_that_need_each_other_are_refused(world: World) -> None:
    waiter = world.wait("a")
    world.until_begun("a")
    world.lacks("a", "b")
    world.until_begun("a", "b")
    world.lacks("b", "a")
    world.hears(waiter)
    assert isinstance(waiter.error, FailedPrecondition)
    assert "would run itself" in waiter.error.message


def test_an_endless_chain_of_pipelines_is_refused_and_lets_others_begin(world: World) -> None:
    def entry(depth: int) -> NetworkEntry:
        def again(_: NetworkEntry, who: str) -> Future[NetworkEntry]:
            load: Future[NetworkEntry] = Future()
            load.set_exception(NotLoaded("no step", missing(depth + 1)))
            return load

        return NetworkEntry(NetworkKey(f"p{depth}", "1", 1), "PIPELINE", None, Tenancy(again=again))

    def missing(depth: int) -> ColdNetwork:
        return ColdNetwork(entry(depth), world.cold)

    waiter = world.cold.wait(entry(0), world.told.append)
    world.hears(waiter)
    assert isinstance(waiter.error, FailedPrecondition)
    assert "ask for the inner ones first" in waiter.error.message
    assert world.cold.kept_together() == set()
    world.wait("pipeline")
    world.until_begun("pipeline")


def test_a_stop_tells_those_who_wait_and_refuses_others(world: World) -> None:
    for name in "ab":
        world.wait(name)
    world.until_begun("a", "b")
    waiter = world.wait("c")
    world.cold.stop()
    assert isinstance(waiter.error, ShuttingDown)
    with pytest.raises(ShuttingDown):
        world.wait("d")
