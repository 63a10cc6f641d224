"""How many replicas the waiting time asks for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace.cluster.scaling import BUSY, WAITING, LoadMeter, by_waiting_time, wanted
from headrace.runtime.metrics import families
from headrace.runtime.metrics.histogram import Histogram
from headrace.runtime.metrics.series import SeriesSnapshot


@pytest.mark.parametrize(
    ("replicas", "waiting", "busy", "expected"),
    [
        (1, [0.0], [0.0], 1),  # idle
        (1, [0.015], [1.0], 2),  # waits half as long again as it may
        (3, [0.1, 0.1, 0.1], [1, 1, 1], 6),  # a burst doubles them at most
        (3, [0.001, 0.001, 0.001], [0.5, 0.5, 0.5], 3),
        (3, [0.0, 0.0, 0.0], [0.2, 0.2, 0.2], 1),
        (3, [0.0, 0.0, 0.0], [0.3, 0.3, 0.3], 2),
        (4, [0.005] * 4, [0.9] * 4, 4),  # busy, but nobody waits too long
        (2, [], [], 1),
    ],
)
def test_waiting_asks_for_more_and_idle_streams_for_fewer(
    replicas: int, waiting: list[float], busy: list[float], expected: int
) -> None:
    assert wanted(replicas, waiting, busy) == expected


def test_the_policy_reads_what_the_replicas_have_measured() -> None:
    metrics = {WAITING: {"a": 0.02, "b": 0.02}, BUSY: {"a": 1.0, "b": 1.0}}
    context = SimpleNamespace(current_num_replicas=2, aggregated_metrics=metrics)
    assert by_waiting_time(context) == (4, {})
    assert by_waiting_time(SimpleNamespace(current_num_replicas=2, aggregated_metrics=None)) == (
        1,
        {},
    )


def test_a_reading_is_of_the_time_since_the_last_one() -> None:
    waits = Histogram(families.DEVICE_QUEUE_WAIT_SECONDS.bounds)
    meter = LoadMeter()

    def read(busy: float) -> dict[str, float]:
        series = [
            SeriesSnapshot(families.DEVICE_QUEUE_WAIT_SECONDS, ("CPU",), waits.snapshot()),
            SeriesSnapshot(families.DEVICE_EXECUTION_SECONDS, ("CPU",), waits.snapshot()),
            SeriesSnapshot(families.DEVICE_STREAMS, ("CPU",), 4.0),
            SeriesSnapshot(families.DEVICE_STREAMS_BUSY, ("CPU",), busy),
        ]
        return meter.read(series)

    assert read(0.0) == {WAITING: 0.0, BUSY: 0.0}
    waits.observe(0.010)
    waits.observe(0.030)
    assert read(2.0) == {WAITING: pytest.approx(0.020), BUSY: 0.5}
    waits.observe(0.5)
    assert read(4.0) == {WAITING: pytest.approx(0.5), BUSY: 1.0}
    assert read(4.0)[WAITING] == 0.0
