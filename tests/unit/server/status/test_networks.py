"""The networks in the status document: order, bounds, and numbers."""

from __future__ import annotations

from typing import Any

from headrace.runtime.execution.job import Outcome
from headrace.runtime.loading.entry import Tenancy
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.loading.shadows.shadow import NO_SHADOW, OUTCOMES, Shadow
from headrace.runtime.metrics.counters import Counters
from headrace.runtime.metrics.families import SHADOW_REQUESTS
from headrace.runtime.metrics.series import SeriesSnapshot
from headrace.server.access.identity import CALLER, Identity, Role
from headrace.server.access.networks import Networks, PrivateNetworks
from headrace.server.status.networks import MAX_NETWORKS, network_rows


def listed(
    registry: NetworkRegistry,
    match: str = "",
    series: tuple[SeriesSnapshot, ...] = (),
    shadow: Shadow = NO_SHADOW,
) -> dict[str, Any]:
    return network_rows(Networks(registry), registry, lambda _: shadow, series, match)


def test_networks_that_are_not_ready_come_first() -> None:
    registry = NetworkRegistry(9)
    registry.list_failed("z", "CPU", None, "its file is broken")
    registry.reserve("a", "CPU", None)
    rows = listed(registry)["networks"]
    assert [(each["name"], each["state"]) for each in rows] == [("z", "failed"), ("a", "loading")]
    assert rows[0]["reason"] == "its file is broken"
    assert rows[1]["requests"] == dict.fromkeys(Outcome, 0)
    assert rows[1]["request_seconds"]["count"] == 0


def test_thousands_of_networks_make_a_document_of_two_hundred() -> None:
    registry = NetworkRegistry(5000)
    for number in range(3000):
        registry.reserve(f"m{number:04}", "CPU", None)
    document = listed(registry)
    assert len(document["networks"]) == MAX_NETWORKS
    assert document["networks_total"] == 3000
    assert document["networks_left_out"] == 3000 - MAX_NETWORKS


def test_a_part_of_a_name_finds_the_others() -> None:
    registry = NetworkRegistry(5000)
    for number in range(3000):
        registry.reserve(f"m{number:04}", "CPU", None)
    document = listed(registry, "299")
    assert [each["name"] for each in document["networks"]] == [
        "m0299", "m1299", "m2299", *(f"m299{last}" for last in range(10))
    ]  # fmt: skip
    assert document["networks_left_out"] == 0
    assert listed(registry, "none")["networks"] == []


def test_counters_of_networks_that_are_gone_or_unseen_are_left_out() -> None:
    registry, counters = NetworkRegistry(9), Counters()
    counters.network("elsewhere", "CPU.0").accept()
    registry.reserve("m", "CPU", None)
    document = listed(registry, series=counters.snapshot())
    assert "elsewhere" not in str(document)


def test_the_versions_of_a_network_but_its_shadow_tell_what_the_shadow_answers() -> None:
    registry, shadow = NetworkRegistry(9), Shadow("2", percent=7)
    for version in ("1", "2"):
        registry.reserve("m", "CPU", None, version=version, tenancy=Tenancy(registry))
    series = tuple(
        SeriesSnapshot(SHADOW_REQUESTS, (name, outcome), number)
        for name, outcome, number in (("m", "equal", 3), ("m", "differs", 1), ("n", "failed", 9))
    )
    first, second = listed(registry, series=series, shadow=shadow)["networks"]
    counts = {**dict.fromkeys(OUTCOMES, 0), "equal": 3, "differs": 1}
    assert first["shadow"] == {"version": "2", "device": "", "percent": 7, "requests": counts}
    assert second["shadow"] is None
    assert listed(registry, series=series)["networks"][0]["shadow"] is None


def test_only_who_may_change_a_network_learns_when_it_was_used_last() -> None:
    registry = NetworkRegistry(9)
    registry.reserve("m", "CPU", None).last_used = 1.0
    (row,) = listed(registry)["networks"]
    assert row["idle_seconds"] > 0
    token = CALLER.set(Identity("token:reader", frozenset({Role.READ})))
    try:
        (row,) = listed(registry)["networks"]
    finally:
        CALLER.reset(token)
    assert row["idle_seconds"] is None


def test_a_tenant_does_not_learn_when_others_use_a_shared_network() -> None:
    registry = NetworkRegistry(9)
    networks = PrivateNetworks(registry, operators=["token:operator"])
    entry = registry.reserve("m", "CPU", None)
    for name, manages in (("tenant", False), ("operator", True)):
        token = CALLER.set(Identity(f"token:{name}", frozenset({Role.MANAGE})))
        try:
            assert networks.manages(entry.key.name) is manages
        finally:
            CALLER.reset(token)
