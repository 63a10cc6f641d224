"""Notes that are shared by the servers of a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.runtime.cache import notes
from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.notes import Notes
from headrace.runtime.errors import Unavailable


def opened(root: Path) -> Notes:
    return Notes(NetworkCache(root, b"k" * 32, 2**20), "notes")


def test_a_note_of_another_form_is_not_used(tmp_path: Path) -> None:
    opened(tmp_path).write(lambda: ["a"], {"x": 1})
    assert opened(tmp_path).read(lambda: ["a"], lambda note: note["x"]) == 1
    assert opened(tmp_path).read(lambda: ["a"], lambda note: note["y"]) is None


def test_facts_that_cannot_be_had_leave_no_note(tmp_path: Path) -> None:
    def facts() -> object:
        raise Unavailable("the device is down")

    opened(tmp_path).write(facts, 1)
    assert opened(tmp_path).read(facts, int) is None


def test_long_notes_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "_MOST_BYTES", 3)
    opened(tmp_path).write(list, 1234)
    assert opened(tmp_path).read(list, int) is None
