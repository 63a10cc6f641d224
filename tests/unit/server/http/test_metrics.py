"""Metrics: every counter under its declared name, and an exposition that promtool accepts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from headrace.runtime.execution.job import Outcome
from headrace.runtime.execution.trace import Exemplar
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.metrics import families
from headrace.runtime.metrics.cache_counters import CacheCounters
from headrace.runtime.metrics.counters import Counters
from headrace.runtime.metrics.families import FAMILIES
from headrace.runtime.metrics.series import NOTES, Family, SeriesSnapshot
from headrace.server.access.identity import CALLER, Identity, Role
from headrace.server.access.networks import Networks, PrivateNetworks
from headrace.server.http.metrics import PREFIX, make_registry, memory_series
from tests.support.tables import metrics_table

SHARED = Networks(NetworkRegistry(1))


@pytest.fixture
def counters() -> Counters:
    """Counters with something in each of them."""
    cache = CacheCounters(10_000)
    cache.count("CPU", "hit")
    cache.count("CPU", "miss", "refused")
    cache.count("CPU", "write_failed")
    cache.count("TEMPLATE", "skipped")
    cache.evict()
    cache.hold(8192)
    counters = Counters(cache)
    device = counters.device("CPU")
    device.accept()
    device.observe(Outcome.COMPLETED, 0.0002, 0.003)
    device.accept_part()
    device.observe(Outcome.FAILED, 0.0002, 0.003, part=True)
    device.refuse("queue_full")
    device.register_gauge(families.DEVICE_QUEUE_DEPTH, lambda: 3)
    device.register_gauge(families.DEVICE_QUEUE_CAPACITY, lambda: 1024)
    device.register_gauge(families.DEVICE_STREAMS, lambda: 2)
    device.register_gauge(families.DEVICE_STREAMS_BUSY, lambda: 1)
    device.register_gauge(families.DEVICE_MEMORY_BYTES, lambda: 4096)
    network = counters.network("m", "CPU")
    network.accept()
    network.observe(Outcome.COMPLETED, 0.004, 8)
    network.observe_load(1.5)
    counters.observe_stages({"read": 0.02})
    counters.grpc("Infer")["OK"] = 1
    return counters


@pytest.fixture
def registry(counters: Counters) -> CollectorRegistry:
    return make_registry(counters, lambda: {"CPU": True, "OPENCL": False}, SHARED)


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(PREFIX + name, labels)


def test_device_requests_are_labelled_by_kind_and_outcome(registry: CollectorRegistry) -> None:
    def value(kind: str, outcome: str) -> float | None:
        labels = {"device": "CPU", "kind": kind, "outcome": outcome}
        return sample(registry, "device_requests_total", **labels)

    assert value("request", "completed") == 1
    assert value("part", "failed") == 1
    assert value("request", "expired") == 0
    assert sample(registry, "device_accepted_total", device="CPU", kind="part") == 1
    assert sample(registry, "device_refused_total", device="CPU", reason="queue_full") == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device_queue_depth", 3),
        ("device_queue_capacity", 1024),
        ("device_streams", 2),
        ("device_streams_busy", 1),
        ("device_memory_bytes", 4096),
        ("device_up", 1),
    ],
)
def test_gauges_of_a_device(registry: CollectorRegistry, name: str, value: float) -> None:
    assert sample(registry, name, device="CPU") == value


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("cache_hits_total", {"device": "CPU"}, 1),
        ("cache_misses_total", {"device": "CPU"}, 1),
        ("cache_refused_total", {"device": "CPU"}, 1),
        ("cache_write_failures_total", {"device": "CPU"}, 1),
        ("cache_skipped_total", {"device": "TEMPLATE"}, 1),
        ("cache_evicted_total", {}, 1),
        ("cache_bytes", {}, 8192),
        ("cache_capacity_bytes", {}, 10_000),
    ],
)
def test_what_befell_loads_in_the_cache(
    registry: CollectorRegistry, name: str, labels: dict[str, str], value: float
) -> None:
    assert sample(registry, name, **labels) == value


def test_a_server_without_a_cache_has_no_series_of_one() -> None:
    registry = make_registry(Counters(), dict, SHARED)
    assert sample(registry, "cache_bytes") is None
    assert sample(registry, "cache_evicted_total") is None


def test_a_device_that_is_down_shows_so(registry: CollectorRegistry) -> None:
    assert sample(registry, "device_up", device="OPENCL") == 0


def test_histogram_buckets_are_cumulated(registry: CollectorRegistry) -> None:
    def bucket(bound: str) -> float | None:
        labels = {"network": "m", "version": "1", "device": "CPU", "le": bound}
        return sample(registry, "network_request_seconds_bucket", **labels)

    assert [bucket(bound) for bound in ("0.0025", "0.005", "60.0", "+Inf")] == [0, 1, 1, 1]
    labels = {"network": "m", "version": "1", "device": "CPU"}
    assert sample(registry, "network_request_seconds_count", **labels) == 1
    assert sample(registry, "network_request_seconds_sum", **labels) == pytest.approx(0.004)
    assert sample(registry, "network_batch_size_sum", **labels) == 8
    assert sample(registry, "network_load_seconds_sum", **labels) == 1.5


def test_rpcs_and_the_build_are_there(registry: CollectorRegistry) -> None:
    assert sample(registry, "grpc_requests_total", method="Infer", code="OK") == 1
    assert b"headrace_build_info{" in generate_latest(registry)


def test_the_series_of_a_removed_network_vanish(
    registry: CollectorRegistry, counters: Counters
) -> None:
    counters.remove_network("m", "CPU")
    assert b'network="m"' not in generate_latest(registry)


def test_the_process_is_measured_too(registry: CollectorRegistry) -> None:
    assert (registry.get_sample_value("process_resident_memory_bytes") or 0) > 0


def test_a_network_that_failed_to_load_shows_so_until_it_serves() -> None:
    networks = NetworkRegistry(4)
    registry = make_registry(Counters(), dict, Networks(networks))
    networks.list_failed("broken", "CPU", None, "it has a cycle", version="2")
    networks.reserve("loading", "CPU", None)
    assert sample(registry, "network_up", network="broken", version="2") == 0
    assert sample(registry, "network_up", network="loading", version="1") is None
    executable: Any = type("Loaded", (), {"runs": frozenset()})()
    again = networks.reserve("broken", "CPU", None, version="2", replace=True)
    networks.publish(again, executable, lambda _: None)
    assert sample(registry, "network_up", network="broken", version="2") == 1
    networks.retire("broken", lambda _: None)
    assert sample(registry, "network_up", network="broken", version="2") is None


def test_a_tenant_sees_the_series_of_its_own_networks_alone_wherever_they_come_from() -> None:
    def others() -> tuple[SeriesSnapshot, ...]:
        names = "secret@token:a", "own@token:b"
        return tuple(SeriesSnapshot(families.SHADOW_REQUESTS, (name, "equal"), 2) for name in names)

    tenants = PrivateNetworks(NetworkRegistry(1), ())
    registry = make_registry(Counters(), dict, tenants, others)
    before = CALLER.set(Identity("token:b", frozenset({Role.READ, Role.INFER})))
    try:
        text = generate_latest(registry).decode()
    finally:
        CALLER.reset(before)
    assert 'shadow_requests_total{network="own",outcome="equal"} 2.0' in text
    assert "secret" not in text


def test_memory_is_shown_with_its_limit() -> None:
    registry = make_registry(Counters(), dict, SHARED, memory_series)
    used, limit = (sample(registry, f"memory_{each}_bytes") for each in ("used", "limit"))
    assert used is not None
    assert limit is not None
    assert 0 < used < limit


def test_two_servers_in_one_process_have_registries_of_their_own(counters: Counters) -> None:
    other = make_registry(Counters(), dict, SHARED)
    assert sample(other, "grpc_requests_total", method="Infer", code="OK") is None
    assert sample(
        make_registry(counters, dict, SHARED), "grpc_requests_total", method="Infer", code="OK"
    )


def test_exactly_the_declared_metrics_are_exposed(registry: CollectorRegistry) -> None:
    exposed = {
        line.split()[2].removeprefix(PREFIX)
        for line in generate_latest(registry).decode().splitlines()
        if line.startswith(f"# TYPE {PREFIX}")
    }
    assert exposed == {each.name for each in FAMILIES}


def test_a_scraper_sees_the_names_types_labels_and_helps_that_it_knows(
    registry: CollectorRegistry,
) -> None:
    """A change here changes what dashboards and alerts of others rely on."""
    exposed = [
        line
        for line in generate_latest(registry).decode().splitlines()
        if PREFIX in line and not line.startswith(f"{PREFIX}build_info{{")
    ]
    known = Path(__file__).with_name("exposition.txt").read_text(encoding="utf-8")
    assert exposed == known.splitlines()


def test_a_plugin_cannot_take_the_name_of_another_metric(counters: Counters) -> None:
    series = counters.network("m", "CPU").series
    series.get(Family("grpc_requests_total", "counter", (), "Not calls.")).add(7)
    series.get(Family("tokens_total", "counter", (), "Tokens.")).add(1)
    series.get(Family("tokens_total", "counter", ("kind",), "Others' tokens."), "a").add(2)
    registry = make_registry(counters, dict, SHARED)
    assert sample(registry, "grpc_requests_total", network="m") is None
    assert sample(registry, "grpc_requests_total", method="Infer", code="OK") == 1
    assert sample(registry, "tokens_total", network="m", version="1") == 1
    names = [family.name for family in registry.collect()]
    assert len(names) == len(set(names))


def test_the_labels_are_the_declared_ones(registry: CollectorRegistry) -> None:
    by_name = {each.name: set(each.labels) for each in FAMILIES}
    for family in registry.collect():
        for each in family.samples:
            name = each.name.removeprefix(PREFIX)
            for suffix in ("", "_bucket", "_sum", "_count"):
                labels = by_name.get(name.removesuffix(suffix)) if suffix else by_name.get(name)
                if labels is not None:
                    assert set(each.labels) - {"le"} == labels


def test_each_version_of_a_network_has_series_of_its_own() -> None:
    counters = Counters()
    for version, count in (("1", 3), ("2", 1)):
        network = counters.network("m", "CPU", version)
        for _ in range(count):
            network.accept()
    registry = make_registry(counters, dict, SHARED)
    assert [
        sample(registry, "network_accepted_total", network="m", version=version, device="CPU")
        for version in ("1", "2")
    ] == [3, 1]
    counters.remove_network("m", "CPU", "1")
    labels = {"network": "m", "device": "CPU"}
    assert sample(registry, "network_accepted_total", version="1", **labels) is None
    assert sample(registry, "network_accepted_total", version="2", **labels) == 1


def test_every_metric_is_in_the_documentations_table() -> None:
    table = metrics_table([NOTES])
    for each in FAMILIES:
        assert f"| `{PREFIX}{each.name}` | {each.kind} | {', '.join(each.labels)} |" in table
    assert f"| `{PREFIX}{NOTES.name}` | counter | network, version | {NOTES.help} |" in table


def test_promtool_finds_nothing_to_complain_about(registry: CollectorRegistry) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        if os.environ.get("CI") == "true":
            pytest.fail("promtool is missing: apt-get install prometheus")
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    result = subprocess.run(
        [promtool, "check", "metrics"], input=generate_latest(registry), capture_output=True
    )
    assert result.stdout + result.stderr == b""
    assert result.returncode == 0


def test_the_openmetrics_format_shows_the_traced_requests_and_the_text_format_does_not() -> None:
    counters = Counters()
    exemplar = Exemplar("a" * 32, "b" * 16, 1700000000.5)
    network = counters.network("m", "CPU")
    network.observe(Outcome.COMPLETED, 0.004, 8, exemplar)
    network.observe(Outcome.COMPLETED, 70.0, 8, exemplar)
    network.observe(Outcome.COMPLETED, 0.2, 8)
    counters.device("CPU").observe(Outcome.COMPLETED, 0.0002, 0.003, False, exemplar)
    registry = make_registry(counters, lambda: {"CPU": True}, SHARED)
    text = openmetrics(registry, version="1.0.0").decode()  # type: ignore[no-untyped-call]
    shown = {
        (sample.name.removeprefix(PREFIX), sample.labels["le"]): sample.exemplar
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert shown.keys() == {
        ("network_request_seconds_bucket", "0.005"),
        ("network_request_seconds_bucket", "+Inf"),
        ("device_queue_wait_seconds_bucket", "0.00025"),
        ("device_execution_seconds_bucket", "0.005"),
    }
    found = shown["network_request_seconds_bucket", "+Inf"]
    assert found.labels == {"trace_id": "a" * 32, "span_id": "b" * 16}
    assert (found.value, float(found.timestamp)) == (70.0, 1700000000.5)
    assert b"trace_id" not in generate_latest(registry)
