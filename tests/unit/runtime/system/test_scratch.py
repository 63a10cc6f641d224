"""Scratch folders: gone when they are closed, or when the next is made after their process died."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from headrace.runtime.system.scratch import ScratchFolder
from tests.support.child import Child

_ANOTHER = """
from headrace.runtime.system.scratch import ScratchFolder
folder = ScratchFolder()
(folder.path / "weights").write_bytes(b"weights")
print(folder.path, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_it_goes_with_all_that_is_in_it(temporary: Path) -> None:
    with ScratchFolder() as folder:
        assert folder.path.parent == temporary
        (folder.path / "file").write_bytes(b"x")
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(temporary: Path) -> None:
    (temporary / "headrace-scratch-no-folder").write_bytes(b"somebody's")
    with ScratchFolder() as ours:
        with Child(_ANOTHER) as another:
            theirs = Path(another.line())
            ScratchFolder().close()
            assert (theirs / "weights").exists()
        assert theirs.exists()
        ScratchFolder().close()
        assert not theirs.exists()
        assert ours.path.exists()
