"""Networks by name: reserved, published, replaced and retired, with counted references."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from headrace.runtime.errors import (
    AlreadyExists,
    Cancelled,
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    NotFound,
    QueueFull,
    ResourceExhausted,
    Unavailable,
)
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.loading.entry import Tenancy, full_name
from headrace.runtime.loading.registry import (
    NetworkEntry,
    NetworkRegistry,
    NetworkState,
    check_network_name,
)
from headrace.runtime.loading.table import OwnerLimits
from tests.support.fake_device import FakeDevice, FakeNetwork, Outcomes, fake_device
from tests.support.gate import Gate, run_together
from tests.support.interleaving import frequent_switches
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with fake_device(streams=2) as device:
        yield device


@pytest.fixture
def registry() -> NetworkRegistry:
    return NetworkRegistry(4)


def never(entry: NetworkEntry) -> None:
    raise AssertionError(f"{entry.key} drained")


def load(registry: NetworkRegistry, executable: FakeNetwork, name: str = "m") -> NetworkEntry:
    entry = registry.reserve(name, "FAKE", None)
    registry.publish(entry, executable, never)
    return entry


def test_the_networks_that_run_others_are_known(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    load(registry, device.network(), "a")
    pipeline = device.network()
    pipeline.runs = frozenset({("a", "")})
    entry = load(registry, pipeline, "p")
    assert registry.runners() == [entry]
    registry.retire("p", lambda _: None)
    assert registry.runners() == []


# -- names --


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "0", "x" * 128])
def test_a_network_name_is_letters_digits_and_a_few_signs(name: str) -> None:
    assert check_network_name(name) == name


@pytest.mark.parametrize(
    "name", [".a", "-a", "_a", "a/b", "a b", "ä", "../x", "x" * 129, "a\n", "a\0"]
)
def test_anything_else_is_refused_naming_the_field(registry: NetworkRegistry, name: str) -> None:
    with pytest.raises(InvalidArgument, match="not a network name") as caught:
        registry.reserve(name, "FAKE", None)
    assert caught.value.field == "name"
    assert len(str(caught.value)) < 1000


def test_an_empty_name_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidArgument, match=r"pass model\.repository=") as caught:
        check_network_name("", "model.repository")
    assert caught.value.field == "model.repository"


# -- loading --


def test_a_network_is_loading_then_ready(registry: NetworkRegistry, device: FakeDevice) -> None:
    entry = registry.reserve("m", "FAKE", "record")
    assert (entry.state, entry.record) == (NetworkState.LOADING, "record")
    assert entry.key.name == "m"
    assert registry.find("m") is entry
    assert registry.entries() == [entry]
    registry.publish(entry, device.network(), never)
    assert entry.state.value == "ready"
    assert registry.acquire("m") is entry


def test_a_load_is_given_up_once_and_only_while_it_goes_on(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    entry = registry.reserve("m", "FAKE", None)
    first, second = Cancelled("first"), Cancelled("second")
    assert registry.give_up(entry, first)
    assert registry.give_up(entry, second)
    assert entry.given_up is first
    registry.fail(entry, "cancelled", keep=True)
    assert not registry.give_up(entry, first)
    assert not registry.give_up(load(registry, device.network(), "other"), first)


def test_a_name_that_is_being_loaded_cannot_be_used_yet(registry: NetworkRegistry) -> None:
    registry.reserve("m", "FAKE", None)
    with pytest.raises(Unavailable, match="still being loaded"):
        registry.acquire("m")
    with pytest.raises(Unavailable, match="still being loaded"):
        registry.retire("m", never)
    for replace in (False, True):
        with pytest.raises(AlreadyExists, match="is being loaded"):
            registry.reserve("m", "FAKE", None, replace=replace)


def test_a_name_in_use_is_refused_unless_it_is_to_be_replaced(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    load(registry, device.network())
    with pytest.raises(AlreadyExists, match="set replace"):
        registry.reserve("m", "FAKE", None)
    registry.reserve("m", "FAKE", None, replace=True)


def test_an_unknown_name_is_not_found_with_a_suggestion(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    load(registry, device.network(), "magika")
    for ask in (registry.acquire, registry.find, lambda name: registry.retire(name, never)):
        with pytest.raises(NotFound, match="did you mean 'magika'"):
            ask("magica")


def test_every_load_has_a_key_of_its_own(registry: NetworkRegistry, device: FakeDevice) -> None:
    keys = set()
    for _ in range(3):
        entry = registry.reserve("m", "FAKE", None, replace=True)
        registry.publish(entry, device.network(), lambda _: None)
        keys.add(entry.key)
    assert len(keys) == 3


def test_a_failed_load_leaves_nothing_unless_it_is_to_be_kept(registry: NetworkRegistry) -> None:
    registry.fail(registry.reserve("m", "FAKE", None), "bad model", keep=False)
    assert registry.entries() == []
    registry.fail(registry.reserve("m", "FAKE", None), "bad model", keep=True)
    assert registry.find("m").state is NetworkState.FAILED
    with pytest.raises(FailedPrecondition, match="failed to load: bad model"):
        registry.acquire("m")


def test_a_failed_network_gives_its_name_to_the_next_load(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    registry.fail(registry.reserve("m", "FAKE", None), "bad model", keep=True)
    entry = registry.reserve("m", "FAKE", None)
    drained: list[NetworkEntry] = []
    registry.publish(entry, device.network(), drained.append)
    assert registry.acquire("m") is entry
    assert [each.executable for each in drained] == [None]


def test_a_network_whose_load_cannot_begin_is_listed_beyond_the_limit(
    device: FakeDevice,
) -> None:
    registry = NetworkRegistry(1)
    load(registry, device.network())
    registry.list_failed("n", "FAKE", "record", "bad model")
    entry = registry.find("n")
    assert (entry.state, entry.device, entry.record) == (NetworkState.FAILED, "FAKE", "record")
    with pytest.raises(FailedPrecondition, match="failed to load: bad model"):
        registry.acquire("n")
    drained: list[NetworkEntry] = []
    registry.retire("n", drained.append)
    assert drained == [entry]


def test_a_network_whose_load_cannot_begin_takes_no_name_in_use(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    load(registry, device.network(), "ready")
    registry.reserve("loading", "FAKE", None)
    for name in ("ready", "loading"):
        with pytest.raises(AlreadyExists):
            registry.list_failed(name, "FAKE", None, "bad model")
    with pytest.raises(InvalidArgument, match="not a network name"):
        registry.list_failed("not a name", "FAKE", None, "bad model")


def test_a_replacement_that_fails_leaves_what_was_there(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    old = load(registry, device.network())
    registry.fail(registry.reserve("m", "FAKE", None, replace=True), "bad model", keep=True)
    assert registry.acquire("m") is old


# -- the limit --


def test_there_are_no_more_networks_than_the_limit(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    for name in "abc":
        load(registry, device.network(), name)
    registry.reserve("d", "FAKE", None)
    with pytest.raises(ResourceExhausted, match="4 networks"):
        registry.reserve("e", "FAKE", None)


def test_a_failed_network_takes_no_room_and_is_given_none(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    registry.fail(registry.reserve("failed", "FAKE", None), "bad", keep=True)
    for name in "abcd":
        load(registry, device.network(), name)
    with pytest.raises(ResourceExhausted, match="4 networks"):
        registry.reserve("failed", "FAKE", None, replace=True)


def test_a_network_that_drains_takes_its_room_until_it_is_gone(device: FakeDevice) -> None:
    registry = NetworkRegistry(1)
    load(registry, device.network())
    entry = registry.acquire("m")
    registry.retire("m", lambda _: None)
    with pytest.raises(ResourceExhausted):
        registry.reserve("n", "FAKE", None)
    registry.release(entry)
    registry.reserve("n", "FAKE", None)


def test_a_replacement_takes_the_room_of_what_it_replaces(device: FakeDevice) -> None:
    registry = NetworkRegistry(1)
    load(registry, device.network())
    for _ in range(3):
        entry = registry.reserve("m", "FAKE", None, replace=True)
        registry.publish(entry, device.network(), lambda _: None)
    assert len(registry.entries()) == 1


def test_replacing_over_and_over_does_not_pile_up_what_still_drains(device: FakeDevice) -> None:
    registry = NetworkRegistry(1)
    load(registry, device.network())
    in_use = registry.acquire("m")
    entry = registry.reserve("m", "FAKE", None, replace=True)
    registry.publish(entry, device.network(), lambda _: None)
    with pytest.raises(ResourceExhausted):
        registry.reserve("m", "FAKE", None, replace=True)
    registry.release(in_use)
    registry.reserve("m", "FAKE", None, replace=True)


# -- references --


def test_an_unused_network_is_drained_at_once(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    entry, drained = load(registry, device.network()), list[NetworkEntry]()
    assert registry.retire("m", drained.append) == [entry]
    assert drained == [entry]
    assert registry.entries() == []
    with pytest.raises(NotFound):
        registry.retire("m", never)


def test_a_network_in_use_loses_its_name_at_once_and_drains_with_its_last_reference(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    entry, drained = load(registry, device.network()), list[NetworkEntry]()
    references = [registry.acquire("m"), registry.acquire("m")]
    registry.retire("m", drained.append)
    assert entry.state is NetworkState.DRAINING
    assert registry.entries() == [entry]
    with pytest.raises(NotFound):
        registry.acquire("m")
    registry.release(references[0])
    assert drained == []
    registry.release(references[1])
    assert drained == [entry]


def test_a_reference_without_an_end_in_sight_does_not_drain_one_that_stays(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    entry = load(registry, device.network())
    registry.release(registry.acquire("m"))
    assert (entry.state, entry.references) == (NetworkState.READY, 0)


def test_a_job_gives_its_reference_back_when_it_ends(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    gate, outcomes, drained = Gate(), Outcomes(), list[NetworkEntry]()
    entry = load(registry, device.network(lambda _: gate()))
    job = outcomes.job()
    registry.submit(registry.acquire("m"), job)
    assert job.generation == entry.key.generation
    registry.retire("m", drained.append)
    assert drained == []
    gate.open()
    outcomes.wait()
    assert (drained, entry.references) == ([entry], 0)


def test_a_refused_job_gives_its_reference_back_once_whatever_becomes_of_it(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    entry, outcomes = load(registry, device.network()), Outcomes()
    refused = outcomes.job({"wrong": None})
    with pytest.raises(InvalidArgument) as caught:
        registry.submit(registry.acquire("m"), refused)
    assert entry.references == 0
    # A front-end may answer through the job.
    refused.fail(caught.value)
    assert entry.references == 0


def test_a_refused_job_may_go_to_another_network(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    with fake_device(capacity=0) as full:
        gate, outcomes = Gate(), Outcomes()
        small = load(registry, full.network(lambda _: gate()), "small")
        registry.submit(registry.acquire("small"), outcomes.job())
        gate.await_arrivals()
        job = outcomes.job()
        with pytest.raises(QueueFull):
            registry.submit(registry.acquire("small"), job)
        other = load(registry, device.network(), "other")
        registry.submit(registry.acquire("other"), job)
        outcomes.wait(1)
        assert (small.references, other.references) == (1, 0)
        gate.open()
        outcomes.wait(2)
        assert small.references == 0


# -- versions --


def load_version(
    registry: NetworkRegistry,
    executable: FakeNetwork,
    version: str,
    on_replaced: Callable[[NetworkEntry], object] = never,
    owner: object = "repository",
) -> NetworkEntry:
    entry = registry.reserve("m", "FAKE", None, version=version, tenancy=Tenancy(owner))
    registry.publish(entry, executable, on_replaced)
    return entry


def served(registry: NetworkRegistry, count: int = 1) -> list[str]:
    """The versions that the next requests go to."""
    found = [registry.acquire("m") for _ in range(count)]
    for entry in found:
        registry.release(entry)
    return [entry.key.version for entry in found]


def test_a_network_without_versions_has_version_1(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    entry = load(registry, device.network())
    assert entry.key.version == "1"
    assert registry.acquire("m", "1") is registry.acquire("m") is entry


@pytest.mark.parametrize("version", ["0", "01", "-1", "a", "1.0", "1" * 19])
def test_a_version_is_a_number_from_1(registry: NetworkRegistry, version: str) -> None:
    with pytest.raises(InvalidArgument, match="not a version") as caught:
        registry.reserve("m", "FAKE", None, version=version)
    assert caught.value.field == "version"


def test_the_numerically_highest_ready_version_serves(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    for version in ("2", "10", "9"):
        load_version(registry, device.network(), version)
    assert served(registry) == ["10"]
    assert [each.key.version for each in registry.versions("m")] == ["2", "9", "10"]
    assert registry.acquire("m", "9").key.version == "9"


def test_a_version_that_loads_or_failed_leaves_the_others_serving(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    load_version(registry, device.network(), "1")
    second = registry.reserve("m", "FAKE", None, version="2", tenancy=Tenancy("repository"))
    assert served(registry) == ["1"]
    with pytest.raises(Unavailable, match="still being loaded"):
        registry.acquire("m", "2")
    registry.fail(second, "bad model", keep=True)
    assert served(registry) == ["1"]
    assert registry.failed() == [("m", "2")]
    with pytest.raises(FailedPrecondition, match="bad model"):
        registry.acquire("m", "2")


def test_a_version_that_was_never_there_is_not_found_and_the_others_are_named(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    load_version(registry, device.network(), "1")
    load_version(registry, device.network(), "3")
    for ask in (registry.acquire, registry.find):
        with pytest.raises(NotFound, match="'m' has no version '2'; it has 1, 3") as caught:
            ask("m", "2")
        assert caught.value.field == "version"


def test_a_version_is_replaced_without_touching_the_others(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    first = load_version(registry, device.network(), "1")
    second, drained = load_version(registry, device.network(), "2"), list[NetworkEntry]()
    in_use = registry.acquire("m", "2")
    newer = load_version(registry, device.network(), "2", drained.append)
    assert (registry.acquire("m"), registry.acquire("m", "1")) == (newer, first)
    assert drained == []
    registry.release(in_use)
    assert drained == [second]


def test_nobody_else_adds_a_version_to_a_network_and_a_lone_one_replaces_all(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    load_version(registry, device.network(), "1")
    load_version(registry, device.network(), "2")
    for owner in (None, "another"):
        with pytest.raises(AlreadyExists, match="set replace"):
            registry.reserve("m", "FAKE", None, version="3", tenancy=Tenancy(owner))
    drained: list[NetworkEntry] = []
    alone = registry.reserve("m", "FAKE", None, replace=True)
    assert served(registry) == ["2"]
    registry.publish(alone, device.network(), drained.append)
    assert registry.versions("m") == [alone]
    assert sorted(each.key.version for each in drained) == ["1", "2"]
    with pytest.raises(AlreadyExists, match="set replace"):
        registry.reserve("m", "FAKE", None, version="2", tenancy=Tenancy("repository"))


def test_versions_of_one_owner_load_at_once_and_nobody_else_beside_them(
    registry: NetworkRegistry,
) -> None:
    registry.reserve("m", "FAKE", None, version="1", tenancy=Tenancy("repository"))
    registry.reserve("m", "FAKE", None, version="2", tenancy=Tenancy("repository"))
    for version, owner in (("2", "repository"), ("3", "another"), ("3", None)):
        with pytest.raises(AlreadyExists, match="is being loaded"):
            registry.reserve(
                "m", "FAKE", None, version=version, tenancy=Tenancy(owner), replace=True
            )


def test_an_owner_leaves_an_eighth_of_the_networks_to_others(device: FakeDevice) -> None:
    registry = NetworkRegistry(16)
    for number in range(14):
        load(registry, device.network(), full_name(f"m{number}", "eve"))
    with pytest.raises(ResourceExhausted, match="an eighth of them stays for others"):
        registry.reserve(full_name("more", "eve"), "FAKE", None)
    load(registry, device.network(), full_name("m", "bob"))
    load(registry, device.network(), "shared")


def test_the_limit_counts_versions(device: FakeDevice) -> None:
    registry = NetworkRegistry(2)
    load_version(registry, device.network(), "1")
    load_version(registry, device.network(), "2")
    with pytest.raises(ResourceExhausted, match="2 networks"):
        registry.reserve("m", "FAKE", None, version="3", tenancy=Tenancy("repository"))
    registry.reserve("m", "FAKE", None, version="2", tenancy=Tenancy("repository"))
    registry.retire("m", lambda _: None, but=lambda each: each.key.version == "2")
    assert [each.key.version for each in registry.versions("m")] == ["2"]


def test_versions_share_requests_and_a_switch_back_is_one_call(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    load_version(registry, device.network(), "1")
    load_version(registry, device.network(), "2")
    registry.share("m", {"2": 10})
    assert Counter(served(registry, 100)) == {"1": 90, "2": 10}
    assert registry.shares("m") == {"2": 10}
    registry.share("m", {"1": 100})
    assert set(served(registry, 100)) == {"1"}
    registry.share("m", {})
    assert set(served(registry, 100)) == {"2"}


def test_shares_may_come_before_the_version_so_that_it_never_gets_more(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    load_version(registry, device.network(), "1")
    registry.share("m", {"2": 10}, ahead=True)
    assert set(served(registry, 20)) == {"1"}
    load_version(registry, device.network(), "2")
    assert Counter(served(registry, 100)) == {"1": 90, "2": 10}


class Holding(FakeNetwork):
    """Has sequences open."""

    sequences: frozenset[str] = frozenset()

    def has_sequence(self, identifier: str) -> bool:
        return identifier in self.sequences


def test_a_sequence_stays_with_the_version_that_has_it_open_whatever_the_shares_are(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    old, new = Holding(device.executor), Holding(device.executor)
    for version, network in (("1", old), ("2", new)):
        load_version(registry, network, version)
    old.sequences = frozenset({"s"})

    def version_of(sequence: str, version: str = "") -> str:
        entry = registry.acquire("m", version, sequence)
        registry.release(entry)
        return entry.key.version

    assert [version_of("s"), version_of("other"), version_of("")] == ["1", "2", "2"]
    assert version_of("s", "2") == "2"  # which the caller has named
    registry.share("m", {"1": 100})
    new.sequences = frozenset({"other"})
    assert [version_of("s"), version_of("other"), version_of("")] == ["1", "2", "1"]


def test_the_share_of_a_version_that_goes_falls_to_the_others(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    load_version(registry, device.network(), "1")
    load_version(registry, device.network(), "2")
    registry.share("m", {"1": 50, "2": 50})
    registry.retire("m", lambda _: None, but=lambda each: each.key.version == "1")
    assert set(served(registry, 10)) == {"1"}


def test_shares_name_loaded_versions_and_leave_nothing_that_nobody_gets(
    registry: NetworkRegistry, device: FakeDevice
) -> None:
    with pytest.raises(NotFound, match="unknown network"):
        registry.share("m", {"1": 100})
    load_version(registry, device.network(), "1")
    load_version(registry, device.network(), "2")
    with pytest.raises(NotFound, match="no version '3'"):
        registry.share("m", {"3": 10})
    with pytest.raises(FailedPrecondition, match="add up to 30") as caught:
        registry.share("m", {"1": 10, "2": 20})
    assert caught.value.field == "traffic"
    assert registry.shares("m") == {}


def test_shares_go_with_the_network(registry: NetworkRegistry, device: FakeDevice) -> None:
    load_version(registry, device.network(), "1")
    load_version(registry, device.network(), "2")
    registry.share("m", {"1": 100})
    registry.retire("m", lambda _: None)
    load_version(registry, device.network(), "1")
    load_version(registry, device.network(), "2")
    assert served(registry) == ["2"]


def test_no_acquire_fails_while_versions_come_go_and_share(device: FakeDevice) -> None:
    registry, over = NetworkRegistry(1000), threading.Event()
    load_version(registry, device.network(), "1")
    drained: list[NetworkEntry] = []

    def change() -> None:
        choose = random.Random(7)
        for _ in range(300):
            version = choose.choice(["2", "3"])
            load_version(registry, device.network(), version, drained.append)
            registry.share("m", choose.choice([{}, {"1": 10}, {"1": 50, version: 50}]))
            if choose.random() < 0.5:
                registry.retire("m", drained.append, but=lambda each: each.key.version == "1")
        over.set()

    def ask() -> None:
        while not over.is_set():
            entry = registry.acquire("m")
            assert entry.state in (NetworkState.READY, NetworkState.DRAINING)
            registry.release(entry)

    with frequent_switches():
        run_together(change, ask, ask)
    assert len(drained) == len({each.key for each in drained})
    assert all(each.references == 0 for each in drained)


# -- all at once --


def test_every_acquire_finds_a_network_while_it_is_replaced_again_and_again(
    device: FakeDevice,
) -> None:
    registry = NetworkRegistry(10)
    outcomes, drained, over = Outcomes(), list[NetworkEntry](), threading.Event()
    made, accepted = [load(registry, device.network())], list[Job]()
    after_close: list[NetworkEntry] = []

    def close(entry: NetworkEntry) -> None:
        assert isinstance(entry.executable, FakeNetwork)
        if entry.references:
            after_close.append(entry)
        entry.executable.close()
        drained.append(entry)

    def replace() -> None:
        for _ in range(60):
            try:
                entry = registry.reserve("m", "FAKE", None, replace=True)
            except ResourceExhausted:
                continue
            registry.publish(entry, device.network(), close)
            made.append(entry)
        over.set()

    def infer(seed: int) -> None:
        choose = random.Random(seed)
        while not over.is_set():
            entry = registry.acquire("m")
            if choose.random() < 0.2:
                registry.release(entry)
                continue
            job = outcomes.job(may_run_inline=choose.random() < 0.5)
            try:
                registry.submit(entry, job)
            except QueueFull:
                continue
            accepted.append(job)
            if choose.random() < 0.2:
                job.token.cancel(Cancelled("enough"))

    with frequent_switches():
        run_together(replace, *[partial(infer, seed) for seed in range(3)])
    outcomes.wait(len(accepted))
    # No request met a closed network, and every replaced one was closed exactly once.
    assert set(outcomes.count()) <= {Outcome.COMPLETED, Outcome.CANCELLED}
    assert after_close == []
    assert sorted(e.key.generation for e in drained) == [
        e.key.generation for e in made if e is not registry.find("m")
    ]
    assert all(entry.references == 0 for entry in made)


def test_unloading_while_others_acquire_and_load_drains_every_load_once(
    device: FakeDevice,
) -> None:
    registry = NetworkRegistry(2)
    lock, loaded, drained = threading.Lock(), list[NetworkEntry](), list[NetworkEntry]()
    closed = threading.Semaphore(0)

    def close(entry: NetworkEntry) -> None:
        assert entry.references == 0
        with lock:
            drained.append(entry)
        closed.release()

    def churn(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(200):
            name = choose.choice("ab")
            try:
                step = choose.randrange(4)
                if step == 0:
                    entry = registry.reserve(name, "FAKE", None, replace=choose.random() < 0.5)
                    if choose.random() < 0.2:
                        registry.fail(entry, "bad", keep=False)
                        continue
                    with lock:
                        loaded.append(entry)
                    registry.publish(entry, device.network(), close)
                elif step == 1:
                    registry.retire(name, close)
                else:
                    registry.release(registry.acquire(name))
            except HeadraceError:
                continue

    with frequent_switches():
        run_together(*[partial(churn, seed) for seed in range(4)])
    for name in "ab":
        try:
            registry.retire(name, close)
        except NotFound:
            continue
    for _ in loaded:
        assert closed.acquire(timeout=PATIENCE_SECONDS)
    assert registry.entries() == []
    assert sorted(e.key.generation for e in drained) == sorted(e.key.generation for e in loaded)


# -- owners --


def test_an_owner_has_no_more_networks_than_one_owner_may(device: FakeDevice) -> None:
    registry = NetworkRegistry(9, OwnerLimits(networks=2))
    for name in ("m@a", "n@a", "m@b", "x", "y", "z"):
        load(registry, device.network(), name)
    with pytest.raises(ResourceExhausted, match="you have 2 networks"):
        registry.reserve("o@a", "FAKE", None)
    registry.reserve("m@a", "FAKE", None, replace=True)
    registry.retire("n@a", lambda _: None)
    registry.reserve("n@a", "FAKE", None)


def test_an_owner_s_models_are_measured_and_bounded_together(device: FakeDevice) -> None:
    registry = NetworkRegistry(9, OwnerLimits(model_bytes=100))
    first, other, shared = (load(registry, device.network(), n) for n in ("m@a", "m@b", "m"))
    registry.count_bytes(first, lambda: 60)
    registry.count_bytes(other, lambda: 60)
    registry.count_bytes(shared, lambda: 1 << 40)
    second = registry.reserve("n@a", "FAKE", None)
    with pytest.raises(ResourceExhausted, match="take 110 bytes, and one client may have 100"):
        registry.count_bytes(second, lambda: 50)
    registry.fail(second, "it is too large", keep=False)
    registry.count_bytes(registry.reserve("n@a", "FAKE", None), lambda: 40)


def test_a_model_is_not_measured_where_no_limit_asks_for_it(device: FakeDevice) -> None:
    def measure() -> int:
        raise AssertionError("measured")

    registry = NetworkRegistry(9)
    registry.count_bytes(load(registry, device.network(), "m@a"), measure)
    limited = NetworkRegistry(9, OwnerLimits(model_bytes=100))
    limited.count_bytes(load(limited, device.network(), "m"), measure)


@pytest.mark.parametrize("name", ["m", "m@a"])
def test_errors_name_a_network_as_its_owner_does(device: FakeDevice, name: str) -> None:
    registry = NetworkRegistry(4)
    load(registry, device.network(), name)
    with pytest.raises(AlreadyExists, match="network 'm' exists"):
        registry.reserve(name, "FAKE", None)
    with pytest.raises(NotFound, match="network 'm' has no version '2'; it has 1"):
        registry.acquire(name, "2")
    registry.reserve(name.replace("m", "n"), "FAKE", None)
    with pytest.raises(Unavailable, match="network 'n' is still being loaded"):
        registry.acquire(name.replace("m", "n"))
