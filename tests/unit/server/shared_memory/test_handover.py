"""The side socket: hostile clients get errors, and memory goes with its connection."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.ipc.link import Disconnected
from headrace.runtime.execution.job import Job
from headrace.server.access.identity import ANONYMOUS
from headrace.server.shared_memory import handover as module
from headrace.server.shared_memory.bounds import MAX_REGIONS
from headrace.server.shared_memory.handover import SUFFIX, HandoverSocket
from headrace.server.shared_memory.lease import Lease
from headrace.server.shared_memory.regions import Regions, UnknownRegion
from headrace.server.shared_memory.users import Caller
from headrace.testing.occupied import eventually
from tests.support.memory import PAGE, memfd, open_files
from tests.support.patience import PATIENCE_SECONDS
from tests.support.side_socket import SideClient, closed

MIB = 1 << 20
LOCAL = Caller(None, "unix:")


@asynccontextmanager
async def serving(folder: Path, regions: Regions) -> AsyncIterator[Path]:
    handover = HandoverSocket(regions, None)
    path = folder / "h.sock"
    handover.listen(f"{path}{SUFFIX}")
    handover.start()
    try:
        yield path
    finally:
        await handover.close()


def run(folder: Path, test: Callable[[Path, Regions], Awaitable[None]], bytes_: int = MIB) -> None:
    """Runs a test with a side socket. Afterwards no descriptor is left."""

    async def within() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            regions = Regions(allowed=True, max_bytes=bytes_)
            async with serving(folder, regions) as path:
                await test(path, regions)
            regions.close()

    before = len(open_files())
    asyncio.run(within())
    # A thread closes what was refused.
    eventually(lambda: len(open_files()) == before, "the end of all descriptors")


async def apart(call: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(call, *arguments)


async def until(condition: Callable[[], bool]) -> None:
    """`run` bounds the wait."""
    while not condition():
        await asyncio.sleep(0.001)


def known(regions: Regions, name: str, caller: Caller = LOCAL) -> bool:
    try:
        with Lease(regions, caller) as lease:
            lease.use(name, 0, 1, "inputs['x']")
    except UnknownRegion:
        return False
    return True


def test_requests_name_memory_until_its_connection_ends(short_folder: Path) -> None:
    async def test(path: Path, regions: Regions) -> None:
        with SideClient(path) as client:
            assert await apart(client.hello) == {}
            name = await apart(client.hand_over, memfd(PAGE, data=b"data"))
            with Lease(regions, LOCAL) as lease:
                assert (await lease.read(name, 0, 4, "inputs['x']")).tobytes() == b"data"
            assert regions.status(Caller(os.getuid(), "ipv4:127.0.0.1:1")) == [], "it is a secret"
        await until(lambda: not known(regions, name))

    run(short_folder, test)


def test_memory_belongs_to_the_identity_that_has_handed_it_over(short_folder: Path) -> None:
    async def test(path: Path, regions: Regions) -> None:
        with SideClient(path) as client:
            await apart(client.hello)
            name = await apart(client.hand_over, memfd(PAGE))
            assert known(regions, name, LOCAL._replace(identity=ANONYMOUS.name))
            assert not known(regions, name, LOCAL._replace(identity="token:other"))

    run(short_folder, test)


def test_memory_in_use_is_taken_back_when_its_requests_have_ended(short_folder: Path) -> None:
    async def test(path: Path, regions: Regions) -> None:
        with SideClient(path) as client:
            await apart(client.hello)
            name = await apart(client.hand_over, memfd(PAGE, data=b"data"))
            with Lease(regions, LOCAL) as lease:
                lease.use(name, 0, 4, "inputs['x']")
                client.send({"id": "back", "take_back": name})
                await until(lambda: not known(regions, name))
                other = await apart(client.hand_over, memfd(PAGE))  # is answered before
                assert (await lease.read(name, 0, 4, "inputs['x']")).tobytes() == b"data"
            assert await apart(client.receive) == {"id": "back"}
            assert known(regions, other)
            again = await apart(client.ask, {"id": 3, "take_back": name})
            assert again["error"]["code"] == "NOT_FOUND"

    run(short_folder, test)


def test_memory_in_use_stays_when_its_client_is_gone(short_folder: Path) -> None:
    async def test(path: Path, regions: Regions) -> None:
        with SideClient(path) as client:
            await apart(client.hello)
            name = await apart(client.hand_over, memfd(PAGE, data=b"data"))
            lease = Lease(regions, LOCAL)
            lease.use(name, 0, 4, "inputs['x']")
        await until(lambda: not known(regions, name))
        with lease:
            assert (await lease.read(name, 0, 4, "inputs['x']")).tobytes() == b"data"

    run(short_folder, test)


def test_memory_is_not_taken_back_while_a_run_goes_on_that_its_caller_has_left(
    short_folder: Path,
) -> None:
    async def test(path: Path, regions: Regions) -> None:
        with SideClient(path) as client:
            await apart(client.hello)
            name = await apart(client.hand_over, memfd(PAGE, data=b"data"))
            with Lease(regions, LOCAL) as lease:
                region = lease.use(name, 0, 4, "inputs['x']")
                lease.hold()
            client.send({"id": "back", "take_back": name})
            await until(lambda: not known(regions, name))
            assert region.uses == 1
            job = Job({"x": region.read(0, 4, "")}, lambda _: None)
            job.room = {}
            job.complete()
            lease.job = job
            lease.close()
            assert await apart(client.receive) == {"id": "back"}
            assert not job.inputs  # a stream's thread may refer to the job for long

    run(short_folder, test)


def test_another_connection_cannot_take_memory_back(short_folder: Path) -> None:
    async def test(path: Path, regions: Regions) -> None:
        with SideClient(path) as client, SideClient(path) as other:
            await apart(client.hello)
            await apart(other.hello)
            name = await apart(client.hand_over, memfd(PAGE))
            answer = await apart(other.ask, {"take_back": name})
            assert answer["error"]["code"] == "NOT_FOUND"
            assert known(regions, name)

    run(short_folder, test)


def test_a_wrong_descriptor_is_refused_and_the_connection_goes_on(short_folder: Path) -> None:
    async def test(path: Path, regions: Regions) -> None:
        with SideClient(path) as client:
            await apart(client.hello)
            ends = os.pipe()
            for wrong in (ends[0], ends[1], client.socket.fileno()):
                answer = await apart(client.ask, {"id": 7}, wrong)
                assert (answer["id"], answer["error"]["code"]) == (7, "INVALID_ARGUMENT")
            closed(ends)
            for message in ({"id": 8}, {"id": 8, "take_back": 3}):
                answer = await apart(client.ask, message)
                assert answer["error"]["field"] == "descriptor"
            assert known(regions, await apart(client.hand_over, memfd(PAGE)))

    run(short_folder, test)


@pytest.mark.parametrize("count", [2, 3, 200])
def test_too_many_descriptors_end_the_connection(short_folder: Path, count: int) -> None:
    async def test(path: Path, regions: Regions) -> None:
        with SideClient(path) as client:
            await apart(client.hello)
            own = memfd(PAGE)
            assert await apart(client.ask, {"id": 7}, *[own] * count) is None
            os.close(own)

    run(short_folder, test)


def frame(text: bytes) -> bytes:
    """A message with one descriptor."""
    return struct.pack("<4sIIB3x", b"hrw2", len(text), 0, 1) + text


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frame(b""),
        frame(b"\xff"),
        frame(b"[1]"),
        frame(b"{"),
        frame(b"[" * 8000),
        frame(b'{"id": "' + b"x" * (20 << 10) + b'"}'),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_bytes_that_break_the_protocol_end_the_connection(
    short_folder: Path, data: bytes, first: bool
) -> None:
    async def test(path: Path, regions: Regions) -> None:
        with SideClient(path) as client:
            if not first:
                await apart(client.hello)
            own = memfd(PAGE)
            assert await apart(client.ask, data, own) is None
            os.close(own)

    run(short_folder, test)


def test_a_client_that_says_nothing_loses_its_place(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELLO_SECONDS", 0.01)

    async def test(path: Path, regions: Regions) -> None:
        with SideClient(path) as client:
            assert await apart(client.receive) is None

    run(short_folder, test)


def test_a_client_that_does_not_read_its_answers_is_left(short_folder: Path) -> None:
    async def test(path: Path, regions: Regions) -> None:
        with SideClient(path) as client:
            await apart(client.hello)

            def flood() -> None:
                while True:
                    client.send({"id": "x" * 8000})

            with pytest.raises(Disconnected):
                await apart(flood)

    run(short_folder, test)


def test_one_process_leaves_places_for_others(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 4)

    async def test(path: Path, regions: Regions) -> None:
        clients = [SideClient(path) for _ in range(4)]
        said = [await apart(_hello, client) for client in clients]
        assert said == [{}, {}, {}, None], "a place is left for another process"
        clients[said.index({})].socket.close()
        while True:  # until the server has seen the end
            with SideClient(path) as client:
                if await apart(_hello, client) == {}:
                    break
        for each in clients:
            each.socket.close()

    run(short_folder, test)


def test_bytes_and_regions_are_bounded(short_folder: Path) -> None:
    async def test(path: Path, regions: Regions) -> None:
        with SideClient(path) as client:
            await apart(client.hello)
            own = memfd(2 * MIB)
            answer = await apart(client.ask, {}, own)
            os.close(own)
            assert answer["error"]["code"] == "RESOURCE_EXHAUSTED"
            own, taken = memfd(PAGE), 0
            while "region" in (answer := await apart(client.ask, {}, own)):
                taken += 1
            os.close(own)
            assert 0 < taken < min(MAX_REGIONS, MIB // PAGE), "the rest is for other processes"
            assert answer["error"]["code"] == "RESOURCE_EXHAUSTED"

    run(short_folder, test)


def test_a_descriptor_that_cannot_be_closed_makes_nobody_wait(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system of the client's own may let the closing thread wait for ever."""
    stuck, close = asyncio.Event(), os.close
    loops: list[asyncio.AbstractEventLoop] = []

    def hang(descriptor: int) -> None:
        asyncio.run_coroutine_threadsafe(stuck.wait(), loops[0]).result(PATIENCE_SECONDS)
        close(descriptor)

    async def test(path: Path, regions: Regions) -> None:
        loops.append(asyncio.get_running_loop())
        monkeypatch.setattr(module, "os", SimpleNamespace(close=hang))
        ends = socket.socketpair()
        with SideClient(path) as client, SideClient(path) as other:
            await apart(client.hello)
            await apart(other.hello)
            answers = 0
            while await apart(client.ask, {}, ends[0].fileno()) is not None:
                answers += 1
            assert 0 < answers <= 2 * module.MAX_UNCLOSED
            with SideClient(path) as late:
                assert await apart(_hello, late) is None, "no further connection is taken"
            own = memfd(PAGE)
            answer = await apart(other.ask, {}, own)
            assert known(regions, answer["region"]), "open connections go on"
            stuck.set()
            monkeypatch.undo()
            os.close(own)
        for each in ends:
            each.close()

    run(short_folder, test)


def test_the_process_and_the_user_of_a_client_are_the_kernel_s_words() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        found = ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    assert module._CREDENTIALS.unpack(found) == (os.getpid(), os.getuid(), os.getgid())
    assert struct.calcsize("iII") == 12


def _hello(client: SideClient) -> Any:
    try:
        return client.hello()
    except Disconnected:
        return None
