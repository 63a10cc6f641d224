"""The manual's page on PyTorch: its client, with the files that its exporter wrote.

`exported/` holds what the page's first program writes with torch 2.14 and onnxscript 0.7, which are
not installed here: the network, its weights, and what PyTorch computes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from headrace.client import Client
from tests.integration.harness import Server
from tests.support.manual import blocks

_FILES = Path(__file__).parent / "exported"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(_FILES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_s_client_has_the_answers_of_pytorch(
    server: Server, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = (each for each in blocks("docs/use/pytorch.md", "python") if "Client(" in each)
    exec(program.replace("localhost:9000", server.address), {})
    scores = np.load(folder / "expected.npy")
    assert capsys.readouterr().out.splitlines()[-1] == str(scores.argmax(axis=1))


@pytest.mark.parametrize("device", ["TEMPLATE", "AUTO", "BATCH:CPU(8)", "HETERO:TEMPLATE,CPU"])
def test_other_devices_answer_the_same(server: Server, folder: Path, device: str) -> None:
    image = np.linspace(0, 1, 2 * 28 * 28, dtype=np.float32).reshape(2, 1, 28, 28)
    with Client(server.address) as client:
        network = client.load_network("digits.onnx", device=device, name="digits", replace=True)
        scores = network.infer({"image": image})["scores"]
        network.unload()
    np.testing.assert_allclose(scores, np.load("expected.npy"), atol=1e-5)
