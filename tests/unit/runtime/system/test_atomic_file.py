from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.runtime.system.atomic_file import (
    lock_file,
    read_file,
    remove_file,
    remove_leftovers,
    write_file,
)
from tests.support.child import Child

WRITER_THAT_STOPS_HALF_WAY = """
import sys
from pathlib import Path
from headrace.runtime.system.atomic_file import write_file

def pieces():
    yield b"half"
    print("writing", flush=True)
    sys.stdin.read()

write_file(Path(sys.argv[1]), pieces())
"""


@pytest.fixture
def half_way(tmp_path: Path) -> Iterator[Child]:
    with Child(WRITER_THAT_STOPS_HALF_WAY, tmp_path / "file") as writer:
        assert writer.line() == "writing"
        yield writer


def test_what_was_written_is_there_and_nothing_else(tmp_path: Path) -> None:
    write_file(tmp_path / "whole", b"all at once")
    write_file(tmp_path / "pieces", iter([b"piece", b" by ", b"piece"]))
    assert (tmp_path / "whole").read_bytes() == b"all at once"
    assert (tmp_path / "pieces").read_bytes() == b"piece by piece"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_is_for_its_owner_alone_unless_told_otherwise(tmp_path: Path) -> None:
    write_file(tmp_path / "private", b"")
    write_file(tmp_path / "public", b"", mode=0o644)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o644


def test_writing_again_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    write_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_file_that_is_there_can_be_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old", replace=False)
    with pytest.raises(FileExistsError):
        write_file(path, b"new", replace=False)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_fails_half_way_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("no more")

    path = tmp_path / "file"
    write_file(path, b"old")
    with pytest.raises(RuntimeError, match="no more"):
        write_file(path, pieces())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_long_name_leaves_room_for_the_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127)
    write_file(path, b"x")
    assert path.read_bytes() == b"x"


def test_the_leftover_of_a_killed_writer_is_removed(tmp_path: Path, half_way: Child) -> None:
    half_way.kill()
    (leftover,) = tmp_path.iterdir()
    assert remove_leftovers(tmp_path) == [leftover]
    assert list(tmp_path.iterdir()) == []


def test_the_temporary_file_of_a_living_writer_stays(tmp_path: Path, half_way: Child) -> None:
    assert remove_leftovers(tmp_path) == []
    assert half_way.finish() == 0
    assert (tmp_path / "file").read_bytes() == b"half"


def test_cleaning_goes_into_folders_and_leaves_other_files_alone(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    leftover = inner / ".file.0123.headrace-tmp"
    for path in (leftover, tmp_path / "file", tmp_path / ".hidden"):
        path.write_bytes(b"")
    assert remove_leftovers(tmp_path) == [leftover]
    assert sorted(os.listdir(tmp_path)) == [".hidden", "file", "inner"]  # noqa: PTH208 - names


def test_a_file_is_removed_and_a_missing_one_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"")
    remove_file(path)
    remove_file(path)
    assert not path.exists()


def test_only_a_regular_file_is_read_and_nothing_else_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.close()
    for other in (tmp_path / "pipe", tmp_path / "link", tmp_path / "socket", Path("/dev/zero")):
        with pytest.raises(OSError, match=r"not a regular file|No such device"):
            read_file(other)
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "other").symlink_to("file")
    assert read_file(tmp_path / "other") == b"content"


def test_a_lock_is_one_holder_s_until_it_is_given_back(tmp_path: Path) -> None:
    held = lock_file(tmp_path / "lock")
    with pytest.raises(BlockingIOError, match=f"process {os.getpid()}"):
        lock_file(tmp_path / "lock")
    os.close(held)
    os.close(lock_file(tmp_path / "lock"))
