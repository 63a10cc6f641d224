"""The manual's example for tritonclient works as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clients.conftest import REPOSITORY, Serving


def test_the_example_runs(
    serving: Serving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = REPOSITORY.joinpath("docs/use/open-inference.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    tmp_path.joinpath("model.onnx").write_bytes(serving.models["softmax"])
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code.replace("localhost:9000", serving.grpc), names)
    names["client"].close()  # type: ignore[attr-defined]
    assert capsys.readouterr().out.startswith("[[0.0625 0.0625")
