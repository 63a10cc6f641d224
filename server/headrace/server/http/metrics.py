"""Counters as Prometheus metrics: names, labels and help declared once, read at every scrape."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import accumulate
from typing import Literal

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace.runtime.metrics.cache_counters import CacheEvent, CacheSnapshot
from headrace.runtime.metrics.counters import Counters
from headrace.runtime.metrics.histogram import HistogramSnapshot
from headrace.runtime.metrics.series import Family, SeriesSnapshot
from headrace.runtime.metrics.snapshots import DeviceSnapshot, Gauge, NetworkSnapshot

PREFIX = "headrace_"


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric; `name` is without the prefix and, of a counter, with ``_total``."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "info"]
    labels: tuple[str, ...]
    help: str


_DEVICE, _KIND, _NETWORK = ("device",), ("device", "kind"), ("network", "device")

DECLARED = (
    Declared(
        "device_accepted_total",
        "counter",
        _KIND,
        "Requests, and parts of split requests, that the device's queue accepted.",
    ),
    Declared(
        "device_requests_total",
        "counter",
        (*_KIND, "outcome"),
        "Accepted requests and parts by outcome: completed, failed, cancelled, expired.",
    ),
    Declared(
        "device_refused_total", "counter", (*_DEVICE, "reason"), "Requests that were refused."
    ),
    Declared("device_queue_depth", "gauge", _DEVICE, "Requests waiting in the device's queue."),
    Declared("device_queue_capacity", "gauge", _DEVICE, "Requests that the queue takes."),
    Declared(
        "device_queue_wait_seconds",
        "histogram",
        _KIND,
        "Time from acceptance to the start on a stream, or to the end in the queue.",
    ),
    Declared(
        "device_execution_seconds", "histogram", _KIND, "Time on a stream, all stages together."
    ),
    Declared("device_streams", "gauge", _DEVICE, "Streams that the device runs."),
    Declared("device_streams_busy", "gauge", _DEVICE, "Streams that are running a request."),
    Declared(
        "device_memory_bytes",
        "gauge",
        _DEVICE,
        "Memory of the loaded networks: what the driver tells, else their weights.",
    ),
    Declared(
        "device_up",
        "gauge",
        _DEVICE,
        "1 if the device works, 0 if it is down. A device that is not installed has no series.",
    ),
    Declared("network_accepted_total", "counter", _NETWORK, "Requests that the network accepted."),
    Declared(
        "network_requests_total",
        "counter",
        (*_NETWORK, "outcome"),
        "Accepted requests by outcome: completed, failed, cancelled, expired.",
    ),
    Declared("network_request_seconds", "histogram", _NETWORK, "Time from acceptance to the end."),
    Declared("network_load_seconds", "histogram", _NETWORK, "Time that loads of the network took."),
    Declared("network_batch_size", "histogram", _NETWORK, "Rows that ran together in a run."),
    Declared("grpc_requests_total", "counter", ("method", "code"), "Finished calls."),
    Declared(
        "http_requests_total",
        "counter",
        ("path", "code"),
        "Finished HTTP requests by path with placeholders, and status. 499: the client left.",
    ),
    Declared("cache_hits_total", "counter", _DEVICE, "Loads whose network came from the cache."),
    Declared(
        "cache_misses_total",
        "counter",
        _DEVICE,
        "Loads that compiled because the cache had no usable entry.",
    ),
    Declared(
        "cache_refused_total",
        "counter",
        _DEVICE,
        "Misses with an entry that was damaged, not signed by this server, or unusable.",
    ),
    Declared(
        "cache_skipped_total",
        "counter",
        _DEVICE,
        "Loads without the cache, because the device exports nothing that loads faster.",
    ),
    Declared(
        "cache_write_failures_total",
        "counter",
        _DEVICE,
        "Compiled networks that could not be kept.",
    ),
    Declared(
        "cache_evicted_total", "counter", (), "Cache entries that were removed for newer ones."
    ),
    Declared(
        "cache_bytes", "gauge", (), "Disk space of all cache entries when this server last looked."
    ),
    Declared("cache_capacity_bytes", "gauge", (), "Disk space that cache entries may take."),
    Declared("build_info", "info", ("version", "python"), "Versions of headrace and Python."),
)

_GAUGES: dict[Gauge, str] = {
    "queue_depth": "device_queue_depth",
    "queue_capacity": "device_queue_capacity",
    "streams": "device_streams",
    "streams_busy": "device_streams_busy",
    "memory_bytes": "device_memory_bytes",
}

_CACHE_EVENTS: dict[CacheEvent, str] = {
    "hit": "cache_hits_total",
    "miss": "cache_misses_total",
    "refused": "cache_refused_total",
    "skipped": "cache_skipped_total",
    "write_failed": "cache_write_failures_total",
}

DeviceStates = Callable[[], Mapping[str, bool]]


def make_registry(counters: Counters, device_states: DeviceStates) -> CollectorRegistry:
    """A registry of its own with all metrics of one server and those of its process."""
    registry = CollectorRegistry()
    registry.register(HeadraceCollector(counters, device_states))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class HeadraceCollector(Collector):
    """Reads the counters at every scrape. Thread-safe.

    Args:
        counters: what is counted.
        device_states: by the name in the other metrics, whether it is up; devices that failed to
            start included.
    """

    def __init__(self, counters: Counters, device_states: DeviceStates) -> None:
        self._counters = counters
        self._device_states = device_states

    def collect(self) -> Iterator[Metric]:
        families = _Families()
        snapshot = self._counters.snapshot()
        for device in snapshot.devices:
            families.add_device(device)
        for name, up in self._device_states().items():
            families.add("device_up", (name,), float(up))
        for network in snapshot.networks:
            families.add_network(network)
        for (method, code), count in snapshot.grpc.items():
            families.add("grpc_requests_total", (method, code), count)
        for (path, code), count in snapshot.http.items():
            families.add("http_requests_total", (path, code), count)
        if snapshot.cache is not None:
            families.add_cache(snapshot.cache)
        families.add_build()
        return iter(families.all())


class _Families:
    """One empty metric family for each declared metric, to be filled."""

    def __init__(self) -> None:
        self._counters: dict[str, CounterMetricFamily] = {}
        self._gauges: dict[str, GaugeMetricFamily] = {}
        self._histograms: dict[str, HistogramMetricFamily] = {}
        self._infos: dict[str, InfoMetricFamily] = {}
        self._own: dict[Family, dict[tuple[str, ...], float | HistogramSnapshot]] = {}
        for each in DECLARED:
            self._declare(each)

    def _declare(self, each: Declared) -> None:
        name = PREFIX + each.name
        if each.kind == "counter":
            self._counters[each.name] = CounterMetricFamily(name, each.help, labels=each.labels)
        elif each.kind == "gauge":
            self._gauges[each.name] = GaugeMetricFamily(name, each.help, labels=each.labels)
        elif each.kind == "histogram":
            self._histograms[each.name] = HistogramMetricFamily(name, each.help, labels=each.labels)
        else:
            self._infos[each.name] = InfoMetricFamily(name.removesuffix("_info"), each.help)

    def all(self) -> Iterable[Metric]:
        for own, series in self._own.items():
            self._declare(_of_network(own))
            for labels, value in series.items():
                if isinstance(value, HistogramSnapshot):
                    self.add_histogram(own.name, labels, value)
                else:
                    self.add(own.name, labels, value)
        groups = (self._counters, self._gauges, self._histograms, self._infos)
        return [family for group in groups for family in group.values()]

    def add(self, name: str, labels: tuple[str, ...], value: float) -> None:
        family = self._counters.get(name) or self._gauges[name]
        family.add_metric(labels, value)

    def add_histogram(
        self, name: str, labels: tuple[str, ...], histogram: HistogramSnapshot
    ) -> None:
        bounds = (*(_shown(bound) for bound in histogram.bounds), "+Inf")
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        self._histograms[name].add_metric(labels, buckets, histogram.sum)

    def add_device(self, device: DeviceSnapshot) -> None:
        labels = (device.device,)
        for kind, executions in device.kinds.items():
            self.add("device_accepted_total", (*labels, kind), executions.requests.accepted)
            for outcome, count in executions.requests.outcomes.items():
                self.add("device_requests_total", (*labels, kind, outcome), count)
            waits, runs = executions.queue_wait_seconds, executions.execution_seconds
            self.add_histogram("device_queue_wait_seconds", (*labels, kind), waits)
            self.add_histogram("device_execution_seconds", (*labels, kind), runs)
        for reason, count in device.refused.items():
            self.add("device_refused_total", (*labels, reason), count)
        for gauge, value in device.gauges.items():
            self.add(_GAUGES[gauge], labels, value)

    def add_network(self, network: NetworkSnapshot) -> None:
        labels = (network.network, network.device)
        self.add("network_accepted_total", labels, network.requests.accepted)
        for outcome, count in network.requests.outcomes.items():
            self.add("network_requests_total", (*labels, outcome), count)
        self.add_histogram("network_request_seconds", labels, network.request_seconds)
        self.add_histogram("network_load_seconds", labels, network.load_seconds)
        self.add_histogram("network_batch_size", labels, network.batch_size)
        for each in network.series:
            self.add_own(network.network, each)

    def add_own(self, network: str, series: SeriesSnapshot) -> None:
        """A network that drains and its replacement on other devices may have a series in common:
        it is exposed once, with both counts."""
        found = self._own.setdefault(series.family, {})
        labels = (network, *series.labels)
        found[labels] = _sum(found[labels], series.value) if labels in found else series.value

    def add_cache(self, cache: CacheSnapshot) -> None:
        for (device, event), count in cache.events.items():
            self.add(_CACHE_EVENTS[event], (device,), count)
        self.add("cache_evicted_total", (), cache.evicted)
        self.add("cache_bytes", (), cache.held_bytes)
        self.add("cache_capacity_bytes", (), cache.capacity_bytes)

    def add_build(self) -> None:
        facts = {"version": metadata.version("headrace"), "python": platform.python_version()}
        self._infos["build_info"].add_metric((), facts)


def _sum(
    one: float | HistogramSnapshot, other: float | HistogramSnapshot
) -> float | HistogramSnapshot:
    if isinstance(one, HistogramSnapshot) and isinstance(other, HistogramSnapshot):
        return one + other
    assert not isinstance(one, HistogramSnapshot)
    assert not isinstance(other, HistogramSnapshot)
    return one + other


def _shown(bound: float) -> str:
    """A bucket's bound as Prometheus writes it: 1.0, not 1."""
    return repr(float(bound))


def _of_network(own: Family) -> Declared:
    return Declared(own.name, own.kind, ("network", *own.labels), own.help)


def metrics_table(own: Iterable[Family]) -> str:
    """The metrics as a Markdown table, for the documentation.

    Args:
        own: what devices count for their networks.
    """
    rows = ["| metric | kind | labels | what |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{PREFIX}{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.help} |"
        for each in (*DECLARED, *map(_of_network, own))
    ]
    return "\n".join(rows) + "\n"
