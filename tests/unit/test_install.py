"""`scripts/venv.sh` says where it is while pip works, and the documents tell one size."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
case "$*" in
*"install --progress-bar off"*" good") ;;
*install*) echo "ERROR: no such package"; exit 1 ;;
*) exit 0 ;;
esac
echo "Installing build dependencies: started"
for number in $(seq 45); do echo "Collecting package$number>=1 (from good)"; done
echo "Installing collected packages: package1, package2"
"""
"""Stands for the Python of an environment, with a pip that has 45 packages to install."""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tmp_path / "venv"


def install(environment: Path, what: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(REPOSITORY / "scripts/venv.sh"), str(environment), what]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_packages_are_counted_and_the_size_is_told(environment: Path) -> None:
    ended = install(environment, "good")
    assert ended.returncode == 0, ended.stderr
    first, *counted, unpacking, size = ended.stderr.splitlines()
    assert first == f"installing into {environment}"
    assert [re.findall(r"\d+", line) for line in counted] == [["20"], ["40"]]
    assert "unpacking" in unpacking
    assert re.search(r"takes \d+ MB on disk", size)
    assert "Collecting package45>=1" in (environment / "install.log").read_text()


def test_what_pip_says_is_shown_if_it_fails(environment: Path) -> None:
    ended = install(environment, "bad")
    assert ended.returncode == 1
    assert "ERROR: no such package" in ended.stderr
    assert "Could not install: bad" in ended.stderr


def test_the_makefile_and_the_documents_tell_the_same_sizes() -> None:
    makefile, readme, manual = (
        (REPOSITORY / name).read_text("utf-8")
        for name in ("Makefile", "README.md", "docs/use/install.md")
    )
    told = re.findall(r"downloads about (\d+) MB, takes about (\d+) MB on disk", makefile)
    assert len(told) == 2
    for downloaded, taken in told:
        for text in (readme, manual):
            assert f"{downloaded} MB" in text
            assert f"{taken} MB" in text
