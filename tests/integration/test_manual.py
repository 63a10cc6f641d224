"""What a reader of README.md and of the manual is told to try works as it stands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from headrace.client import Client
from headrace.client.cli.app import make_app
from headrace.testing.case import parse
from tests.integration.harness import Server
from tests.support.manual import PAGES, REPOSITORY, blocks, commands

SECONDS = 600.0
MAGIKA = REPOSITORY / ".cache/magika"
PROGRAMS = (
    "README.md",
    "docs/use/first-steps.md",
    "docs/use/clients.md",
    "docs/use/sequences.md",
    "docs/use/response-cache.md",
    "docs/use/shared-memory.md",
    "docs/use/tune.md",
    "docs/use/hetero.md",
    "docs/use/multi-and-auto.md",
    "docs/use/pipelines.md",
)
"""Pages whose Python blocks are one program."""
SCRIPTS = (
    "docs/run/access.md",
    "docs/use/first-steps.md",
    "docs/use/command-line.md",
    "docs/run/runbook.md",
    "docs/use/sequences.md",
    "docs/use/tune.md",
    "docs/use/hetero.md",
    "docs/use/multi-and-auto.md",
    "docs/use/batch.md",
    "docs/use/hints.md",
    "docs/run/monitoring.md",
)
"""Pages whose `headrace` commands are one script."""
ELSEWHERE = {
    "docs/run/cluster.md": "test_cluster runs its program, on three replicas",
    "docs/use/balancing.md": "test_replicas runs its program, on three servers",
    "docs/use/repository.md": "test_repository runs them, on a server with a model repository",
    "docs/use/rest.md": "its programs and requests of curl alternate",
    "docs/run/tracing.md": "test_tracing runs its program, with a collector",
    "docs/use/openvino.md": "it takes devices that not every machine has",
    "docs/use/opencl.md": "it takes a device that not every machine has",
    "docs/develop/writing-a-plugin.md": "quoted; test_plugin_project runs its commands",
    "docs/develop/testing-a-plugin.md": "its code is quoted",
    "docs/use/shared-memory.md": "test_local_clients runs its command, and its program is run here",
    "docs/run/operations.md": "test_local_clients runs its commands, on a Unix socket",
    "docs/run/security.md": "test_token_file runs its commands, test_tls its program",
    "docs/use/tabular.md": "test_tabular runs its client; its converter is not installed here",
    "docs/use/pytorch.md": "test_pytorch runs its client; its exporter is not installed here",
    "README.md": "its command serves the folder whose network is loaded here",
    "docs/run/shadow.md": "test_shadow runs its commands, on a server with a model repository",
    "docs/run/memory.md": "test_memory_budget runs such a server",
    "docs/use/from-triton.md": "its command serves a folder of the reader's",
    "docs/use/from-ovms.md": "its command serves a folder of the reader's",
    "docs/use/open-inference.md": "its client cannot be here beside ours; tests/clients runs it",
}
"""Pages whose examples are not run here, and why."""


def small_model() -> onnx.ModelProto:
    """float32[N, 16] "x" → its softmax "y"."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 16]) for name in ("x", "y")
    ]
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"], "softmax")], "m", ends[:1], ends[1:]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def recurrent_model() -> onnx.ModelProto:
    """float32[1, 16] "x" and the state "h" → "y", which is the next state "hn" too."""
    text = "recurrent (float[1,16] x, float[1,16] h) => (float[1,16] y, float[1,16] hn) {"
    return parse(f"{text} sum = Add(x, h) hn = Tanh(sum) y = Identity(hn) }}")


def open_model() -> onnx.ModelProto:
    """Has a state of a size that it does not declare, like silero-vad."""
    text = (
        "open (float[N,576] input, float[2,B,128] state) => (float output, float[2,C,128] stateN)"
    )
    return parse(f"{text} {{ stateN = Tanh(state) output = ReduceSum<keepdims = 0>(input) }}")


def require(server: Server, device: str) -> None:
    if device not in server.devices():
        pytest.skip(f"{device} is not up on this server")


@pytest.fixture
def folder(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a reader is in, with all that the pages speak of; the server is `server`."""
    for device in ("CPU", "TEMPLATE", "HETERO", "MULTI", "BATCH", "PIPELINE"):
        require(server, device)
    onnx.save(small_model(), tmp_path / "model.onnx")
    onnx.save(recurrent_model(), tmp_path / "recurrent.onnx")
    onnx.save(open_model(), tmp_path / "silero_vad.onnx")
    np.save(tmp_path / "input.npy", np.linspace(0, 1, 16, dtype=np.float32)[np.newaxis])
    shutil.copy(REPOSITORY / "README.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_SERVER", server.address)
    return tmp_path


@pytest.fixture
def magika(folder: Path) -> Path:
    """The demo's network, in the folder of downloads and as a model repository."""
    if not (MAGIKA / "model.onnx").is_file():
        pytest.skip("magika's network is not here; make test fetches it")
    repository = folder / "models" / "magika"
    repository.mkdir(parents=True)
    (repository / "model.onnx").symlink_to(MAGIKA / "model.onnx")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "magika").symlink_to(MAGIKA)
    return repository / "model.onnx"


def run_program(page: str, server: Server) -> None:
    code = "\n".join(blocks(page, "python"))
    assert "localhost:9000" in code
    code = code.replace("localhost:9000", server.address)
    exec(compile(code, page, "exec"), {"__name__": "__main__"})


def run_script(page: str) -> str:
    """What the page's commands print; serving, drawing and measuring are tested elsewhere."""
    printed = []
    for words in commands(page):
        if words[0] in ("serve", "benchmark", "tune") or {"--svg", "--png", "--dot"} & {*words}:
            continue
        ended = CliRunner().invoke(make_app(words), words, catch_exceptions=False)
        assert ended.exit_code == 0, (words, ended.output)
        printed.append(ended.output)
    assert printed
    return "".join(printed)


@pytest.mark.parametrize("page", sorted({*PROGRAMS} - {"README.md", "docs/use/first-steps.md"}))
def test_the_programs_of_a_page_run_and_leave_no_network_behind(
    server: Server, folder: Path, page: str
) -> None:
    run_program(page, server)
    assert not {"m", "model"} & {*server.networks()}


@pytest.mark.parametrize("page", sorted({*SCRIPTS} - {"docs/use/first-steps.md"}))
def test_the_commands_of_a_page_run_and_leave_no_network_behind(
    server: Server, folder: Path, page: str
) -> None:
    run_script(page)
    assert "m" not in server.networks()


def test_the_commands_print_what_they_should(folder: Path) -> None:
    printed = run_script("docs/use/command-line.md")
    assert "float32[1,16]" in printed
    assert re.search(r"^  0,15 ", printed, re.MULTILINE), "the largest of the softmax"
    assert (folder / "m.blob").stat().st_size > 0


def test_a_stream_answers_every_request(
    server: Server, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_program("docs/use/clients.md", server)
    printed = capsys.readouterr().out
    assert {int(k) for k in re.findall(r"^(\d+) \{'y'", printed, re.MULTILINE)} == {*range(100)}


@pytest.fixture
def iris(server: Server) -> Iterator[None]:
    """The folder of models of the first page; the session's server has no model repository."""
    model = REPOSITORY / "examples/models/iris/model.onnx"
    with Client(server.address) as client:
        network = client.load_network(model, name="iris")
        yield
        network.unload()


def test_the_calls_of_the_first_page_tell_an_iris(
    server: Server, iris: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run_program("README.md", server)
    assert capsys.readouterr().out.startswith("['setosa'] [[0.98")
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (block,) = (each for each in blocks("README.md", "sh") if "curl" in each)
    (answer,) = run_curl(server, block)()
    label, scores = json.loads(answer)["outputs"]
    assert label["data"] == ["setosa"]
    assert scores["data"][0] > 0.9


def test_the_first_steps_lead_somewhere(
    server: Server, magika: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The session's server has no model repository; so the network is loaded under its name there.
    load = ["load", str(magika), "--name", "magika"]
    assert CliRunner().invoke(make_app(load), load).exit_code == 0
    try:
        assert "target_label" in run_script("docs/use/first-steps.md")
        run_program("docs/use/first-steps.md", server)
    finally:
        server.unload("magika")
    assert "target_label" in capsys.readouterr().out
    assert "second" not in server.networks()


def test_the_requests_of_curl_and_the_program_of_rest_do_what_they_should(
    server: Server, folder: Path
) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    page = "docs/use/rest.md"
    in_order = re.findall("^```(sh|python)$", (REPOSITORY / page).read_text(), re.MULTILINE)
    assert in_order == ["sh", "sh", "python", "sh"]
    load, ask, leave = (run_curl(server, block) for block in blocks(page, "sh"))
    assert load() == ["{}"]
    described, computed = ask()
    assert json.loads(described)["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
    (shown,) = blocks(page, "json")
    assert json.loads(computed) == json.loads(shown)
    (program,) = blocks(page, "python")
    variables: dict[str, Any] = {}
    exec(compile(program.replace("localhost:9001", server.http), page, "exec"), variables)
    np.testing.assert_allclose(variables["y"].sum(), 1, rtol=1e-5)
    ready, index, stats, gone = leave()
    assert json.loads(ready) == {"ready": True}
    assert "m" in [row["name"] for row in json.loads(index)]
    assert json.loads(stats)["model_stats"][0]["inference_stats"]["success"]["count"] == 2
    assert gone == "{}"
    assert "m" not in server.networks()


def run_curl(server: Server, block: str) -> Callable[[], list[str]]:
    """Runs a block of shell; returns what each of its commands prints."""

    def run() -> list[str]:
        script = block.replace("localhost:9001", server.http)
        script = re.sub("^curl ", "echo; curl --fail-with-body ", script, flags=re.MULTILINE)
        ran = subprocess.run(
            ["bash", "-euc", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, (script, ran.stdout, ran.stderr)
        return ran.stdout.splitlines()[1:]

    return run


def test_the_examples_of_every_page_are_run_somewhere() -> None:
    assert {page for page in PAGES if blocks(page, "python")} == {*PROGRAMS} | {
        page for page in ELSEWHERE if blocks(page, "python")
    }
    assert {page for page in PAGES if commands(page)} == {*SCRIPTS} | {
        page for page in ELSEWHERE if commands(page)
    }


def test_the_demo_tells_files_of_eight_kinds_apart_and_ends_well(server: Server) -> None:
    require(server, "CPU")
    if not (MAGIKA / "model.onnx").is_file():
        pytest.skip("magika's network is not here; make test fetches it")
    command = [sys.executable, str(REPOSITORY / "examples/demo.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    labels = dict(re.findall(r"^(\S+) +(\w+) +[01]\.\d{3} ", ended.stdout, re.MULTILINE))
    wanted = {"txt", "markdown", "python", "elf", "json", "onnx", "zip", "png"}
    assert wanted <= set(labels.values()), ended.stdout
    assert "stopped cleanly" in ended.stdout
