"""What a process that computes on CPU has loaded, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, os, sys
from headrace.plugins.cpu import create_plugin
from headrace.sdk import Load
from headrace.testing.networks import add
from headrace.testing.services import services

with services() as offered:
    plugin = create_plugin("CPU", offered, {})
    plugin.load_network(Load(add().network)).close()
telemetry = os.environ["ORT_DISABLE_TELEMETRY"]
print(json.dumps({"telemetry": telemetry, "modules": [*sys.modules]}))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def said(home: Path) -> Any:
    """By a process that loaded a network."""
    # ONNX Runtime keeps quiet by itself where it thinks that it is tested.
    quiet = {"CI", "GITHUB_ACTIONS", "TF_BUILD", "ORT_RUNNING_UNIT_TESTS", "ORT_DISABLE_TELEMETRY"}
    environment = {name: value for name, value in os.environ.items() if name not in quiet}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_device_that_computes_tells_nobody_and_leaves_nothing_in_the_home_folder(
    said: Any, home: Path
) -> None:
    assert said["telemetry"] == "1"
    assert list(home.rglob("*")) == []


def test_a_device_without_rewrite_rules_does_not_import_their_library(said: Any) -> None:
    assert "onnxruntime" in said["modules"]
    assert "onnxscript" not in said["modules"]
