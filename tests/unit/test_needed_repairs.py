"""Tests that show that a backend alone is wrong fail no suite; `make needed-repairs` runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILE = """
def test_openvino_alone_is_wrong(): pass
def test_onnx_runtime_alone_is_wrong(): assert 0, "it is right"
def test_the_product_is_right(): pass
"""


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    file = folder / "test_it.py"
    file.write_text(FILE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", *options, "-c", "/dev/null"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", "--no-summary", str(file)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_the_suite_leaves_them_out(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert "1 passed, 2 deselected" in ran.stdout


@pytest.mark.long
def test_needed_repairs_runs_them_alone_and_names_what_is_right_without(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, "-p", "tests.needed_repairs")
    assert ran.returncode == 0, ran.stdout
    assert "1 failed, 1 passed, 1 deselected" in ran.stdout
    (line,) = [each for each in ran.stdout.splitlines() if each.startswith("may no longer")]
    assert "test_onnx_runtime_alone_is_wrong" in line
