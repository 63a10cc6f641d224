"""The suite of real networks: small ones are right, and faults are found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from headrace.testing.case import parse
from tools.zoo.__main__ import main
from tools.zoo.inputs import Inputs
from tools.zoo.reference import Answer
from tools.zoo.servers import Servers
from tools.zoo.trial import FATAL, Limits, Outcome, Result, Trial

SMALL = Path(__file__).parents[2] / ".cache/small-zoo"
UNSOUND = """
[plugins.UNSOUND]
factory = "tests.support.unsound_device:create_plugin"
"""
USUAL = Limits(30.0, 30.0)
IMPATIENT = Limits(30.0, 1.0)
VALUES = np.linspace(-1, 1, 5, dtype="f")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Servers with a device that crashes, hangs or computes something else, by the operator."""
    file = tmp_path_factory.mktemp("settings") / "headrace.toml"
    file.write_text(UNSOUND, "utf-8")
    with Servers("--config", str(file), "--devices", "TEMPLATE,UNSOUND") as running:
        yield running


def tried(
    servers: Servers, folder: Path, op_type: str, device: str = "UNSOUND", limits: Limits = USUAL
) -> Result:
    """What becomes of a network of one layer whose reference is its input's sine."""
    model = parse(f"net (float[N] x) => (float[N] y) {{ y = {op_type} (x) }}")
    onnx.save(model, folder / "model.onnx")
    trial = Trial(servers.client(), device, limits, servers.is_alive, lambda: 0.0)
    request = Inputs({"N": 5}, {"x": VALUES})
    result = trial.run(folder / "model.onnx", [request], [Answer({"y": np.sin(VALUES)})])
    if result.outcome in FATAL:
        servers.discard()
    return result


@pytest.mark.parametrize(
    ("op_type", "outcome", "reason"),
    [
        ("Sin", Outcome.WRONG, "y: off by 1"),
        ("Cos", Outcome.WRONG, r"y: float64\[5\], not float32\[5\]"),
        ("Exp", Outcome.FAILED, "infer: INTERNAL"),
        ("Abs", Outcome.ENDED, "infer: UNAVAILABLE"),
        ("Neg", Outcome.HUNG, "infer took too long"),
        ("NoSuchOperator", Outcome.REFUSED, "NoSuchOperator"),
    ],
)
def test_each_fault_is_told_from_the_others(
    servers: Servers, tmp_path: Path, op_type: str, outcome: Outcome, reason: str
) -> None:
    result = tried(servers, tmp_path, op_type, limits=IMPATIENT if op_type == "Neg" else USUAL)
    assert result.outcome is outcome, result
    assert re.search(reason, result.reason), result


def test_a_right_answer_is_right(servers: Servers, tmp_path: Path) -> None:
    assert tried(servers, tmp_path, "Sin", "TEMPLATE").outcome is Outcome.RIGHT


def test_a_device_that_may_be_slow_is_slow_where_the_server_still_answers(
    servers: Servers, tmp_path: Path
) -> None:
    limits = replace(IMPATIENT, all_seconds=60.0)
    assert tried(servers, tmp_path, "Neg", limits=limits).outcome is Outcome.SLOW


@pytest.mark.timeout(300)
def test_small_networks_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    devices = ("CPU", "AUTO", "HETERO:OPENVINO,CPU")  # `make zoo` asks all
    arguments = [argument for device in devices for argument in ("--device", device)]
    assert main(["--folder", str(SMALL), *arguments]) == 0, capsys.readouterr().out
    assert "0 failures" in capsys.readouterr().out
