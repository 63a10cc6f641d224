"""What a reader of README.md is told to try works as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.integration.harness import Server

REPOSITORY = Path(__file__).parents[2]
SECONDS = 110.0


def quoted(language: str) -> list[str]:
    """The README's blocks of code in a language."""
    text = (REPOSITORY / "README.md").read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def client_example(address: str) -> str:
    """The README's Python example, for a server at `address`."""
    (code,) = quoted("python")
    assert "localhost:9000" in code
    return code.replace("localhost:9000", address)


def small_model() -> onnx.ModelProto:
    """float32[1, 16] "x" → its softmax "y"."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "m", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def require(server: Server, device: str) -> None:
    if device not in server.devices():
        pytest.skip(f"{device} is not up on this server")


def test_the_client_example_runs_and_leaves_no_network_behind(
    server: Server, tmp_path: Path
) -> None:
    require(server, "CPU")
    onnx.save(small_model(), tmp_path / "model.onnx")
    command = [sys.executable, "-W", "error", "-c", client_example(server.address)]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "(1, 16)" in ended.stdout
    assert {int(k) for k in re.findall(r"^(\d+) \{'y'", ended.stdout, re.MULTILINE)} == set(
        range(100)
    )
    assert "m" not in server.networks()


def test_the_commands_run_and_leave_no_network_behind(server: Server, tmp_path: Path) -> None:
    require(server, "CPU")
    onnx.save(small_model(), tmp_path / "model.onnx")
    np.save(tmp_path / "input.npy", np.linspace(0, 1, 16, dtype=np.float32)[np.newaxis])
    (commands,) = [block for block in quoted("sh") if block.startswith("headrace devices")]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    ended = subprocess.run(
        ["/bin/sh", "-eu", "-c", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "HEADRACE_SERVER": server.address},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "float32[1,16]" in ended.stdout
    assert re.search(r"^  0,15 ", ended.stdout, re.MULTILINE), "the largest of the softmax"
    assert (tmp_path / "m.blob").stat().st_size > 0
    assert "m" not in server.networks()


def test_the_demo_tells_files_of_eight_kinds_apart_and_ends_well(server: Server) -> None:
    require(server, "CPU")
    if not (REPOSITORY / ".cache/magika/model.onnx").is_file():
        pytest.skip("magika's network is not here; make test fetches it")
    command = [sys.executable, str(REPOSITORY / "examples/demo.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    labels = dict(re.findall(r"^(\S+) +(\w+) +[01]\.\d{3} ", ended.stdout, re.MULTILINE))
    wanted = {"txt", "markdown", "python", "elf", "json", "onnx", "zip", "png"}
    assert wanted <= set(labels.values()), ended.stdout
    assert "stopped cleanly" in ended.stdout
