"""A network's desired state, and what a replica does to get there."""

from __future__ import annotations

from headrace.cluster import networks
from headrace.cluster.desired import Value
from headrace.runtime.loading.shadows.shadow import NO_SHADOW, Shadow
from headrace.server import reconcile
from headrace.server.reconcile import (
    ChangeConfig,
    GiveShadow,
    LoadVersion,
    ShareRequests,
    Step,
    UnloadVersion,
)


def steps(before: Value | None, after: Value | None) -> list[Step]:
    return reconcile.steps(networks.have(before), networks.want(after))


def one(stamp: str = "s1", version: str = "1") -> Value:
    return networks.loaded(None, version, "{}", "digest", stamp, alone=True)


def test_a_network_that_is_missing_is_loaded() -> None:
    assert steps(None, one()) == [LoadVersion("1")]


def test_nothing_is_done_if_nothing_differs() -> None:
    assert steps(one(), one()) == []


def test_the_same_model_loaded_again_is_loaded_again() -> None:
    (step,) = steps(one("s1"), one("s2"))
    assert isinstance(step, LoadVersion)


def test_a_network_that_is_gone_is_unloaded() -> None:
    assert steps(one(), None) == [UnloadVersion()]
    assert networks.unloaded(one(), None) is None
    assert networks.unloaded(one(), ["1"]) is None


def test_a_load_alone_replaces_all_versions_by_itself() -> None:
    two = networks.loaded(one(), "2", "{}", "digest", "s2", alone=False)
    want = networks.loaded(two, "1", "{}", "digest", "s3", alone=True)
    assert set(want["versions"]) == {"1"}
    assert [type(step) for step in steps(two, want)] == [LoadVersion]


def test_versions_come_and_go_one_by_one() -> None:
    first = networks.loaded(None, "1", "{}", "d1", "s1", alone=False)
    both = networks.loaded(first, "2", "{}", "d2", "s2", alone=False)
    (step,) = steps(first, both)
    assert isinstance(step, LoadVersion)
    assert step.version == "2"
    left = networks.unloaded(both, ["1"])
    assert left is not None
    assert steps(both, left) == [UnloadVersion("1")]
    assert networks.models(both) == {"d1", "d2"}
    assert networks.models(left) == {"d2"}


def test_a_version_beside_a_network_alone_takes_its_place() -> None:
    value = networks.loaded(one(), "2", "{}", "d2", "s2", alone=False)
    assert set(value["versions"]) == {"2"}


def test_changed_keys_need_no_load_and_add_up() -> None:
    value = networks.configured(one(), "1", {"A": "1"})
    value = networks.configured(value, "1", {"B": "2"})
    assert steps(one(), value) == [ChangeConfig("1", {"A": "1", "B": "2"})]
    assert steps(value, value) == []


def test_shares_are_set_after_the_loads() -> None:
    both = networks.loaded(
        networks.loaded(None, "1", "{}", "d", "s1", alone=False), "2", "{}", "d", "s2", alone=False
    )
    want = networks.shared(both, {"1": 90, "2": 10})
    assert steps(both, want) == [ShareRequests({"1": 90, "2": 10})]
    assert [type(step) for step in steps(None, want)] == [LoadVersion, LoadVersion, ShareRequests]
    assert steps(want, both) == [ShareRequests({})]


def test_a_shadow_is_given_after_the_loads_and_stays_with_a_replacement() -> None:
    shadow = Shadow("1", percent=5)
    want = networks.shadowed(one(), shadow)
    assert steps(one(), want) == [GiveShadow(shadow)]
    assert [type(step) for step in steps(None, want)] == [LoadVersion, GiveShadow]
    replaced = networks.loaded(want, "1", "{}", "digest", "s2", alone=True)
    assert steps(want, replaced) == [LoadVersion("1")]
    assert steps(want, networks.shadowed(want, NO_SHADOW)) == [GiveShadow(NO_SHADOW)]
