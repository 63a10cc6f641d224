"""Shared memory is reused while it is wanted, bounded, and gone when nobody refers to it."""

from __future__ import annotations

import gc
import itertools
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ipc.link import Disconnected
from headrace.ipc.pool import SegmentPool
from headrace.ipc.segments import (
    Segment,
    SegmentTable,
    map_files,
    reserve_pages,
    rounded,
    write_file,
)

_KIB = 1024


def mapped() -> int:
    """Shared-memory mappings and descriptors of this process."""
    maps = Path("/proc/self/maps").read_text().count("headrace-")
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return maps + sum("headrace-" in link for link in links)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    gc.collect()
    before = mapped()
    yield
    gc.collect()
    assert mapped() == before


@pytest.fixture
def pool() -> Iterator[SegmentPool]:
    pool = SegmentPool(itertools.count(1), idle_bytes=512 * _KIB)
    yield pool
    pool.close()


def other_end(segment: Segment) -> Segment:
    assert segment.descriptor is not None
    return Segment.attach(segment.number, os.dup(segment.descriptor))


def test_both_ends_see_the_same_bytes(pool: SegmentPool) -> None:
    ours = pool.take(100)
    theirs = other_end(ours)
    ours.array[:3] = [1, 2, 3]
    assert theirs.array[:3].tolist() == [1, 2, 3]
    assert theirs.size == ours.size
    pool.give(ours)


def test_a_segment_that_came_back_is_taken_again(pool: SegmentPool) -> None:
    first = pool.take(100 * _KIB)
    pool.give(first)
    assert pool.take(100 * _KIB) is first
    other = pool.take(100 * _KIB)
    assert other is not first
    assert other.number != first.number
    pool.give(first)
    pool.give(other)


def test_a_small_request_does_not_take_a_large_segment(pool: SegmentPool) -> None:
    large = pool.take(500 * _KIB)
    pool.give(large)
    small = pool.take(10)
    assert small.size < large.size
    pool.give(small)


def test_an_array_keeps_its_segment_and_its_last_view_gives_it_back(pool: SegmentPool) -> None:
    segment = pool.take(100 * _KIB)
    array = pool.lend(segment)
    view = array[:40].view(np.float32).reshape(2, 5)
    del array
    gc.collect()
    assert pool.idle() == 0
    view[:] = 1.0
    del view
    assert pool.idle() == segment.size
    assert pool.take(100 * _KIB) is segment
    pool.give(segment)


def test_what_is_kept_for_reuse_is_bounded_and_the_worker_hears_of_the_rest(
    pool: SegmentPool,
) -> None:
    segments = [pool.take(200 * _KIB) for _ in range(4)]
    for segment in segments:
        segment.known()
        pool.give(segment)
    assert 0 < pool.idle() <= 512 * _KIB
    gone = pool.forgotten()
    assert gone == [each.number for each in segments[: len(gone)]]
    assert gone
    assert pool.forgotten() == []


def test_a_segment_that_the_worker_never_saw_needs_no_forgetting(pool: SegmentPool) -> None:
    pool.give(pool.take(100))
    pool.clear()
    assert pool.forgotten() == []
    assert pool.idle() == 0


def test_what_comes_back_after_clearing_is_not_kept_and_the_worker_hears_of_it(
    pool: SegmentPool,
) -> None:
    segment = pool.take(100)
    segment.known()
    array = pool.lend(segment)
    pool.clear()
    del array
    assert pool.idle() == 0
    assert pool.forgotten() == [segment.number]
    kept = pool.take(100)
    pool.give(kept)
    assert pool.idle() == kept.size


def test_an_array_outlives_its_pool() -> None:
    pool = SegmentPool(itertools.count(1))
    array = pool.lend(pool.take(100))
    pool.close()
    array[:] = 7
    assert array.sum() == 7 * array.size
    del array
    assert pool.idle() == 0


def test_a_segment_cannot_be_made_shorter_under_its_reader(pool: SegmentPool) -> None:
    segment = pool.take(100)
    assert segment.descriptor is not None
    with pytest.raises(PermissionError):
        os.ftruncate(segment.descriptor, 0)
    pool.give(segment)


def test_a_pool_whose_worker_has_gone_keeps_nothing_whoever_still_takes() -> None:
    pool = SegmentPool(itertools.count(1))
    pool.close()
    segment = pool.take(10)
    freed = weakref.ref(segment.array)
    pool.give(segment)
    del segment
    assert freed() is None


def test_memory_without_seals_is_refused() -> None:
    loose = os.memfd_create("headrace-loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, 4096)
    with pytest.raises(Disconnected, match="seals"):
        Segment.attach(1, os.dup(loose))
    with pytest.raises(Disconnected, match="seals"):
        map_files((os.dup(loose),))
    os.close(loose)
    reader, writer = os.pipe()
    with pytest.raises(Disconnected, match="cannot be mapped"):
        Segment.attach(1, reader)
    os.close(writer)


def test_the_worker_keeps_segments_until_it_is_told_to_forget(pool: SegmentPool) -> None:
    table = SegmentTable()
    segment = pool.take(10)
    table.add(other_end(segment))
    assert table.get(segment.number).size == segment.size
    table.forget([segment.number, 999])
    assert len(table) == 0
    with pytest.raises(Disconnected):
        table.get(segment.number)
    pool.give(segment)


@pytest.mark.parametrize("pieces", [(), (b"",), (b"abc", memoryview(b"def"), b"g" * 100_000)])
def test_bytes_go_through_a_file_that_nobody_can_change(
    pieces: tuple[bytes | memoryview, ...],
) -> None:
    with write_file(pieces) as file:
        (data,) = map_files((os.dup(file),))
        if data:
            with pytest.raises(PermissionError):
                os.write(file, b"x")
    assert bytes(data) == b"".join(pieces)


@given(st.integers(1, 2**40), st.sampled_from([64 * _KIB, 1024 * _KIB]))
def test_a_rounded_size_is_enough_and_not_much_more(size: int, smallest: int) -> None:
    found = rounded(size, smallest)
    assert size <= found < size + max(smallest, size // 4 + 1)
    assert rounded(found, smallest) == found


def test_a_segment_may_get_its_pages_later() -> None:
    segment = Segment.create(1, 2**20, reserve=False)
    assert segment.descriptor is not None
    assert os.fstat(segment.descriptor).st_blocks == 0
    reserve_pages(segment.descriptor, segment.size)
    assert os.fstat(segment.descriptor).st_blocks * 512 == segment.size == len(segment.array)
    segment.known()
