"""A load says what each of its stages took, on every device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import networks
from tests.integration.harness import Server

MLP = networks.mlp()
STAGES = ("read", "check", "transform", "compile", "publish")
DEVICES = ("CPU", "TEMPLATE", "APART", "OPENVINO", "OPENCL")
LISTS = ("HETERO:TEMPLATE,CPU", "MULTI:CPU,TEMPLATE", "AUTO:CPU,TEMPLATE", "BATCH:CPU(4)")
APART = """
[plugins.APART]
factory = "headrace.plugins.cpu:create_plugin"
config = {ISOLATION = "PROCESS"}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("stages") / "headrace.toml"
    config.write_text(APART)
    with Server("--config", str(config)) as started:
        yield started


def told(notes: list[str]) -> dict[str, float]:
    """What the last note says that each stage took, in seconds."""
    label, _, stages = notes[-1].partition(": ")
    assert label == "loaded by stage"
    found = dict(re.findall(r"(\w+) (\d+\.\d{3}) s", stages))
    return {name: float(seconds) for name, seconds in found.items()}


@pytest.mark.parametrize("device", [*DEVICES, *LISTS])
def test_every_device_tells_the_stages_of_a_load(server: Server, device: str) -> None:
    if device in DEVICES and server.metric("AVAILABLE_DEVICES", device) == []:
        pytest.skip(f"{device} is not here")
    before = counted(server)
    info = server.load(MLP, device, "staged")
    server.unload("staged")
    assert [*told(list(info.notes))] == list(STAGES)
    assert counted(server) == {stage: count + 1 for stage, count in before.items()}


def counted(server: Server) -> dict[str, float]:
    """How many loads the histogram has of each stage."""
    found = server.scrape("headrace_load_stage_seconds_count").items()
    return dict.fromkeys(STAGES, 0.0) | {
        dict(labels)["stage"]: value for (_, labels), value in found
    }


def test_a_load_at_the_start_is_in_the_log_with_its_stages(tmp_path: Path) -> None:
    folder = tmp_path / "mlp"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(MLP.model.SerializeToString())
    with Server("--devices", "CPU", "--model-repository", str(tmp_path)) as server:
        (line,) = (line for line in server.log().splitlines() if "is loaded on" in line)
        assert all(f"{stage} " in line.rpartition(": ")[2] for stage in STAGES), line
