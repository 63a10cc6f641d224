"""Regions are what their owners may use, within bounds, for as long as a request uses them."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.runtime.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from headrace.server.shared_memory.bounds import MAX_REGIONS
from headrace.server.shared_memory.lease import INLINE_BYTES, Lease, RegionTooSmall
from headrace.server.shared_memory.region import Region, RegionStatus
from headrace.server.shared_memory.regions import Regions, UnknownRegion
from headrace.server.shared_memory.users import Caller
from headrace.testing.occupied import eventually

MIB = 1 << 20
ME = Caller(os.getuid(), "ipv4:127.0.0.1:5000")
NEIGHBOUR = Caller(os.getuid() + 1, "ipv4:127.0.0.1:5001")
FAR = Caller(None, "ipv4:10.0.0.1:5000")


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Regions]:
    before = open_files(tmp_path)
    made = Regions(allowed=True, max_bytes=64 * MIB, folder=str(tmp_path))
    yield made
    made.close()
    # A thread closes the large ones.
    eventually(lambda: open_files(tmp_path) == before, "the end of all descriptors")


def open_files(folder: Path) -> int:
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            count += str(each.readlink()).startswith(str(folder))
    return count


def make(folder: Path, name: str, data: bytes | int) -> Path:
    path = folder / name
    if isinstance(data, bytes):
        path.write_bytes(data)
    else:
        path.touch()
        os.truncate(path, data)
    return path


def read(regions: Regions, name: str, offset: int, size: int, caller: Caller = ME) -> bytes:
    async def run() -> bytes:
        with Lease(regions, caller) as lease:
            return (await lease.read(name, offset, size, "inputs['x']")).tobytes()

    return asyncio.run(run())


def write(regions: Regions, name: str, offset: int, room: int, data: np.ndarray) -> None:
    async def run() -> None:
        with Lease(regions, ME) as lease:
            await lease.write(name, offset, room, data, "output_regions['y']")

    asyncio.run(run())


# ---- what may be registered ----


def test_a_registered_part_of_a_file_is_read_and_written(regions: Regions, tmp_path: Path) -> None:
    path = make(tmp_path, "seg", bytes(range(100)))
    regions.register(ME, "r", "/seg", 10, 80)
    assert read(regions, "r", 5, 3) == bytes([15, 16, 17])
    write(regions, "r", 0, 8, np.array([1.0, 2.0], np.float32))
    assert path.read_bytes()[10:18] == np.array([1.0, 2.0], np.float32).tobytes()
    assert regions.status(ME) == [RegionStatus("r", "/seg", 10, 80)]


def test_a_key_is_taken_with_and_without_its_slash(regions: Regions, tmp_path: Path) -> None:
    make(tmp_path, "seg", b"ab")
    regions.register(ME, "with", "/seg", 0, 2)
    regions.register(ME, "without", "seg", 0, 2)
    assert read(regions, "with", 0, 2) == read(regions, "without", 0, 2) == b"ab"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "//seg",
        "/../seg",
        "../seg",
        "..",
        ".",
        "/dir/seg",
        "seg/",
        "/sem.lock",
        "a\0b",
        "x" * 256,
        "é" * 200,
        "/proc/self/mem",
    ],
)
def test_a_key_is_one_name_in_one_folder(regions: Regions, tmp_path: Path, key: str) -> None:
    make(tmp_path, "seg", b"abc")
    make(tmp_path, "sem.lock", b"abc")
    (tmp_path / "dir").mkdir()
    make(tmp_path / "dir", "seg", b"abc")
    with pytest.raises(InvalidArgument) as raised:
        regions.register(ME, "r", key, 0, 1)
    assert raised.value.field == "key"
    assert not regions.status(ME)


def test_links_are_not_followed(regions: Regions, tmp_path: Path) -> None:
    make(tmp_path, "seg", b"abc")
    (tmp_path / "link").symlink_to("seg")
    with pytest.raises(InvalidArgument, match="regular file"):
        regions.register(ME, "r", "/link", 0, 1)


def test_a_folder_a_fifo_and_a_socket_are_refused_at_once(regions: Regions, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("folder", "fifo", "socket"):
            with pytest.raises(InvalidArgument, match="regular file"):
                regions.register(ME, "r", name, 0, 1)


def test_a_file_that_its_owner_holds_a_lease_on_does_not_keep_the_server_waiting(
    regions: Regions, tmp_path: Path
) -> None:
    make(tmp_path, "seg", b"abc")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # it tells the holder, and would end it
    with (tmp_path / "seg").open("r+b") as held:
        try:
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"no leases on this file system: {error}")
        with pytest.raises(InvalidArgument, match="cannot be used"):
            regions.register(ME, "r", "seg", 0, 1)
    signal.signal(signal.SIGIO, before)


def test_a_file_that_is_not_there_is_not_found(regions: Regions) -> None:
    with pytest.raises(NotFound, match="containers have one each"):
        regions.register(ME, "r", "/absent", 0, 1)


def test_the_file_has_to_belong_to_the_client_s_own_user(regions: Regions, tmp_path: Path) -> None:
    make(tmp_path, "seg", b"secret")
    with pytest.raises(FailedPrecondition, match="another user"):
        regions.register(NEIGHBOUR, "r", "/seg", 0, 6)


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes files of other users")
def test_not_even_root_gets_at_another_user_s_file(regions: Regions, tmp_path: Path) -> None:
    os.chown(make(tmp_path, "seg", b"secret"), 12345, 12345)
    with pytest.raises(FailedPrecondition, match="another user"):
        regions.register(Caller(0, ME.peer), "r", "/seg", 0, 6)
    regions.register(Caller(12345, ME.peer), "r", "/seg", 0, 6)


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, 101),
        (100, 1),
        (1, 100),
        (101, 1),
        (2**63, 1),
        (0, 2**63),
        (2**63 - 1, 2**63),
        (2**64 - 1, 2**64 - 1),
        (0, 0),
        (100, 0),
        (-1, 10),
    ],
)
def test_a_region_lies_within_its_file(
    regions: Regions, tmp_path: Path, offset: int, size: int
) -> None:
    make(tmp_path, "seg", bytes(100))
    with pytest.raises(InvalidArgument) as raised:
        regions.register(ME, "r", "/seg", offset, size)
    assert raised.value.field == "byte_size"


def test_a_name_in_use_is_not_given_away_until_it_is_unregistered(
    regions: Regions, tmp_path: Path
) -> None:
    make(tmp_path, "seg", b"abcd")
    regions.register(ME, "r", "/seg", 0, 4)
    with pytest.raises(AlreadyExists, match="unregister it first"):
        regions.register(ME, "r", "/seg", 1, 2)
    assert regions.status(ME, "r") == [RegionStatus("r", "/seg", 0, 4)]
    asyncio.run(regions.unregister(ME, "r"))
    regions.register(ME, "r", "/seg", 1, 2)
    assert read(regions, "r", 0, 2) == b"bc"


def test_names_are_bounded(regions: Regions, tmp_path: Path) -> None:
    make(tmp_path, "seg", b"abcd")
    for name in ("", "n" * 257):
        with pytest.raises(InvalidArgument, match="256 characters"):
            regions.register(ME, name, "/seg", 0, 4)


def test_nothing_is_registered_or_used_when_shared_memory_is_off(tmp_path: Path) -> None:
    make(tmp_path, "seg", b"abcd")
    off = Regions(allowed=False, max_bytes=MIB, folder=str(tmp_path))
    with pytest.raises(FailedPrecondition, match="--allow-client-shared-memory"):
        off.register(ME, "r", "/seg", 0, 4)
    with pytest.raises(FailedPrecondition, match="--allow-client-shared-memory"):
        Lease(off, ME).use("r", 0, 4, "x")
    assert off.status(ME) == []
    asyncio.run(off.unregister(ME))


def test_a_client_of_another_machine_has_no_regions(regions: Regions, tmp_path: Path) -> None:
    make(tmp_path, "seg", b"abcd")
    regions.register(ME, "r", "/seg", 0, 4)
    for refused in (
        lambda: regions.register(FAR, "r", "/seg", 0, 4),
        lambda: read(regions, "r", 0, 4, FAR),
    ):
        with pytest.raises(FailedPrecondition, match="on the server's machine"):
            refused()
    assert regions.status(FAR) == []
    with pytest.raises(UnknownRegion):
        asyncio.run(regions.unregister(FAR, "r"))
    asyncio.run(regions.unregister(FAR))
    assert regions.status(ME), "nobody unregisters another's regions"


def test_each_user_has_names_of_its_own(regions: Regions, tmp_path: Path) -> None:
    make(tmp_path, "seg", b"abcd")
    regions.register(ME, "r", "/seg", 0, 4)
    with pytest.raises(UnknownRegion):
        read(regions, "r", 0, 1, NEIGHBOUR)
    with pytest.raises(UnknownRegion):
        regions.status(NEIGHBOUR, "r")
    with pytest.raises(UnknownRegion):
        asyncio.run(regions.unregister(NEIGHBOUR, "r"))
    asyncio.run(regions.unregister(NEIGHBOUR))
    assert read(regions, "r", 0, 1) == b"a"


def test_the_same_user_s_other_connection_uses_a_region(regions: Regions, tmp_path: Path) -> None:
    make(tmp_path, "seg", b"abcd")
    regions.register(ME, "r", "/seg", 0, 4)
    assert read(regions, "r", 0, 4, ME._replace(peer="ipv4:127.0.0.1:7777")) == b"abcd"


def test_one_connection_does_not_take_all_places(regions: Regions, tmp_path: Path) -> None:
    make(tmp_path, "seg", b"abcd")

    def fill() -> int:
        for number in range(MAX_REGIONS):
            try:
                regions.register(ME, f"r{number}", "/seg", 0, 4)
            except ResourceExhausted:
                return number
        raise AssertionError("no bound")

    taken = fill()
    assert MAX_REGIONS // 2 <= taken <= MAX_REGIONS // 2 + 1
    regions.register(NEIGHBOUR._replace(user=os.getuid()), "other", "/seg", 0, 4)
    asyncio.run(regions.unregister(ME))
    assert fill() == taken, "all places were given back"


def test_bytes_are_bounded(regions: Regions, tmp_path: Path) -> None:
    make(tmp_path, "seg", 1 << 30)
    with pytest.raises(ResourceExhausted, match="--max-shared-memory-bytes"):
        regions.register(ME, "r", "/seg", 0, 65 * MIB)
    regions.register(ME, "r", "/seg", 0, 64 * MIB)
    with pytest.raises(ResourceExhausted, match="--max-shared-memory-bytes"):
        regions.register(ME, "s", "/seg", 0, 1)
    asyncio.run(regions.unregister(ME, "r"))
    regions.register(ME, "s", "/seg", 0, 64 * MIB)


def test_a_file_that_was_deleted_does_not_keep_its_place(regions: Regions, tmp_path: Path) -> None:
    make(tmp_path, "seg", bytes(64 * MIB))
    regions.register(ME, "r", "/seg", 0, 64 * MIB)
    (tmp_path / "seg").unlink()
    make(tmp_path, "next", b"abcd")
    regions.register(ME, "s", "/next", 0, 4)
    assert [each.name for each in regions.status(ME)] == ["s"]
    # A thread closes the large one.
    eventually(lambda: open_files(tmp_path) == 1, "the end of the deleted file")


def test_files_of_many_regions_are_not_looked_at_each_time(
    regions: Regions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "seg", b"abcd")
    looks: list[Region] = []

    def look(region: Region) -> bool:
        looks.append(region)
        return False

    monkeypatch.setattr(Region, "is_deleted", look)
    for number in range(200):
        regions.register(ME, f"r{number}", "/seg", 0, 4)
    assert 200 < len(looks) < 20 * 200


# ---- what is read and written ----


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 81), (80, 1), (2**63, 1), (1, 2**63), (-1, 2), (2**64, 0), (5, -1)]
)
def test_no_byte_outside_of_a_region_is_touched(
    regions: Regions, tmp_path: Path, offset: int, size: int
) -> None:
    path = make(tmp_path, "seg", bytes(range(100)))
    regions.register(ME, "r", "/seg", 10, 80)
    with pytest.raises(InvalidArgument, match="'r' of 80 bytes") as raised:
        read(regions, "r", offset, size)
    assert raised.value.field == "inputs['x']"
    with pytest.raises(InvalidArgument, match="'r' of 80 bytes"):
        write(regions, "r", offset, size, np.zeros(0, np.uint8))
    assert path.read_bytes() == bytes(range(100))


def test_an_unknown_region_is_named(regions: Regions, tmp_path: Path) -> None:
    make(tmp_path, "seg", b"abcd")
    regions.register(ME, "input", "/seg", 0, 4)
    with pytest.raises(UnknownRegion, match="did you mean 'input'") as raised:
        read(regions, "inptu", 0, 1)
    assert raised.value.field == "inputs['x']"


def test_an_output_that_does_not_fit_says_what_it_needs(regions: Regions, tmp_path: Path) -> None:
    path = make(tmp_path, "seg", bytes(100))
    regions.register(ME, "r", "/seg", 0, 100)
    with pytest.raises(RegionTooSmall, match="takes 24 bytes, and 23 are left") as raised:
        write(regions, "r", 0, 23, np.ones(3))
    assert raised.value.metadata == {"bytes": "24"}
    assert path.read_bytes() == bytes(100)


def test_arrays_of_any_order_are_written_in_c_order(regions: Regions, tmp_path: Path) -> None:
    path = make(tmp_path, "seg", bytes(100))
    regions.register(ME, "r", "/seg", 0, 100)
    for array in (np.arange(6, dtype=np.int16).reshape(2, 3).T, np.array(7, np.int32)):
        write(regions, "r", 0, array.nbytes, array)
        assert path.read_bytes()[: array.nbytes] == array.tobytes()


def test_what_was_read_does_not_change_any_more(regions: Regions, tmp_path: Path) -> None:
    path = make(tmp_path, "seg", b"abcd")
    regions.register(ME, "r", "/seg", 0, 4)

    async def run() -> bytes:
        with Lease(regions, ME) as lease:
            array = await lease.read("r", 0, 4, "x")
            path.write_bytes(b"efgh")
            assert not array.flags.writeable
            return array.tobytes()

    assert asyncio.run(run()) == b"abcd"


@pytest.mark.parametrize("size", [1000, INLINE_BYTES + 1000])
def test_a_file_that_became_shorter_is_an_error_of_the_request(
    regions: Regions, tmp_path: Path, size: int
) -> None:
    path = make(tmp_path, "seg", size)
    regions.register(ME, "r", "/seg", 0, size)
    os.truncate(path, size - 1)
    with pytest.raises(InvalidArgument, match=f"'r' has become shorter: it holds {size - 1}"):
        read(regions, "r", 0, size)
    with pytest.raises(InvalidArgument, match="has become shorter"):
        write(regions, "r", 0, size, np.zeros(size, np.uint8))
    assert path.stat().st_size == size - 1, "the server makes no client's file longer"
    assert read(regions, "r", 0, size - 1) == bytes(size - 1)
    os.truncate(path, size)
    assert read(regions, "r", 0, size) == bytes(size)


def test_a_file_that_becomes_shorter_during_a_read_gives_no_foreign_bytes(
    regions: Regions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path, "seg", b"x" * 4096)
    regions.register(ME, "r", "/seg", 0, 4096)
    preadv = os.preadv

    def in_pieces(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        got = preadv(descriptor, [buffers[0][:1000]], offset)
        os.truncate(path, 1500)
        return got

    monkeypatch.setattr(os, "preadv", in_pieces)
    with pytest.raises(InvalidArgument, match="has become shorter: it holds 1500"):
        read(regions, "r", 0, 4096)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
def test_a_full_dev_shm_says_how_to_make_it_larger(
    regions: Regions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    make(tmp_path, "seg", bytes(100))
    regions.register(ME, "r", "/seg", 0, 100)

    def full(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ResourceExhausted, match="--shm-size"):
        write(regions, "r", 0, 100, np.zeros(100, np.uint8))


def test_the_bytes_that_requests_in_flight_read_are_bounded(
    regions: Regions, tmp_path: Path
) -> None:
    make(tmp_path, "seg", 40 * MIB)
    regions.register(ME, "r", "/seg", 0, 40 * MIB)

    async def run() -> None:
        with Lease(regions, ME) as first:
            await first.read("r", 0, 40 * MIB, "x")
            second = Lease(regions, ME)
            with pytest.raises(ResourceExhausted, match="--max-shared-memory-bytes"):
                await second.read("r", 0, 30 * MIB, "x")
            second.close()
        with Lease(regions, ME) as third:
            await third.read("r", 0, 40 * MIB, "x")

    asyncio.run(run())


# ---- leases ----


def test_an_unregister_waits_for_the_requests_that_use_the_region(
    regions: Regions, tmp_path: Path
) -> None:
    make(tmp_path, "seg", b"abcd")

    async def run() -> None:
        regions.register(ME, "r", "/seg", 0, 4)
        first, second = Lease(regions, ME), Lease(regions, ME)
        for lease in (first, second):
            await lease.read("r", 0, 4, "x")
        gone = asyncio.create_task(regions.unregister(ME, "r"))
        await asyncio.sleep(0)
        with pytest.raises(UnknownRegion):
            await Lease(regions, ME).read("r", 0, 4, "x")
        assert (await first.read("r", 1, 2, "x")).tobytes() == b"bc", "it goes on using it"
        first.close()
        await asyncio.sleep(0)
        assert not gone.done()
        second.close()
        await gone
        assert open_files(tmp_path) == 0

    asyncio.run(run())


def test_an_unregister_that_is_given_up_has_taken_the_name_away(
    regions: Regions, tmp_path: Path
) -> None:
    make(tmp_path, "seg", b"abcd")

    async def run() -> None:
        regions.register(ME, "r", "/seg", 0, 4)
        with Lease(regions, ME) as lease:
            lease.use("r", 0, 4, "x")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(regions.unregister(ME, "r"), 0.001)
            assert regions.status(ME) == []
            regions.register(ME, "r", "/seg", 1, 2)
        assert open_files(tmp_path) == 1

    asyncio.run(run())


def test_unregistering_all_takes_all_of_one_user(regions: Regions, tmp_path: Path) -> None:
    make(tmp_path, "seg", b"abcd")

    async def run() -> None:
        for name in "abc":
            regions.register(ME, name, "/seg", 0, 4)
        with Lease(regions, ME) as lease:
            lease.use("b", 0, 4, "x")
            gone = asyncio.create_task(regions.unregister(ME))
            await asyncio.sleep(0)
            assert regions.status(ME) == []
            assert not gone.done()
        await gone
        assert open_files(tmp_path) == 0

    asyncio.run(run())


def test_a_read_that_was_given_up_keeps_the_file_open_until_it_has_ended(
    regions: Regions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would read from whatever gets the descriptor next."""
    make(tmp_path, "seg", 2 * INLINE_BYTES)
    reads = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        started, may_go_on = asyncio.Event(), asyncio.Event()
        preadv = os.preadv

        def slow(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            loop.call_soon_threadsafe(started.set)
            asyncio.run_coroutine_threadsafe(may_go_on.wait(), loop).result()
            reads.append(Path(f"/proc/self/fd/{descriptor}").readlink())
            return preadv(descriptor, buffers, offset)

        monkeypatch.setattr(os, "preadv", slow)
        regions.register(ME, "r", "/seg", 0, 2 * INLINE_BYTES)
        lease = Lease(regions, ME)
        reading = asyncio.create_task(lease.read("r", 0, 2 * INLINE_BYTES, "x"))
        await started.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        lease.close()
        gone = asyncio.create_task(regions.unregister(ME, "r"))
        await asyncio.sleep(0)
        assert not gone.done()
        may_go_on.set()
        await gone

    asyncio.run(run())
    assert reads == [tmp_path / "seg"]


def test_a_large_copy_does_not_hold_the_event_loop(regions: Regions, tmp_path: Path) -> None:
    """Nor do many small ones of one request."""
    make(tmp_path, "seg", 2 * INLINE_BYTES)

    async def run() -> tuple[int, int]:
        regions.register(ME, "r", "/seg", 0, 2 * INLINE_BYTES)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        with Lease(regions, ME) as lease:
            await lease.read("r", 0, INLINE_BYTES, "x")
            small = turns
            await lease.read("r", 0, 1, "x")
        counting.cancel()
        return small, turns

    small, large = asyncio.run(run())
    assert small == 0
    assert large > 0


# ---- all of it ----


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_regions_read_and_write_what_their_files_hold(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Overlapping regions of one file, against a model of it in memory; its length changes."""
    folder = tmp_path_factory.mktemp("shm")
    number = st.one_of(st.integers(-2, 70), st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64]))
    length = data.draw(st.integers(1, 64))
    model = bytearray(data.draw(st.binary(min_size=length, max_size=length)))
    path = make(folder, "seg", bytes(model))
    regions = Regions(allowed=True, max_bytes=MIB, folder=str(folder))
    known: dict[str, tuple[int, int]] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from("ab"))
        action = data.draw(st.sampled_from(["register", "unregister", "read", "write", "truncate"]))
        offset, size = data.draw(number), data.draw(number)
        try:
            if action == "register":
                regions.register(ME, name, "/seg", offset, size)
                assert name not in known
                assert offset >= 0 < size <= len(model) - offset
                known[name] = offset, size
            elif action == "unregister":
                asyncio.run(regions.unregister(ME, name))
                known.pop(name)
            elif action == "truncate":
                length = data.draw(st.integers(0, 70))
                os.truncate(path, length)
                model = bytearray(model[:length].ljust(length, b"\0"))
            else:
                if action == "read":
                    got = read(regions, name, offset, size)
                else:
                    got = bytes(data.draw(st.binary(min_size=max(size, 0) % 80, max_size=80)))
                    write(regions, name, offset, size, np.frombuffer(got, np.uint8))
                start, bound = known[name]
                assert offset >= 0 <= size <= bound - offset
                end = start + offset + len(got)
                assert end <= len(model) or not got
                if action == "read":
                    assert len(got) == size
                    assert got == bytes(model[start + offset : end])
                else:
                    model[start + offset : end] = got
        except UnknownRegion:
            assert name not in known
        except (InvalidArgument, AlreadyExists):
            pass  # what was right is held against the model above
        assert path.read_bytes() == bytes(model)
        assert {each.name: (each.offset, each.byte_size) for each in regions.status(ME)} == known
    regions.close()
