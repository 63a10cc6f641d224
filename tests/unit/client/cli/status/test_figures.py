"""Rates, means and quantiles between two status documents."""

from __future__ import annotations

import pytest

from headrace.client.cli.status.figures import Times, by_load, figures, quantile
from headrace.client.cli.status.texts import long_text, rate_text, seconds_text
from tests.support.status_document import (
    BOUNDS,
    StatusDocument,
    device,
    network,
    outcomes,
    times,
)


@pytest.mark.parametrize(
    ("share", "counts", "expected"),
    [
        (0.5, [0, 0, 0, 0, 0], None),
        (0.5, [10, 0, 0, 0, 0], 0.0005),
        (0.99, [10, 0, 0, 0, 0], 0.00099),
        (0.5, [5, 5, 0, 0, 0], 0.001),
        (0.75, [5, 5, 0, 0, 0], 0.0055),
        (0.99, [0, 0, 0, 0, 3], 1.0),
    ],
)
def test_a_quantile_is_linear_within_its_bucket(
    share: float, counts: list[int], expected: float | None
) -> None:
    assert quantile(share, BOUNDS, counts) == (
        None if expected is None else pytest.approx(expected)
    )


def test_without_an_earlier_document_figures_are_those_of_the_server_s_life() -> None:
    status = StatusDocument()
    status.facts["networks"] = [
        network("m", "CPU.0", requests=outcomes(180, 20), request_seconds=times(0, 200, total=1.0))
    ]
    found = figures(status.document())
    (m,) = found.networks
    assert (found.seconds, m.rate, m.failures) == (100.0, 2.0, 0.2)
    assert tuple(m.times) == pytest.approx((0.005, 0.0055, 0.00991))


def test_figures_are_those_since_the_earlier_document() -> None:
    status = StatusDocument()
    status.facts["devices"] = [
        device(
            "CPU.0",
            requests=outcomes(1000),
            parts=outcomes(10),
            refused={"queue_full": 5},
            queue_wait_seconds=times(900, 100, total=9.0),
        )
    ]
    status.facts["networks"] = [network("m", "CPU.0", requests=outcomes(1000))]
    before = status.document()
    status.facts["time"] += 2.0
    status.facts["devices"] = [
        device(
            "CPU.0",
            requests=outcomes(1020, 4),
            parts=outcomes(20),
            refused={"queue_full": 7, "down": 2},
            queue_wait_seconds=times(900, 110, total=9.5),
        )
    ]
    status.facts["networks"] += [network("new", "CPU.0", requests=outcomes(6))]
    found = figures(status.document(), before)
    (cpu,) = found.devices
    assert (found.seconds, cpu.rate, cpu.failures) == (2.0, 17.0, 4.0)
    assert cpu.wait.mean == pytest.approx(0.05)
    assert cpu.wait.p50 == pytest.approx(0.0055)
    assert cpu.execution == Times(None, None, None)
    assert [(each.name, each.rate) for each in found.networks] == [("m", 0.0), ("new", 3.0)]


def test_a_restart_begins_anew() -> None:
    status = StatusDocument()
    status.facts["networks"] = [network("m", "CPU.0", requests=outcomes(10_000))]
    before = status.document()
    status.facts["server"] |= {"uptime_seconds": 5.0, "started": 950.0}
    status.facts["networks"] = [network("m", "CPU.0", requests=outcomes(10))]
    found = figures(status.document(), before)
    assert (found.seconds, found.networks[0].rate) == (5.0, 2.0)


def test_a_replaced_network_begins_anew() -> None:
    status = StatusDocument()
    status.facts["networks"] = [network("m", "CPU.0", requests=outcomes(50))]
    before = status.document()
    status.facts["time"] += 1.0
    status.facts["networks"] = [network("m", "CPU.0", generation=2, requests=outcomes(10))]
    assert figures(status.document(), before).networks[0].rate == 10.0


def test_what_is_broken_comes_first_and_then_what_is_busy() -> None:
    status = StatusDocument()
    status.facts["devices"] = [
        device("CPU.0", streams_busy=2),
        device("CPU.1", queue_depth=100),
        device("CPU.2"),
        device("CUDA.0", state="DOWN", streams=None, queue_capacity=None),
        device("NPU", state="NOT_INSTALLED", streams=None, streams_busy=None),
    ]
    status.facts["networks"] = [
        network("idle", "CPU.0"),
        network("slow", "CPU.0", in_flight=3),
        network("busy", "CPU.0", requests=outcomes(500)),
        network("broken", "CUDA.0", state="failed", reason="no driver"),
    ]
    found = by_load(figures(status.document()))
    assert [each.name for each in found.devices] == ["CUDA.0", "CPU.1", "CPU.0", "CPU.2", "NPU"]
    assert [each.name for each in found.networks] == ["broken", "busy", "slow", "idle"]


def test_versions_are_told_apart_where_there_are_several() -> None:
    status = StatusDocument()
    status.facts["networks"] = [
        network("m", "CPU.0", version="1"),
        network("m", "CPU.0", version="2"),
        network("n", "CPU.0", version="1"),
        network("o", "CPU.0", version="3"),
    ]
    names = [each.name for each in figures(status.document()).networks]
    assert names == ["m:1", "m:2", "n", "o:3"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0.0 µs"),
        (1.24e-6, "1.2 µs"),
        (1.2e-5, "12 µs"),
        (0.0034, "3.4 ms"),
        (0.5, "500 ms"),
        (1.25, "1.2 s"),
        (90, "90 s"),
        (300, "5 min"),
        (11_520, "3 h 12 min"),
        (9 * 86_400 + 4 * 3600, "9 d 4 h"),
    ],
)
def test_a_duration_takes_a_few_characters(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


def test_rates_and_short_lives() -> None:
    assert [rate_text(each) for each in (0, 0.04, 12.34, 1234.5)] == ["0", "0.0", "12.3", "1,234"]
    assert long_text(12.3) == "12 s"
