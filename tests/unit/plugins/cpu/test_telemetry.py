"""ONNX Runtime's telemetry is off before ONNX Runtime is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os
from headrace.plugins.cpu import create_plugin
from headrace.sdk import Load
from headrace.testing import networks
from headrace.testing.services import services

with services() as offered:
    plugin = create_plugin("CPU", offered, {})
    plugin.load_network(Load(networks.add().network)).close()
print(os.environ["ORT_DISABLE_TELEMETRY"])
"""


def test_a_device_that_computes_tells_nobody_and_leaves_nothing_in_the_home_folder(
    tmp_path: Path,
) -> None:
    # ONNX Runtime keeps quiet by itself where it thinks that it is tested.
    quiet = {"CI", "GITHUB_ACTIONS", "TF_BUILD", "ORT_RUNNING_UNIT_TESTS", "ORT_DISABLE_TELEMETRY"}
    environment = {name: value for name, value in os.environ.items() if name not in quiet}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["1"]
    assert list(tmp_path.rglob("*")) == []
