"""Counters as Prometheus metrics, read at every scrape."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from itertools import accumulate, chain
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from headrace.runtime.loading.entry import SERVING, NetworkState
from headrace.runtime.metrics.counters import Counters
from headrace.runtime.metrics.families import (
    BUILD_INFO,
    DEVICE_UP,
    FAMILIES,
    MEMORY_LIMIT_BYTES,
    MEMORY_USED_BYTES,
    NETWORK_IDLE_SECONDS,
    NETWORK_LOADED,
    NETWORK_MEMORY_BYTES,
    NETWORK_UP,
)
from headrace.runtime.metrics.histogram import Example, HistogramSnapshot
from headrace.runtime.metrics.series import Family, SeriesSnapshot, Value
from headrace.runtime.system.memory_limit import memory_limit
from headrace.server.access.networks import Networks

PREFIX: Final = "headrace_"

_Bucket = tuple[str, float] | tuple[str, float, Exemplar]

DeviceStates = Callable[[], Mapping[str, bool]]
Snapshot = Callable[[], Iterable[SeriesSnapshot]]


def make_registry(
    counters: Counters, device_states: DeviceStates, networks: Networks, *others: Snapshot
) -> CollectorRegistry:
    """A new registry with all metrics of one server and of its process."""
    registry = CollectorRegistry()
    registry.register(HeadraceCollector(counters, device_states, networks, *others))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def memory_series() -> Iterator[SeriesSnapshot]:
    """What bounds the server's memory, and how much of it is in use."""
    memory = memory_limit()
    if memory is not None:
        yield SeriesSnapshot(MEMORY_USED_BYTES, (), memory.used)
        yield SeriesSnapshot(MEMORY_LIMIT_BYTES, (), memory.limit)


class HeadraceCollector(Collector):
    """Reads the counters at every scrape. Thread-safe.

    Args:
        counters: the counters to read.
        device_states: whether each device is up, by its name in the other metrics. Devices that
            failed to start are included.
        networks: says which networks the caller of the scrape sees, and under which names.
        others: further series, from any thread. Networks in them have their full names.
    """

    def __init__(
        self,
        counters: Counters,
        device_states: DeviceStates,
        networks: Networks,
        *others: Snapshot,
    ) -> None:
        self._counters = counters
        self._device_states = device_states
        self._networks = networks
        self._others = others

    def collect(self) -> Iterator[Metric]:
        exposed = {family.name: _Exposed(family) for family in FAMILIES}
        for series in self._series():
            family = series.family
            found = exposed.setdefault(family.name, _Exposed(family))
            if found.family == family:  # skips a plugin's family that uses a taken name
                found.add(series.labels, series.value)
        for kind in ("counter", "gauge", "histogram", "info"):
            yield from (each.metric() for each in exposed.values() if each.family.kind == kind)

    def _series(self) -> Iterator[SeriesSnapshot]:
        networks = self._networks
        counted = (each() for each in (self._counters.snapshot, *self._others))
        for series in chain.from_iterable(counted):
            if series.family.labels[:1] != ("network",):
                yield series
            elif networks.sees(series.labels[0]):
                name, *others = series.labels
                shown = networks.shown(name)
                yield series if shown == name else replace(series, labels=(shown, *others))
        for entry in networks.entries():
            labels = networks.shown(entry.key.name), entry.key.version
            if entry.state in (*SERVING, NetworkState.FAILED):
                up = entry.state is not NetworkState.FAILED
                yield SeriesSnapshot(NETWORK_UP, labels, float(up))
            if entry.state in SERVING:
                loaded = entry.state is NetworkState.READY
                yield SeriesSnapshot(NETWORK_LOADED, labels, float(loaded))
            if entry.idle_seconds is not None:
                yield SeriesSnapshot(NETWORK_IDLE_SECONDS, labels, entry.idle_seconds)
            if entry.state is NetworkState.READY and entry.memory_bytes:
                of = labels[0], labels[1], entry.device
                yield SeriesSnapshot(NETWORK_MEMORY_BYTES, of, entry.memory_bytes)
        for name, up in self._device_states().items():
            yield SeriesSnapshot(DEVICE_UP, (name,), float(up))
        versions = metadata.version("headrace"), platform.python_version()
        yield SeriesSnapshot(BUILD_INFO, versions, 1.0)


class _Exposed:
    """A family with its series."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._series: dict[tuple[str, ...], Value] = {}

    def add(self, labels: tuple[str, ...], value: Value) -> None:
        """Adds a series.

        A network that drains and its replacement on other devices may share a series. The series is
        exposed once, with the sum of both counts.
        """
        series = self._series.get(labels)
        self._series[labels] = value if series is None else _sum(series, value)

    def metric(self) -> Metric:
        """The family and its series, in the form of Prometheus's library."""
        family = self.family
        name, labels = PREFIX + family.name, family.labels
        if family.kind == "info":
            infos = InfoMetricFamily(name.removesuffix("_info"), family.help)
            for values in self._series:
                infos.add_metric((), dict(zip(labels, values, strict=True)))
            return infos
        if family.kind == "histogram":
            histograms = HistogramMetricFamily(name, family.help, labels=labels)
            for values, value in self._series.items():
                assert isinstance(value, HistogramSnapshot)
                bounds = (*(_shown(bound) for bound in value.bounds), "+Inf")
                counted = zip(bounds, accumulate(value.counts), strict=True)
                examples = value.examples
                buckets: list[_Bucket] = [
                    (bound, count, _exemplar(examples[at])) if at in examples else (bound, count)
                    for at, (bound, count) in enumerate(counted)
                ]
                histograms.add_metric(values, buckets, value.sum)
            return histograms
        kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        numbers = kind(name, family.help, labels=labels)
        for values, value in self._series.items():
            assert not isinstance(value, HistogramSnapshot)
            numbers.add_metric(values, value)
        return numbers


def _sum(one: Value, other: Value) -> Value:
    if isinstance(one, HistogramSnapshot) and isinstance(other, HistogramSnapshot):
        return one + other
    assert not isinstance(one, HistogramSnapshot)
    assert not isinstance(other, HistogramSnapshot)
    return one + other


def _exemplar(example: Example) -> Exemplar:
    """The example of a bucket, which only the OpenMetrics format shows."""
    trace_id, span_id, seconds = example.exemplar
    return Exemplar({"trace_id": trace_id, "span_id": span_id}, example.value, seconds)


def _shown(bound: float) -> str:
    """A bucket's bound as Prometheus writes it: 1.0, not 1."""
    return repr(float(bound))
