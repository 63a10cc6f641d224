from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.server.access import watched
from headrace.server.access.tokens import parse_entries
from headrace.server.access.watched import WatchedFiles, Watcher
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tokens import entry


def number(*contents: bytes) -> int:
    try:
        return sum(int(each) for each in contents)
    except ValueError:
        raise ValueError("this is not a number") from None


def replace(path: Path, text: str) -> None:
    """Replaces a file atomically, as careful programs do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


def test_a_replaced_file_gives_a_new_value(path: Path) -> None:
    changes: list[int] = []
    files = WatchedFiles([path], number, field="tokens")
    files.on_change = changes.append
    files.look()
    assert (files.value, changes) == (1, [])
    replace(path, "2")
    files.look()
    assert (files.value, changes) == (2, [2])


def test_a_file_rewritten_in_place_gives_a_new_value(path: Path) -> None:
    files = WatchedFiles([path], number, field="tokens")
    files.look()
    path.write_text("2")  # the same size and inode, and perhaps the same clock tick
    files.look()
    assert files.value == 2


def test_a_file_behind_a_changed_link_gives_a_new_value(tmp_path: Path) -> None:
    for name in "12":
        (tmp_path / name).mkdir()
        (tmp_path / name / "number").write_text(name)
    link = tmp_path / "data"
    link.symlink_to("1")
    files = WatchedFiles([link / "number"], number, field="tokens")
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").replace(link)
    files.look()
    assert files.value == 2


def test_a_file_that_is_old_and_unchanged_is_not_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(path, (1e9, 1e9))
    files = WatchedFiles([path], number, field="tokens")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("read again"))
    files.look()


@pytest.mark.parametrize("broken", ["none", "x", "folder", "large"])
def test_a_bad_file_keeps_the_last_good_value_and_is_logged_once(
    broken: str, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "MAX_BYTES", 10)
    files = WatchedFiles([path], number, field="tokens")
    if broken in ("none", "folder"):
        path.unlink()
    if broken == "folder":
        path.mkdir()
    if broken == "large":
        replace(path, "1" * 11)
    if broken == "x":
        replace(path, "x")
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            files.look()
    assert files.value == 1
    (line,) = caplog.messages
    assert line.startswith(str(path))
    assert line.endswith("; the server goes on with the last good state")

    if broken == "folder":
        path.rmdir()
    replace(path, "3")
    files.look()
    assert files.value == 3


@pytest.mark.parametrize("emptied", ["", "\n  \n"])
def test_an_emptied_file_keeps_the_last_good_value_but_one_that_says_nobody_counts(
    emptied: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A write that broke off must not lock out everybody whose token was in the file."""
    path.write_text(entry("a", "1", "read"))
    files = WatchedFiles([path], parse_entries, field="tokens")
    path.write_text(emptied)
    for _ in range(4):
        files.look()
    assert files.value.of_token("1") is not None
    assert files.is_stale
    (line,) = caplog.messages
    assert "is empty now" in line

    path.write_text("# Nobody.\n")
    files.look()
    assert files.value.of_token("1") is None
    assert not files.is_stale


def test_a_file_that_is_empty_from_the_start_is_taken(path: Path) -> None:
    path.write_text("")
    files = WatchedFiles([path], parse_entries, field="tokens")
    assert not files.value.tokens
    replace(path, entry("a", "1", "read"))
    files.look()
    assert files.value.of_token("1") is not None


def test_a_pair_of_files_may_change_one_after_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def same(one: bytes, two: bytes) -> bytes:
        if one != two:
            raise ValueError("they differ")
        return one

    paths = [tmp_path / "one", tmp_path / "two"]
    for each in paths:
        each.write_text("1")
    files = WatchedFiles(paths, same, field="tls_cert")
    replace(paths[0], "2")
    files.look()
    assert files.value == b"1"
    replace(paths[1], "2")
    files.look()
    assert files.value == b"2"
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]


@pytest.mark.parametrize("content", [None, "x"])
def test_a_bad_file_at_the_start_is_an_error_that_names_it(
    content: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "number"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidArgument, match=str(path)) as caught:
        WatchedFiles([path], number, field="tokens")
    assert caught.value.field == "tokens"


def test_a_pipe_is_refused_and_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(InvalidArgument, match="not a regular file"):
        WatchedFiles([path], number, field="tokens")


def test_the_watcher_sees_a_change_by_itself(path: Path) -> None:
    changed = threading.Event()
    files = WatchedFiles([path], number, field="tokens")
    files.on_change = lambda _: changed.set()
    watcher = Watcher(seconds=0.01)
    watcher.add(files)
    watcher.start()
    replace(path, "2")
    assert changed.wait(PATIENCE_SECONDS)
    watcher.stop()
    assert files.value == 2


def test_a_bug_in_one_file_does_not_end_the_watcher(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("1")
    changed = threading.Event()

    def bug(_: int) -> None:
        raise RuntimeError("a bug")

    watcher = Watcher(seconds=0.01)
    first, second = (WatchedFiles([each], number, field="tokens") for each in (path, other))
    first.on_change, second.on_change = bug, lambda _: changed.set()
    watcher.add(first)
    watcher.add(second)
    watcher.start()
    replace(path, "2")
    replace(other, "2")
    assert changed.wait(PATIENCE_SECONDS)
    watcher.stop()


def test_a_watcher_without_files_has_no_thread() -> None:
    watcher = Watcher()
    watcher.start()
    watcher.stop()
    assert "headrace-files" not in [each.name for each in threading.enumerate()]
