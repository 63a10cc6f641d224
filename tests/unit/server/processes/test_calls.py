"""The engine's side of calls: what services see, and what a front end must not do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from headrace.server.processes import frames, heads
from headrace.server.processes.calls import Calls, RelayedCall
from headrace.server.processes.frames import Frame
from headrace.server.processes.heads import Caller, Callers
from headrace.server.processes.link import Link
from headrace.server.services.methods import Kind

SECONDS = 60.0
CALLER = Caller("ipv4:127.0.0.1:5000", (("k", "v"),))
UNARY, STREAM = 0, 1

Handler = Callable[[RelayedCall], Awaitable[Any]]


class Methods:
    """A unary method and one with streams, which the test handles."""

    def __init__(self, handler: Handler) -> None:
        self.kinds = {"/s/Unary": Kind.UNARY, "/s/Stream": Kind.STREAM}
        self._handler = handler

    def service(self, details: Any) -> Any:
        async def handle(_: Any, call: RelayedCall) -> Any:
            return await self._handler(call)

        if details.method == "/s/Unary":
            return grpc.stream_unary_rpc_method_handler(handle)
        return grpc.stream_stream_rpc_method_handler(handle)


class FrontEnd:
    """A front end that says what the test wants, and keeps what the engine says."""

    def __init__(self, end: socket.socket) -> None:
        self.came: list[Frame] = []
        self._changed = asyncio.Event()
        self.link = Link(end, self._take, lambda _: None, 1 << 30)

    def _take(self, frame: Frame) -> None:
        self.came.append(frame)
        self._changed.set()

    def begin(
        self, call: int = 1, method: int = UNARY, flags: int = 0, message: bytes = b""
    ) -> None:
        body = heads.begin(None, method, Callers().to_bytes(CALLER))
        if message:
            self.link.send_message(frames.BEGIN, call, body, message, flags | frames.EAGER)
        else:
            self.link.send(frames.BEGIN, call, body, flags)

    async def next(self, kind: int) -> Frame:
        """The next frame, which has to be of this kind."""
        async with asyncio.timeout(SECONDS):
            while not self.came:
                self._changed.clear()
                await self._changed.wait()
        frame = self.came.pop(0)
        assert frame.kind == kind, frame
        return frame


class World:
    def __init__(self, handler: Handler) -> None:
        ours, theirs = socket.socketpair()
        methods: Any = Methods(handler)
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.engine = Link(
            ours, lambda frame: self.calls.take(frame), self.lost.set_result, 1 << 20
        )
        self.calls = Calls(self.engine, methods)
        self.front_end = FrontEnd(theirs)


@asynccontextmanager
async def world(handler: Handler) -> AsyncIterator[World]:
    made = World(handler)
    try:
        yield made
    finally:
        made.calls.cancel_all()
        made.engine.close()
        made.front_end.link.close()


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


async def forever(_: RelayedCall) -> None:
    await asyncio.Event().wait()


async def echo(call: RelayedCall) -> Any:
    return await call.read()


def test_a_unary_call_gets_its_reply_with_its_status() -> None:
    async def handler(call: RelayedCall) -> bytes:
        assert call.peer() == CALLER.peer
        assert call.invocation_metadata() == CALLER.metadata
        assert call.time_remaining() is None
        call.set_trailing_metadata((("id", "7"),))
        message: bytes = await call.read()
        assert await call.read() is grpc.aio.EOF
        return message * 2

    async def test() -> None:
        async with world(handler) as w:
            w.front_end.begin(flags=frames.LAST, message=b"twice")
            frame = await w.front_end.next(frames.END)
            status = heads.parse_status(frame.body)
            assert (status.code, status.trailing) == (0, (("id", "7"),))
            assert w.front_end.link.message(frame, status.offset) == b"twicetwice"

    run(test)


def test_a_message_that_was_not_read_ahead_is_asked_for() -> None:
    async def test() -> None:
        async with world(echo) as w:
            w.front_end.begin()
            room = await w.front_end.next(frames.ROOM)
            assert frames.parse_number(room.body) == frames.WINDOW_BYTES
            w.front_end.link.send_message(frames.MESSAGE, 1, b"", b"late")
            frame = await w.front_end.next(frames.END)
            assert frame.body.endswith(b"late")

    run(test)


def test_an_abort_ends_a_call_with_its_status_and_a_bug_with_none_of_its_text() -> None:
    async def handler(call: RelayedCall) -> None:
        if await call.read() == b"abort":
            await call.abort(grpc.StatusCode.NOT_FOUND, "not here", (("d-bin", b"\0"),))
        raise RuntimeError("secret")

    async def test() -> None:
        async with world(handler) as w:
            w.front_end.begin(message=b"abort")
            found = heads.parse_status((await w.front_end.next(frames.END)).body)
            assert found[:3] == (5, "not here", (("d-bin", b"\0"),))
            w.front_end.begin(2, message=b"bug")
            bug = await w.front_end.next(frames.END)
            assert heads.parse_status(bug.body).code == 2
            assert b"secret" not in bug.body

    run(test)


def test_a_stream_reads_while_it_waits_for_room_to_write() -> None:
    """Both wait at once. What wakes one must not be lost for the other."""

    async def handler(call: RelayedCall) -> None:
        async def write() -> None:
            for _ in range(20):
                await call.write(b"reply")

        writing = asyncio.create_task(write())
        while await call.read() is not grpc.aio.EOF:
            pass
        await writing

    async def test() -> None:
        async with world(handler) as w:
            w.front_end.begin(method=STREAM, flags=frames.EAGER)
            for _ in range(20):
                await w.front_end.next(frames.MESSAGE)
                w.front_end.link.send_message(frames.MESSAGE, 1, b"", b"request")
                w.front_end.link.send(frames.ROOM, 1, frames.number(1))
            w.front_end.link.send(frames.END, 1)
            assert heads.parse_status((await w.front_end.next(frames.END)).body).code == 0

    run(test)


@pytest.mark.parametrize("message", [b"small", b""])
def test_a_call_lasts_until_its_caller_has_the_status(message: bytes) -> None:
    """Its place and the bytes of its reply count until then."""

    async def handler(call: RelayedCall) -> bytes:
        data: bytes = await call.read()
        if data is grpc.aio.EOF:
            await call.abort(grpc.StatusCode.INVALID_ARGUMENT, "no message")
        return bytes(10_000_000)

    async def test() -> None:
        async with world(handler) as w:
            w.front_end.begin(flags=frames.LAST, message=message)
            await w.front_end.next(frames.END)
            assert len(w.calls) == 1
            w.front_end.link.send(frames.DONE, 1)
            async with asyncio.timeout(SECONDS):
                while len(w.calls):
                    await asyncio.sleep(0)
            assert not w.lost.done()

    run(test)


@pytest.mark.parametrize("size", [10, frames.WINDOW_BYTES])
def test_a_large_message_has_been_written_when_the_write_returns(size: int) -> None:
    """Whoever writes it counts its bytes until then."""

    async def test() -> None:
        returned = asyncio.Event()

        async def handler(call: RelayedCall) -> None:
            await call.write(bytes(size))
            returned.set()

        async with world(handler) as w:
            w.front_end.begin(method=STREAM, flags=frames.EAGER)
            await w.front_end.next(frames.MESSAGE)
            assert returned.is_set() == (size == 10)
            w.front_end.link.send(frames.ROOM, 1, frames.number(1))
            await w.front_end.next(frames.END)

    run(test)


def test_a_cancel_ends_the_task_and_later_frames_of_the_call_are_ignored() -> None:
    async def test() -> None:
        cancelled = asyncio.Event()

        async def handler(call: RelayedCall) -> None:
            try:
                await call.read()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with world(handler) as w:
            w.front_end.begin(method=STREAM)
            await w.front_end.next(frames.ROOM)
            w.front_end.link.send(frames.CANCEL, 1)
            async with asyncio.timeout(SECONDS):
                await cancelled.wait()
            w.front_end.link.send_message(frames.MESSAGE, 1, b"", bytes(100_000))
            w.front_end.link.send(frames.END, 1)
            w.front_end.link.send(frames.CANCEL, 1)
            w.front_end.begin(2, message=b"next")  # comes after all of them
            async with asyncio.timeout(SECONDS):
                while len(w.calls) == 0:
                    await asyncio.sleep(0)
            assert not w.lost.done()

    run(test)


def test_all_calls_of_a_front_end_that_has_gone_are_cancelled() -> None:
    async def test() -> None:
        async with world(forever) as w:
            for call in range(5):
                w.front_end.begin(call, method=STREAM)
            async with asyncio.timeout(SECONDS):
                while len(w.calls) < 5:
                    await asyncio.sleep(0)
            w.front_end.link.close()
            assert "ended" in await w.lost
            w.calls.cancel_all()
            async with asyncio.timeout(SECONDS):
                while len(w.calls):
                    await asyncio.sleep(0)

    run(test)


def hostile(*sent: tuple[int, int, bytes, int]) -> Any:
    return pytest.param(sent, id="+".join(str(kind) for kind, *_ in sent))


BEGINNING = heads.begin(None, STREAM, Callers().to_bytes(CALLER))
BEGUN = (frames.BEGIN, 1, BEGINNING, 0)
EAGER = (frames.BEGIN, 1, BEGINNING, frames.EAGER)
MESSAGE = (frames.MESSAGE, 1, bytes(1000), frames.INLINE)


@pytest.mark.parametrize(
    "sent",
    [
        hostile((frames.BEGIN, 1, b"", 0)),
        hostile((frames.BEGIN, 1, heads.begin(None, 2, Callers().to_bytes(CALLER)), 0)),
        hostile(BEGUN, BEGUN),
        hostile(BEGUN, MESSAGE),
        hostile(EAGER, (frames.END, 1, b"", 0), MESSAGE),
        hostile(EAGER, *[MESSAGE] * 1000),
        hostile(EAGER, (frames.MESSAGE, 1, b"", 0)),
        hostile(EAGER, (frames.ROOM, 1, frames.number(1), 0)),
        hostile(EAGER, (frames.ROOM, 1, frames.number(0), 0)),
        hostile(EAGER, (frames.ROOM, 1, b"", 0)),
        hostile(EAGER, (frames.DONE, 1, b"", 0)),
        hostile(EAGER, (frames.STOP, 1, b"", 0)),
        hostile((frames.MESSAGE, 1, bytes((1 << 20) + 1), frames.INLINE)),
        hostile((frames.ASK, 1, b"", 0)),
    ],
)
def test_a_front_end_that_breaks_the_rules_is_lost(sent: Any) -> None:
    async def test() -> None:
        async with world(forever) as w:
            for kind, call, body, flags in sent:
                w.front_end.link.send(kind, call, body, flags)
            async with asyncio.timeout(SECONDS):
                assert await w.lost
            assert w.engine.closed

    run(test)
