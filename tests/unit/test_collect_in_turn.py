"""Each process of xdist collects a file of tests when its turn comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "a/test_first.py": "def test_it(): pass",
    "a/test_not_chosen.py": "def test_other(): pass",
    "b/test_broken.py": "import no_such_module",
    "b/test_last.py": "def test_it(): assert False",
}


@pytest.mark.long
def test_files_of_which_no_test_runs_disturb_no_others(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-n", "1", "-k", "test_it"]
    options = ["--dist", "loadfile", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir"]
    ended = subprocess.run(
        [*command, *options, str(tmp_path), str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1, ended.stdout
    assert "no_such_module" in ended.stdout
    assert "1 failed, 1 passed, 1 error" in ended.stdout
