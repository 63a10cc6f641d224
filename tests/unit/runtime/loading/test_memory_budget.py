"""Which networks make room for another one, and what loads are found to take."""

from __future__ import annotations

import math
from functools import partial

import pytest

from headrace.runtime.errors import ResourceExhausted
from headrace.runtime.loading.entry import NetworkKey
from headrace.runtime.loading.memory_budget import (
    SHARED,
    Holder,
    LoadSize,
    MemoryBudget,
    MemoryMeter,
    WeightSize,
    make_room,
)

MIB = 2**20
CPU = frozenset({"CPU"})
BUDGET = MemoryBudget({"CPU": 100 * MIB})


def key(name: str) -> NetworkKey:
    return NetworkKey(name, "1", 1)


def holder(name: str, size: int, used: float = 0.0, **facts: object) -> Holder:
    facts = {"later": size * MIB, **facts}
    return Holder(key(name), CPU, size * MIB, last_used=used, **facts)  # type: ignore[arg-type]


def weights(size: int) -> WeightSize:
    """Those of a network in float32."""
    return WeightSize(size, size)


def leaving(
    peak: int, later: int, *there: Holder, budget: MemoryBudget = BUDGET, who: str = ""
) -> list[str] | None:
    size = LoadSize(peak * MIB, later * MIB)
    keys = make_room("new", size, budget.counts(["CPU"]), budget, there, who)
    return None if keys is None else [each.name for each in keys]


def test_a_network_that_fits_drives_nobody_out() -> None:
    assert leaving(30, 10, holder("a", 30), holder("b", 40)) == []


def test_the_least_used_leave_and_no_more_than_are_needed() -> None:
    there = holder("a", 30, uses=3.0), holder("b", 30, uses=1.0), holder("c", 30, uses=2.0)
    assert leaving(50, 20, *there) == ["b", "c"]


def test_of_networks_that_were_used_as_much_the_least_recently_used_leave() -> None:
    there = holder("a", 30, 3.0), holder("b", 30, 1.0), holder("c", 30, 2.0)
    assert leaving(50, 20, *there) == ["b", "c"]


def test_networks_with_requests_leave_last() -> None:
    there = holder("busy", 50, 1.0, busy=True), holder("idle", 40, 2.0)
    assert leaving(50, 20, *there) == ["idle"]
    assert leaving(60, 20, *there) == ["idle", "busy"]


def kept(name: str, size: int, *owners: str, used: float = 0.0) -> Holder:
    stays = "a sequence is open on it"
    return holder(name, size, used, stays=stays, sequences=frozenset(owners), uses=used)


def test_an_identity_s_sequences_keep_no_more_than_they_leave_for_others() -> None:
    there = [kept(f"e{number}", 20, "eve", used=number) for number in range(4)]
    assert leaving(40, 40, *there, who="bob") == ["e0"]
    assert leaving(60, 60, *there, who="bob") == ["e0", "e1"]  # she keeps 40, which leaves 60
    with pytest.raises(ResourceExhausted, match="a sequence is open on it"):
        leaving(80, 80, *there, who="bob")
    assert leaving(40, 40, *there, holder("b", 20, uses=9.0), who="bob") == ["e0", "e1"]


def test_the_sequences_of_others_and_of_who_asks_keep_a_network() -> None:
    there = kept("e", 60, "eve"), kept("both", 30, "eve", "bob")
    assert leaving(40, 40, *there, who="carol") == ["e"]
    for who, each in (("eve", there[0]), ("carol", kept("nobody", 60, ""))):
        with pytest.raises(ResourceExhausted):
            leaving(50, 50, each, who=who)


def test_whoever_asks_for_many_networks_drives_out_its_own() -> None:
    there = [
        holder("hot", 20, who="bob", uses=1.0),
        *(holder(f"n{number}", 20, who="eve", uses=9.0 + number) for number in range(4)),
    ]
    assert leaving(40, 20, *there, who="eve") == ["n0", "n1"]
    assert leaving(40, 20, *there, who="bob") == ["n0", "n1"]
    assert leaving(40, 20, *there, who="carol") == ["n0", "n1"]


def test_the_identity_that_has_the_most_makes_room_until_another_one_has_as_much() -> None:
    there = [
        *(holder(f"b{number}", 10, who="bob", uses=number) for number in range(6)),
        *(holder(f"e{number}", 20, who="eve", uses=number) for number in range(2)),
    ]
    assert leaving(40, 10, *there, who="carol") == ["b0", "b1", "e0"]


def test_a_network_that_nobody_used_for_long_is_in_no_share() -> None:
    there = holder("b", 40, who="bob", idle=True, uses=1.0), holder("e", 60, who="eve", uses=2.0)
    assert leaving(20, 20, *there, who="eve") == ["b"]


def test_of_another_one_s_share_a_load_takes_what_it_cannot_have_otherwise() -> None:
    there = holder("b", 10, who="bob"), holder("e", 20, who="eve"), holder("c", 70, stays="pinned")
    assert leaving(30, 30, *there, who="eve") == ["e", "b"]


def test_what_stays_of_one_owner_leaves_as_much_for_others() -> None:
    size = LoadSize(20 * MIB, 20 * MIB)

    def load(owner: str, *there: Holder) -> list[NetworkKey] | None:
        return make_room(f"new@{owner}", size, CPU, BUDGET, there, owner, stays=True)

    stay = partial(holder, stays="it is a client's")
    assert load("eve", stay("a@eve", 20)) == []
    assert load("eve", stay("a@eve", 40)) == []
    with pytest.raises(ResourceExhausted, match=r"your networks have 41 MiB .* unload one of them"):
        load("eve", stay("a@eve", 41))
    with pytest.raises(ResourceExhausted, match="your networks have 20 MiB"):
        load("bob", stay("a@eve", 50), stay("b@bob", 20))
    assert load("carol", stay("a@eve", 50), stay("b@bob", 20)) == []
    size = LoadSize(51 * MIB, 51 * MIB)
    with pytest.raises(ResourceExhausted, match="half of the 100 MiB"):
        load("eve")


def test_a_load_waits_for_what_leaves_already() -> None:
    assert leaving(50, 20, holder("a", 60, later=0), holder("b", 30)) is None


def test_a_load_waits_for_another_one_that_takes_less_when_it_has_ended() -> None:
    assert leaving(50, 20, holder("a", 60, later=20 * MIB, awaited=True)) is None


def test_a_network_stays_until_the_requests_that_waited_for_it_have_begun() -> None:
    assert leaving(50, 20, holder("a", 60, awaited=True)) is None


def test_the_pipelines_that_leave_before_a_network_make_room_too() -> None:
    there = holder("step", 30, 1.0, users=(key("pipeline"),)), holder("pipeline", 60, 2.0)
    assert leaving(50, 20, *there) == ["pipeline"]
    assert leaving(50, 20, *reversed(there)) == ["pipeline"]


def test_a_network_that_must_stay_is_named_with_its_size_and_the_reason() -> None:
    with pytest.raises(ResourceExhausted) as caught:
        leaving(50, 20, holder("a", 60, stays="it is pinned"), holder("b", 30))
    assert "'new' needs 50 MiB" in caught.value.message
    assert "of CPU has 100 MiB, of which stay 'a' 60 MiB (it is pinned)" in caught.value.message
    assert caught.value.retry_delay_seconds == 1.0


@pytest.mark.parametrize(
    ("seconds", "delay"),
    [
        ((7.0, 9.0, math.inf), 7.0),
        ((math.inf, 9.0, math.inf), 9.0),
        ((math.inf, math.inf, 9.0), None),
        ((math.inf, math.inf, math.inf), None),
    ],
)
def test_a_load_may_be_tried_again_when_enough_may_leave(
    seconds: tuple[float, ...], delay: float | None
) -> None:
    there = [
        holder(name, size, stays="it stays", stays_seconds=each)
        for (name, size), each in zip({"a": 40, "b": 40, "c": 10}.items(), seconds, strict=True)
    ]
    with pytest.raises(ResourceExhausted) as caught:
        leaving(50, 20, *there)
    assert caught.value.retry_delay_seconds == delay
    assert ("try again later" in caught.value.message) == (delay is not None)


def test_a_tenant_hears_of_its_own_and_shared_networks_that_stay_alone() -> None:
    sizes = {"shared": 20, "own@b": 20, "secret@a": 10, "secrets@a": 30}
    there = [holder(name, size, stays="it is pinned") for name, size in sizes.items()]
    size = LoadSize(50 * MIB, 20 * MIB)
    for name, others in (("new@b", "40 MiB of 2 more"), ("new", "60 MiB of 3 more")):
        with pytest.raises(ResourceExhausted) as caught:
            make_room(name, size, CPU, BUDGET, there)
        assert "'shared' 20 MiB (it is pinned)" in caught.value.message
        assert ("'own' 20 MiB" in caught.value.message) == ("@" in name)
        assert others in caught.value.message
        assert "secret" not in caught.value.message


def test_what_never_fits_asks_for_a_larger_budget() -> None:
    with pytest.raises(ResourceExhausted, match="give --memory-budget more") as caught:
        leaving(300, 120)
    assert caught.value.retry_delay_seconds is None


def test_a_load_that_takes_more_than_the_budget_for_a_moment_is_alone() -> None:
    assert leaving(300, 80, holder("a", 10)) == ["a"]
    assert leaving(300, 80) == []


def test_each_device_has_a_budget_of_its_own() -> None:
    budget = MemoryBudget({"CPU": 100 * MIB, "OPENVINO": 50 * MIB})
    assert budget.counts(["CPU", "TEMPLATE"]) == CPU
    assert budget.counts(["TEMPLATE"]) == frozenset()
    other = holder("a", 90)._replace(budgets=frozenset({"OPENVINO"}))
    assert leaving(50, 20, other, budget=budget) == []


def test_all_devices_may_share_one_budget() -> None:
    budget = MemoryBudget({SHARED: 100 * MIB})
    assert budget.counts(["CPU"]) == budget.counts(["TEMPLATE"]) == frozenset({SHARED})


def test_a_load_is_expected_to_take_what_it_took_before() -> None:
    assert LoadSize.of(weights(10 * MIB)) == (34 * MIB, 10 * MIB)
    assert LoadSize.of(weights(10 * MIB), 50 * MIB) == (54 * MIB, 50 * MIB)


def test_a_load_of_weights_that_a_file_has_packs_one_after_the_other() -> None:
    kept = WeightSize(10 * MIB, 20 * MIB, kept=True)
    assert LoadSize.of(kept) == (24 * MIB, 10 * MIB)
    assert LoadSize.of(kept, 30 * MIB) == (34 * MIB, 30 * MIB)


def test_a_load_of_float16_may_take_what_float32_takes() -> None:
    assert LoadSize.of(WeightSize(10 * MIB, 20 * MIB)) == (64 * MIB, 10 * MIB)
    meter = MemoryMeter()
    meter.begin(key("a"), WeightSize(10 * MIB, 20 * MIB), 0)
    assert meter.end(key("a"), 40 * MIB) == {key("a"): 40 * MIB}


def test_weights_that_another_network_maps_count_once() -> None:
    copy = WeightSize(10 * MIB, 10 * MIB, mapped=True)
    assert LoadSize.of(copy, 50 * MIB) == (14 * MIB, 0)
    assert LoadSize.of(copy).and_more(10 * MIB) == (24 * MIB, 10 * MIB)


# -- measuring --


def test_a_load_takes_what_the_memory_has_grown_by() -> None:
    meter = MemoryMeter()
    meter.begin(key("a"), weights(100), 1000)
    assert meter.end(key("a"), 1130) == {key("a"): 130}


def test_a_load_whose_weights_are_mapped_takes_the_rest() -> None:
    meter = MemoryMeter()
    meter.begin(key("a"), WeightSize(100, 100, mapped=True), 1000)
    assert meter.end(key("a"), 1030) == {key("a"): 30}


def test_loads_that_overlap_are_measured_when_the_last_one_has_ended() -> None:
    meter = MemoryMeter()
    meter.begin(key("a"), weights(100), 1000)
    meter.begin(key("b"), weights(300), 1300)
    assert meter.end(key("a"), 9000) == {}
    assert meter.end(key("b"), 1440) == {key("a"): 110, key("b"): 330}


def test_what_is_freed_meanwhile_and_loads_that_fail_are_left_out() -> None:
    meter = MemoryMeter()
    meter.begin(key("a"), weights(100), 1000)
    meter.begin(key("b"), weights(50), 1100)
    meter.freed(400)
    assert meter.give_up(key("b"), 800) == {}
    assert meter.end(key("a"), 720) == {key("a"): 120}


def test_a_load_may_fail_before_it_is_measured() -> None:
    assert MemoryMeter().give_up(key("a"), 800) == {}


def test_a_network_takes_its_weights_at_least_and_its_load_at_most() -> None:
    meter = MemoryMeter()
    meter.begin(key("a"), weights(100), 1000)
    assert meter.end(key("a"), 900) == {key("a"): 100}
    meter.begin(key("a"), weights(MIB), 0)
    assert meter.end(key("a"), 500 * MIB) == {key("a"): 7 * MIB}


def test_pipelines_leave_before_the_networks_that_they_run() -> None:
    step = holder("step", 60, users=(key("pipeline"),))
    there = step, holder("pipeline", 1, 9.0)
    assert leaving(50, 20, *there) == ["pipeline"]
    assert leaving(50, 20, step._replace(users=(), held=True)) is None
    assert leaving(50, 20, step._replace(users=())) == ["step"]
