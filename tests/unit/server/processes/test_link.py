"""Two ends of one connection on one event loop, and an end whose other side is hostile."""

from __future__ import annotations

import asyncio
import os
import socket
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.runtime.isolation.wire.shared_memory import Segment
from headrace.server.processes import frames
from headrace.server.processes.frames import Broken, Frame
from headrace.server.processes.link import INLINE_BYTES, Link

MOST = 1 << 22
SECONDS = 60.0


class Side:
    """One end, and what came there."""

    def __init__(self, end: socket.socket) -> None:
        self.messages: list[tuple[int, int, bytes | None]] = []
        self.lost: list[str] = []
        self._changed = asyncio.Event()
        self.link = Link(end, self._take, self._lose, MOST)

    def _take(self, frame: Frame) -> None:
        if frame.kind != frames.MESSAGE:
            raise Broken(f"kind {frame.kind}")
        self.messages.append((frame.call, frame.kind, self.link.message(frame)))
        self._changed.set()

    def _lose(self, why: str) -> None:
        self.lost.append(why)
        self._changed.set()

    async def until_messages(self, count: int) -> None:
        await self.until(lambda: len(self.messages) == count)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Side, Side]]:
    ours, theirs = socket.socketpair()
    one, other = Side(ours), Side(theirs)
    try:
        yield one, other
    finally:
        one.link.close()
        other.link.close()


@asynccontextmanager
async def attacked() -> AsyncIterator[tuple[Side, socket.socket]]:
    """An end, and a socket that says anything to it."""
    ours, theirs = socket.socketpair()
    side = Side(ours)
    with theirs:
        try:
            yield side, theirs
        finally:
            side.link.close()


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 600_000, MOST])
def test_messages_of_any_size_arrive_in_order_in_both_directions(size: int) -> None:
    message = os.urandom(size)

    async def test() -> None:
        async with pair() as (one, other):
            for call in range(5):
                one.link.send_message(frames.MESSAGE, call, b"", message)
                other.link.send_message(frames.MESSAGE, call, b"", message)
            for side in (one, other):
                await side.until_messages(5)
                assert side.messages == [(call, frames.MESSAGE, message) for call in range(5)]
                assert not side.lost

    before = open_files()
    run(test)
    assert open_files() == before


def test_shared_memory_is_used_again_and_not_kept_by_the_reader() -> None:
    async def test() -> None:
        async with pair() as (one, other):
            for call in range(100):
                one.link.send_message(frames.MESSAGE, call, b"", bytes(100_000))
                await other.until_messages(call + 1)
            assert len(other.link._table) <= 3
            assert len(one.link._lent) <= 3

    run(test)


def test_what_waits_while_the_other_side_is_busy_goes_together() -> None:
    """A socket takes some hundred KB. The rest gathers until the reader reads, and nothing is lost
    and nothing overtakes."""

    async def test() -> None:
        ours, theirs = socket.socketpair()
        one = Side(ours)
        for call in range(2000):
            one.link.send_message(frames.MESSAGE, call, b"", call.to_bytes(4, "little") * 256)
            if call % 50 == 0:
                await asyncio.sleep(0)
        other = Side(theirs)
        await other.until_messages(2000)
        assert [call for call, _, _ in other.messages] == list(range(2000))
        assert all(
            message == call.to_bytes(4, "little") * 256 for call, _, message in other.messages
        )
        one.link.close()
        other.link.close()

    run(test)


def test_an_end_hears_once_that_the_other_has_gone() -> None:
    async def test() -> None:
        async with pair() as (one, other):
            one.link.send_message(frames.MESSAGE, 1, b"", b"last words")
            await asyncio.sleep(0)
            one.link.close()
            await other.until(lambda: other.lost)
            assert [message for _, _, message in other.messages] == [b"last words"]
            assert len(other.lost) == 1
            assert not one.lost
            other.link.send(frames.MESSAGE, 1)  # of no use, and no error
            await asyncio.sleep(0)

    run(test)


def shared(number: int, size: int, *, new: bool = True) -> bytes:
    body = frames.place(number, size)
    flags = frames.SHARED | (frames.NEW if new else 0)
    return frames.header(frames.MESSAGE, 1, len(body), flags) + body


def segment(size: int = 65536) -> int:
    """The descriptor of a proper segment."""
    made = Segment.create(1, size)
    assert made.descriptor is not None
    return made.descriptor


def unsealed() -> int:
    descriptor = os.memfd_create("unsealed")
    os.ftruncate(descriptor, 65536)
    return descriptor


@pytest.mark.parametrize(
    ("data", "descriptor"),
    [
        pytest.param(b"\xff" * 10, None, id="a frame without bounds"),
        pytest.param(frames.header(99, 1, 0), None, id="an unknown kind"),
        pytest.param(frames.header(frames.FREE, 7, 0), None, id="a segment that was not lent"),
        pytest.param(shared(1, 10), None, id="no descriptor"),
        pytest.param(shared(1, 10, new=False), None, id="a segment that never came"),
        pytest.param(shared(1, 65537), segment, id="more than the segment has"),
        pytest.param(shared(1, 2**63), segment, id="more than any segment has"),
        pytest.param(shared(1, MOST + 1), lambda: segment(2 * MOST), id="too large a message"),
        pytest.param(shared(1, 10), unsealed, id="memory that can be shortened"),
        pytest.param(shared(1, 10), lambda: os.open("/dev/null", os.O_RDWR), id="no memory"),
        pytest.param(
            frames.header(frames.MESSAGE, 1, 5, frames.SHARED) + b"12345", None, id="half a place"
        ),
    ],
)
def test_a_hostile_end_is_cut_off(data: bytes, descriptor: Callable[[], int] | None) -> None:
    async def test() -> None:
        async with attacked() as (side, theirs):
            sent = [] if descriptor is None else [descriptor()]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", sent))] if sent else []
            theirs.sendmsg([data], rights)
            for each in sent:
                os.close(each)
            await side.until(lambda: side.lost)
            assert side.link.closed
            assert not side.messages

    before = open_files()
    run(test)
    assert open_files() == before


def test_descriptors_that_nobody_needs_are_closed_and_bounded() -> None:
    async def test() -> None:
        async with attacked() as (side, theirs):
            theirs.setblocking(False)
            with Path("/dev/null").open("rb") as file:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [file.fileno()] * 16))]
                async with asyncio.timeout(SECONDS):
                    while not side.lost:
                        try:
                            message = frames.header(frames.FORGET, 1, 0)
                            theirs.sendmsg([message], rights)
                        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                            pass
                        await asyncio.sleep(0)

    before = open_files()
    run(test)
    assert open_files() == before


def test_an_end_that_pauses_keeps_little_for_one_that_reads_nothing_and_then_goes_on() -> None:
    """Each frame gets a reply. The other side sends frames and reads no reply at first."""
    reply = bytes(INLINE_BYTES)
    count = 2000

    async def test() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        answered = 0

        def answer(_: Frame) -> None:
            nonlocal answered
            answered += 1
            link.send_message(frames.MESSAGE, 1, b"", reply)

        link = Link(ours, answer, lambda _: None, MOST, pauses=True)
        one = frames.header(frames.MESSAGE, 1, 1000) + bytes(1000)
        sending = asyncio.create_task(loop.sock_sendall(theirs, one * count))
        async with asyncio.timeout(SECONDS):
            while not link._paused:
                await asyncio.sleep(0)
            assert answered < count
            assert link._unsent < MOST * 4
            left = count * (len(reply) + 10)
            while left:
                left -= len(await loop.sock_recv(theirs, 1 << 20))
            await sending
        assert answered == count
        link.close()
        theirs.close()

    run(test)
