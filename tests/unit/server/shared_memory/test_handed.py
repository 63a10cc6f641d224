"""Memory that clients hand over: what is taken, and that nothing they do to it ends the server."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.runtime.errors import FailedPrecondition, InvalidArgument
from headrace.server.shared_memory import handed
from headrace.server.shared_memory.handed import HandedRegion, check_memory, open_memory
from tests.support.memory import PAGE, memfd, open_files

MIB = 1 << 20


def file_like(folder: Path) -> int:
    descriptor = os.open(folder / "file", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    os.posix_fallocate(descriptor, 0, PAGE)
    return descriptor


def pipe_like(_: Path) -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def socket_like(_: Path) -> int:
    return socket.socket(socket.AF_UNIX).detach()


def write_only(_: Path) -> int:
    whole = memfd(PAGE)
    try:
        return os.open(f"/proc/self/fd/{whole}", os.O_WRONLY)
    finally:
        os.close(whole)


WRONG: dict[str, tuple[Callable[[Path], int], str]] = {
    "a file": (file_like, "not a memfd"),
    "a pipe": (pipe_like, "not a memfd"),
    "a socket": (socket_like, "not a memfd"),
    "a folder": (lambda path: os.open(path, os.O_RDONLY), "not a memfd"),
    "a path alone": (lambda path: os.open(path, os.O_PATH), "not a memfd"),
    "an unsealed memfd": (lambda _: memfd(PAGE, seals=0), "F_SEAL_SHRINK"),
    "one that may grow only": (lambda _: memfd(PAGE, seals=fcntl.F_SEAL_GROW), "F_SEAL_SHRINK"),
    "one without seals": (lambda _: os.memfd_create("x", os.MFD_CLOEXEC), "F_SEAL_SHRINK"),
    "an empty one": (lambda _: memfd(0), "is empty"),
    "one without pages": (lambda _: memfd(4 * PAGE, pages=PAGE), "no pages yet"),
    "one to write only": (write_only, "cannot be read"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_could_hurt_the_server_is_refused(kind: str, tmp_path: Path) -> None:
    make, said = WRONG[kind]
    descriptor = make(tmp_path)
    try:
        with pytest.raises(InvalidArgument, match=said) as refused:
            check_memory(descriptor)
        assert refused.value.field == "descriptor"
    finally:
        os.close(descriptor)


@pytest.fixture(params=["mapped", "by system calls"])
def mapped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether regions are mapped."""
    is_mapped: bool = request.param == "mapped"
    monkeypatch.setattr(handed, "_may_run_out", lambda: not is_mapped)
    return is_mapped


@pytest.fixture
def descriptor() -> Iterator[int]:
    """The client's own one. The server has a copy."""
    made = memfd(MIB)
    yield made
    os.close(made)


@pytest.fixture
def region(descriptor: int, mapped: bool) -> Iterator[HandedRegion]:
    before = len(open_files())
    opened = open_memory(os.dup(descriptor), "0 unix:1")
    assert (opened.memory is not None) == mapped
    yield opened
    opened.close()
    assert len(open_files()) == before


def test_what_was_read_does_not_change_any_more(region: HandedRegion, descriptor: int) -> None:
    """A check of the values holds for what the device reads."""
    os.pwrite(descriptor, b"good", 100)
    data = region.read(100, 4, "inputs['x']")
    os.pwrite(descriptor, b"evil", 100)
    assert data.tobytes() == b"good"
    assert not data.flags.writeable


def test_what_is_written_reaches_the_client(region: HandedRegion, descriptor: int) -> None:
    region.write(MIB - 3, np.frombuffer(b"abc", np.uint8), "output_regions['y']")
    assert os.pread(descriptor, 9, MIB - 3) == b"abc"


def test_the_client_cannot_make_it_shorter(region: HandedRegion, descriptor: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, PAGE)
    assert region.read(MIB - 1, 1, "inputs['x']").tobytes() == b"\0"


def test_memory_that_the_client_gives_back_reads_as_zeros(
    region: HandedRegion, descriptor: int
) -> None:
    region.write(0, np.ones(MIB, np.uint8), "output_regions['y']")
    with mmap.mmap(descriptor, MIB) as memory:
        memory.madvise(mmap.MADV_REMOVE)
    assert not region.read(0, MIB, "inputs['x']").any()


def test_it_stays_when_the_client_closes_it(mapped: bool) -> None:
    own = memfd(PAGE)
    os.pwrite(own, b"kept", 0)
    region = open_memory(os.dup(own), "0 unix:1")
    os.close(own)
    assert region.read(0, 4, "inputs['x']").tobytes() == b"kept"
    region.close()


@pytest.mark.parametrize("how", ["opened for reading", "sealed", "sealed for the future"])
def test_memory_for_reading_takes_no_outputs(mapped: bool, how: str) -> None:
    seals = {"sealed": fcntl.F_SEAL_WRITE, "sealed for the future": 0x10}.get(how, 0)
    own = memfd(PAGE, seals=fcntl.F_SEAL_SHRINK | seals, data=b"data")
    flags = os.O_RDONLY if how == "opened for reading" else os.O_RDWR
    try:
        copy = os.open(f"/proc/self/fd/{own}", flags) if not seals else os.dup(own)
    finally:
        os.close(own)
    region = open_memory(copy, "0 unix:1")
    assert region.read(0, 4, "inputs['x']").tobytes() == b"data"
    with pytest.raises(FailedPrecondition, match="for reading only"):
        region.write(0, np.zeros(1, np.uint8), "output_regions['y']")
    region.close()


def test_names_are_secrets() -> None:
    own = memfd(PAGE)
    regions = [open_memory(os.dup(own), "0 unix:1") for _ in range(2)]
    os.close(own)
    first, second = (each.name for each in regions)
    assert first != second
    assert len(bytes.fromhex(first.removeprefix(handed.PREFIX))) == 16
    for each in regions:
        each.close()
