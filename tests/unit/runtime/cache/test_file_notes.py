"""What files were found to hold, for later servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.runtime.cache import file_notes
from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.file_notes import FileNotes
from headrace.runtime.system.file_identity import FileIdentity

_FILE = Path("model.onnx")
_IDENTITY = FileIdentity(1, 2, 3, 4, 5)


def notes(root: Path, key: bytes = b"k" * 32) -> FileNotes:
    return FileNotes(NetworkCache(root, key, 2**20))


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    """The folder of a cache that has one note."""
    notes(tmp_path).set(_FILE, _IDENTITY, "text")
    return tmp_path


def test_another_server_finds_a_note(noted: Path) -> None:
    assert notes(noted).get(_FILE, _IDENTITY) == "text"


def test_a_note_is_of_one_path(noted: Path) -> None:
    assert notes(noted).get(Path("other.onnx"), _IDENTITY) is None


@pytest.mark.parametrize("field", FileIdentity._fields)
def test_a_note_is_of_one_file_that_nobody_has_written_to(noted: Path, field: str) -> None:
    assert notes(noted).get(_FILE, _IDENTITY._replace(**{field: 9})) is None


def test_the_newest_note_counts(noted: Path) -> None:
    newer = _IDENTITY._replace(changed_ns=9)
    notes(noted).set(_FILE, newer, "new text")
    assert notes(noted).get(_FILE, newer) == "new text"
    assert notes(noted).get(_FILE, _IDENTITY) is None


def test_a_note_of_another_key_is_not_used(noted: Path) -> None:
    assert notes(noted, b"x" * 32).get(_FILE, _IDENTITY) is None


def test_a_damaged_note_is_not_used(noted: Path) -> None:
    (entry,) = noted.glob("files/*")
    entry.write_bytes(b"damaged")
    assert notes(noted).get(_FILE, _IDENTITY) is None


def test_a_note_ends_with_a_restart_of_the_machine(
    noted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(file_notes, "_BOOT", tmp_path / "boot")
    assert notes(noted).get(_FILE, _IDENTITY) is None


def test_without_room_a_server_keeps_its_notes_for_itself(tmp_path: Path) -> None:
    own = FileNotes(NetworkCache(tmp_path, b"k" * 32, 10))
    own.set(_FILE, _IDENTITY, "text")
    assert own.get(_FILE, _IDENTITY) == "text"
    assert notes(tmp_path).get(_FILE, _IDENTITY) is None
