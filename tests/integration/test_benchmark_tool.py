"""``headrace benchmark`` against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from headrace.testing import networks
from tests.integration.harness import CALL_SECONDS, Server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "image.onnx"
    onnx.save(networks.image().model, path)
    return path


def benchmark(server: Server, *arguments: object) -> dict[str, Any]:
    found = subprocess.run(
        [Path(sys.executable).with_name("headrace"), "benchmark", *map(str, arguments), "--json"],
        env={"HEADRACE_SERVER": server.address, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=CALL_SECONDS,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return dict(json.loads(found.stdout))


def test_a_closed_loop_is_measured_and_drawn(server: Server, model: Path, tmp_path: Path) -> None:
    before = server.networks()
    picture = tmp_path / "load.svg"
    found = benchmark(
        server, model, "--device", "CPU", "--hint", "latency", "--callers", 3, "-t", 0.5,
        "--warm-up", 0.1, "--plot", picture,
    )  # fmt: skip
    assert found["load"] == "3 callers"
    assert found["config"]["PERFORMANCE_HINT"] == "LATENCY"
    assert found["config"]["NUM_STREAMS"] != "AUTO"
    assert found["completed"] == found["requests"] > 0
    parts = found["seconds_of"]
    assert 0 < parts["execution"]["p50"] <= parts["latency"]["p50"] <= parts["latency"]["p99"]
    assert picture.read_text().lstrip().startswith("<?xml")
    assert server.networks() == before


def test_an_open_loop_sends_all_that_its_rate_asks_for(server: Server, model: Path) -> None:
    found = benchmark(server, model, "--rate", 40, "--arrivals", "fixed", "-t", 0.5, "--warm-up", 0)
    assert found["load"] == "40 requests a second at equal distances"
    assert found["requests"] == found["completed"] == 20
    assert found["errors"] == {}
