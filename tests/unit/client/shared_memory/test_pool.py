"""Segments are few, lent to one request at a time, and gone when nobody wants them."""

from __future__ import annotations

import fcntl
import gc
import os
from pathlib import Path

import pytest

from headrace.client.shared_memory import pool as module
from headrace.client.shared_memory.pool import MAX_SEGMENTS, RegionPool
from headrace.client.shared_memory.segment import FOLDER, PREFIX, ClientSegment, NamedSegment, sweep

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder like /dev/shm, on a file system that has files without names."""
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR))
    except OSError as error:
        pytest.skip(str(error))
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def made(pool: RegionPool, size: int) -> ClientSegment:
    segment = pool.make(size)
    assert segment is not None
    return segment


def test_a_segment_is_lent_to_one_at_a_time(folder: Path) -> None:
    pool = RegionPool(folder)
    segment = made(pool, 100)
    assert pool.take(100) is None, "it is not registered yet"
    pool.give(segment)
    assert pool.take(100) is segment
    assert pool.take(100) is None
    pool.give(segment)
    assert pool.take(segment.size + 1) is None
    assert pool.close() == [segment.name]
    assert names(folder) == set()


def test_of_segments_that_fit_alike_the_one_used_last_is_lent(folder: Path) -> None:
    pool = RegionPool(folder)
    segments = [made(pool, 100) for _ in range(3)]
    for each in segments:
        pool.give(each)
    assert pool.take(100) is segments[2]
    pool.give(segments[2])
    assert pool.take(100) is segments[2]
    assert pool.take(100) is segments[1]
    pool.close()


def test_the_smallest_segment_that_fits_is_lent(folder: Path) -> None:
    pool = RegionPool(folder)
    small, large = made(pool, MIB), made(pool, 4 * MIB)
    pool.give(large)
    pool.give(small)
    assert pool.take(MIB) is small
    pool.close()


def test_a_segment_takes_the_place_of_one_that_has_become_too_small(folder: Path) -> None:
    pool = RegionPool(folder)
    pool.give(made(pool, MIB))
    pool.give(made(pool, 4 * MIB))
    assert len(names(folder)) == 1
    pool.close()


def test_what_was_dropped_never_comes_back(folder: Path) -> None:
    pool = RegionPool(folder)
    segment = made(pool, 100)
    pool.drop(segment)
    assert names(folder) == set()
    pool.give(segment)
    assert pool.take(1) is None
    segment.memory[:] = 7  # who still has it may use it
    assert pool.close() == [segment.name], "the server may know it"


def test_there_are_only_so_many_segments(folder: Path) -> None:
    pool = RegionPool(folder)
    lent = [made(pool, 100) for _ in range(MAX_SEGMENTS)]
    assert pool.make(100) is None
    assert pool.may_grow, "some may come back"
    pool.drop(lent.pop())
    lent.append(made(pool, 100))
    pool.give(lent.pop())
    lent.append(made(pool, 2 * MIB))
    assert len(names(folder)) == MAX_SEGMENTS
    pool.close()


def test_there_are_only_so_many_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 8 * MIB)
    pool = RegionPool(folder)
    assert pool.make(9 * MIB) is None
    first = made(pool, 5 * MIB)
    assert pool.make(4 * MIB) is None
    pool.give(first)
    made(pool, 6 * MIB)
    assert len(names(folder)) == 1
    pool.close()
    assert pool.make(1) is None


def test_a_full_folder_is_left_alone_for_a_while(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    now = 0.0
    pool = RegionPool(folder, clock=lambda: now)
    segment = made(pool, 100)
    with monkeypatch.context() as context:
        context.setattr(os, "posix_fallocate", full)
        assert pool.make(100) is None
    assert pool.make(100) is None, "room is not looked for again at once"
    pool.give(segment)
    assert pool.take(100) is segment, "what there is stays in use"
    assert names(folder) == {segment.name}
    now = module.PAUSE_SECONDS
    assert made(pool, 100) is not segment
    pool.close()


def test_a_machine_without_dev_shm_has_no_segments(tmp_path: Path) -> None:
    pool = RegionPool(tmp_path / "absent")
    assert pool.make(100) is None
    assert not pool.may_grow


def test_a_pool_that_nobody_refers_to_leaves_nothing(folder: Path) -> None:
    pool = RegionPool(folder)
    made(pool, 100)
    del pool
    gc.collect()
    assert names(folder) == set()


def test_only_segments_whose_makers_are_gone_are_swept(folder: Path) -> None:
    living = NamedSegment(100, folder)
    left = folder / f"{PREFIX}left"
    left.write_bytes(b"x")
    other = folder / "somebody-else-s"
    other.write_bytes(b"x")
    (folder / f"{PREFIX}link").symlink_to(other)
    (folder / f"{PREFIX}folder").mkdir()
    os.mkfifo(folder / f"{PREFIX}fifo")
    assert sweep(folder) >= 1
    assert not left.exists()
    assert other.exists()
    assert living.name in names(folder)
    living.remove()


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes files of other users")
def test_segments_of_other_users_are_not_swept(folder: Path) -> None:
    path = folder / f"{PREFIX}theirs"
    path.write_bytes(b"x")
    os.chown(path, 12345, 12345)
    assert sweep(folder) == 0
    assert path.exists()


def test_a_segment_has_its_name_only_once_it_is_locked() -> None:
    segment = NamedSegment(100)
    path = FOLDER / segment.name
    with path.open("r+b") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert path.stat().st_mode & 0o777 == 0o600
    segment.remove()
    segment.remove()
    assert not path.exists()
