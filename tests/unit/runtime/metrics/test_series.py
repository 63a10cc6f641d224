"""Series of a plugin's own: counted by the network, exposed with it, gone with it."""

from __future__ import annotations

from collections import deque

import pytest

from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.metrics.counters import Counters
from headrace.runtime.metrics.histogram import Histogram
from headrace.runtime.metrics.series import Family, SeriesSnapshot
from headrace.server.access.networks import Networks
from headrace.server.http.metrics import make_registry

SHARED = Networks(NetworkRegistry(1))

BYTES = Family("cut_bytes_total", "counter", ("subgraph",), "Bytes.")
SECONDS = Family("cut_seconds", "histogram", ("subgraph",), "Seconds.", (0.1, 1.0))


def sample(counters: Counters, name: str, **labels: str) -> float | None:
    return make_registry(counters, dict, SHARED).get_sample_value(name, labels)


def test_a_counter_is_exposed_with_the_networks_name() -> None:
    counters = Counters()
    series = counters.network("m", "HETERO:A,B").series.get(BYTES, "1")
    series.add(3)
    series.add(4)
    assert sample(counters, "headrace_cut_bytes_total", network="m", version="1", subgraph="1") == 7


def test_a_histogram_counts_each_value_in_its_bucket() -> None:
    counters = Counters()
    series = counters.network("m", "HETERO:A,B").series.get(SECONDS, "1")
    for value in (0.05, 0.5, 5.0):
        series.add(value)
    labels = {"network": "m", "version": "1", "subgraph": "1"}
    assert sample(counters, "headrace_cut_seconds_bucket", **labels, le="1.0") == 2
    assert sample(counters, "headrace_cut_seconds_count", **labels) == 3


def test_one_thread_at_a_time_takes_out_what_was_noted() -> None:
    series = Counters().network("m", "A").series.get(BYTES, "1")
    is_alone: list[bool] = []

    class Watched(deque[float]):
        def popleft(self) -> float:
            is_alone.append(series._lock.locked())
            return super().popleft()

    series._noted = Watched()
    series.add(1)
    series.add_all([2, 3])
    assert (series.snapshot(), is_alone) == (6, [True] * 3)


def test_the_same_labels_give_the_same_series() -> None:
    table = Counters().network("m", "A").series
    assert table.get(BYTES, "1") is table.get(BYTES, "1")
    assert table.get(BYTES, "1") is not table.get(BYTES, "2")


def test_labels_that_the_family_lacks_are_a_bug() -> None:
    with pytest.raises(ValueError, match="cut_bytes_total"):
        Counters().network("m", "A").series.get(BYTES, "1", "2")


def test_the_series_go_with_the_network() -> None:
    counters = Counters()
    counters.network("m", "A").series.get(BYTES, "1").add(1)
    counters.remove_network("m", "A")
    assert (
        sample(counters, "headrace_cut_bytes_total", network="m", version="1", subgraph="1") is None
    )


def test_a_replacement_on_another_device_shares_the_series_of_one_that_drains() -> None:
    counters = Counters()
    for device in ("HETERO:A,B", "HETERO:B,A"):
        table = counters.network("m", device).series
        table.get(BYTES, "1").add(2)
        table.get(SECONDS, "1").add(0.5)
    labels = {"network": "m", "version": "1", "subgraph": "1"}
    assert sample(counters, "headrace_cut_bytes_total", **labels) == 4
    assert sample(counters, "headrace_cut_seconds_sum", **labels) == 1.0


def test_histograms_of_different_buckets_have_no_sum() -> None:
    with pytest.raises(ValueError, match="different buckets"):
        Histogram((1.0,)).snapshot() + Histogram((2.0,)).snapshot()


def test_series_that_are_counted_elsewhere_are_read_until_that_ends() -> None:
    table = Counters().network("m", "A").series
    table.get(BYTES, "1").add(1)
    end = table.add(lambda: [SeriesSnapshot(BYTES, ("2",), 7.0)])
    assert [(each.labels, each.value) for each in table.snapshot()] == [(("1",), 1), (("2",), 7)]
    end()
    assert [each.labels for each in table.snapshot()] == [("1",)]
