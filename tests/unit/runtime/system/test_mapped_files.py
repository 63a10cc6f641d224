"""Weights in mapped files: aligned, without a name, and out of memory when told so."""

from __future__ import annotations

import gc
import mmap
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.system import mapped_files
from headrace.runtime.system.mapped_files import MappedFiles, settle_pages
from headrace.runtime.system.memory_limit import MemoryUse


def resident_bytes(what: str) -> int:
    """The size of the maps of files whose path has `what` in it."""
    size, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = what in line
        elif inside and line.startswith("Rss:"):
            size += int(line.split()[1]) * 1024
    return size


@given(st.lists(st.binary(max_size=300), min_size=1))
def test_pieces_read_back_each_where_vector_code_may_read_it(pieces: list[bytes]) -> None:
    pieces.append(b"a file that is not empty")
    moved = MappedFiles().spool([memoryview(piece) for piece in pieces])
    assert [bytes(each) for each in moved] == pieces
    assert all(each.readonly for each in moved)


def test_a_temporary_file_has_no_name_and_ends_with_its_last_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = MappedFiles()
    (view,) = files.spool([memoryview(b"x" * 4096)])
    assert list(tmp_path.iterdir()) == []
    maps = Path("/proc/self/maps")
    assert str(tmp_path) in maps.read_text()
    del files
    assert bytes(view) == b"x" * 4096
    del view
    gc.collect()
    assert str(tmp_path) not in maps.read_text()


def test_where_there_is_no_room_pieces_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    pieces = [memoryview(b"weights")]
    assert MappedFiles().spool(pieces) == pieces
    assert "weights stay in memory" in caplog.text


def test_forgotten_pages_are_out_of_memory_until_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = MappedFiles()
    (view,) = files.spool([memoryview(bytes(range(256)) * 4096)])
    assert view[-1] == 255
    assert len(bytes(view)) == resident_bytes(str(tmp_path)) == 2**20
    files.forget_pages()
    assert resident_bytes(str(tmp_path)) == 0
    assert view[255] == 255


@pytest.mark.parametrize(("free", "gone"), [(0, True), (2**30, False)])
def test_what_is_mapped_is_in_memory_and_the_rest_of_a_file_leaves_if_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, gone: bool
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(mapped_files, "memory_limit", lambda: MemoryUse(0, 2**31, free))
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *place: told.append(place[:2]))
    path = tmp_path / "weights"
    path.write_bytes(bytes(2**20))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 2**19, access=mmap.ACCESS_READ):
        assert resident_bytes(str(path)) == 0
        settle_pages(path)
        assert resident_bytes(str(path)) == 2**19
    assert told == [(0, 0)] * gone


def test_a_file_that_is_gone_settles_nothing(tmp_path: Path) -> None:
    settle_pages(tmp_path / "gone")
