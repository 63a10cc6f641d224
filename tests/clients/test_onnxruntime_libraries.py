"""Libraries that use ONNX Runtime, as they are on PyPI, run on a server by one changed import, and
find what they find with ONNX Runtime itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rapidocr", reason="it has an environment of its own: .venv-libraries")

from tests.clients.conftest import REPOSITORY, Serving
from tests.clients.libraries import USES

SECONDS = 600


@pytest.fixture(scope="module")
def folder(serving: Serving, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of onnx-asr's."""
    made = tmp_path_factory.mktemp("asr")
    (made / "model.onnx").write_bytes(serving.models["speech"])
    tokens = [f"{chr(ord('a') + number)} {number}" for number in range(7)]
    (made / "vocab.txt").write_text("\n".join([*tokens, "<blk> 7"]))
    (made / "config.json").write_text('{"model_type": "nemo-conformer-ctc"}')
    return made


def found(where: str, folder: Path, target: str) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, str(REPOSITORY / "tests/clients/libraries.py"), where, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "HEADRACE_SERVER": target},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return results


@pytest.fixture(scope="module")
def results(serving: Serving, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the libraries find by themselves, and on the server."""
    return found("local", folder, serving.grpc), found("server", folder, serving.grpc)


@pytest.mark.parametrize("library", USES)
def test_a_library_finds_the_same_on_a_server(library: str, results: Any) -> None:
    local, on_server = results
    assert local[library]
    assert on_server[library] == local[library]


def test_the_libraries_find_something(results: Any) -> None:
    _, on_server = results
    assert on_server["rapidocr"]["texts"] == ["headrace serves", "12345 networks"]
    assert on_server["magika"][3][0] == "csv"
