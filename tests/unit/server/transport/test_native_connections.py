"""The connections of a port, on transports that are none."""

from __future__ import annotations

import asyncio
import gc
import gzip
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from headrace.http2 import frames
from headrace.http2.blocks import literal
from headrace.http2.calls import request_block
from headrace.http2.connection import Connection, MessageReceived, Reset, StreamEnded
from headrace.http2.limits import ConnectionLimits
from headrace.server.transport.call import BoundMethod, IncomingCall, Methods, Reply
from headrace.server.transport.native.connection import READ_BYTES, NativeConnection
from headrace.server.transport.native.connections import Connections


class NoMethods:
    def find(self, path: str) -> BoundMethod | None:
        return None


class OneCall:
    """Every path is the same method, of one message and one reply."""

    def __init__(self, handle: Callable[[IncomingCall], Awaitable[Reply | None]]) -> None:
        self._handle = handle

    def find(self, path: str) -> BoundMethod | None:
        return BoundMethod(self._handle, is_unary=True, gives_one=True, begins_early=False)


class OneStream:
    """Every path is the same method, a stream."""

    def __init__(self, handle: Callable[[IncomingCall], Awaitable[Reply | None]]) -> None:
        self._handle = handle

    def find(self, path: str) -> BoundMethod | None:
        return BoundMethod(self._handle, is_unary=False, gives_one=False, begins_early=False)


class Transport:
    """Keeps what is written, and whether it was closed."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.reads = True

    def set_write_buffer_limits(self, _: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.written += bytes(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        for each in parts:
            self.write(each)

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def nobody() -> int | None:
    return None


def connections(methods: Methods | None = None) -> Connections:
    return Connections(
        methods or NoMethods(),
        ConnectionLimits(),
        most=8,
        room_bytes=1 << 20,
        unread_bytes=1 << 20,
        stranger_seconds=None,
    )


def send(connection: Any, data: bytes) -> None:
    connection.get_buffer(0)[: len(data)] = data
    connection.buffer_updated(len(data))


def test_a_connection_that_broke_the_protocol_is_closed_and_nothing_keeps_it() -> None:
    async def scenario() -> None:
        owner, transport = connections(), Transport()
        connection = NativeConnection(owner, "ipv4:10.0.0.1:1", nobody)
        connection.connection_made(transport)
        assert owner.count == 1
        send(connection, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nno frame of HTTP/2 at all")
        assert transport.closed
        connection.connection_lost(None)
        assert owner.count == 0
        left = weakref.ref(connection)
        del connection
        gc.collect()
        assert left() is None, "a timer would keep it for seconds"
        await owner.close(0)

    asyncio.run(scenario())


def test_a_port_has_so_many_connections_and_no_more() -> None:
    async def scenario() -> None:
        owner = connections()
        for number in range(8):
            made = NativeConnection(owner, f"ipv4:10.0.0.{number}:1", nobody)
            made.connection_made(Transport())
        accepted: Any = None
        assert owner.connect(accepted) is None
        await owner.close(0)

    asyncio.run(scenario())


@pytest.mark.parametrize(("begun", "looks"), [(False, 10), (True, 20)])
def test_a_server_that_was_held_up_looks_again_before_it_ends_a_client(
    begun: bool, looks: int
) -> None:
    async def scenario() -> None:
        owner, transport = connections(), Transport()
        connection = NativeConnection(owner, "ipv4:10.0.0.1:1", nobody)
        connection.connection_made(transport)
        if begun:
            end = Connection(ConnectionLimits(), 0.0, client=True)
            send(connection, b"".join(end.take()))
            end.receive(transport.written, 0.0)
            send(connection, b"".join(end.take()))
            connection.ping()
        connection.since -= 1000  # the loop was held up so long, and has not read since
        connection.heard -= 1000
        closed: list[bool] = []
        for _ in range(looks + 1):
            owner._look()
            closed.append(transport.closed)
        assert closed == [False] * looks + [True]
        await owner.close(0)

    asyncio.run(scenario())


class Client:
    """A client with one stream, which the server's handler has begun to read."""

    def __init__(
        self,
        owner: Connections,
        port: int = 1,
        *,
        block: bytes = b"",
        bounds: ConnectionLimits | None = None,
    ) -> None:
        self._transport = Transport()
        self._server = NativeConnection(owner, f"ipv4:10.0.0.1:{port}", nobody)
        self._server.connection_made(self._transport)
        self._wire = Connection(bounds or ConnectionLimits(), 0.0, client=True)
        self._stream = self._wire.open(request_block("/s/M", "localhost") + block, 0.0)
        self._send()

    def frames(self, data: bytes) -> None:
        """Sends frames as they are."""
        for start in range(0, len(data), READ_BYTES):
            send(self._server, data[start : start + READ_BYTES])

    def leave(self) -> None:
        self._server.connection_lost(None)

    def resets(self) -> list[int]:
        """Why the server has reset streams."""
        events = self._wire.receive(self._transport.written, 0.0)
        return [each.code for each in events if type(each) is Reset]

    def message(self, *messages: bytes) -> None:
        """Sends messages, which the server reads together."""
        for each in messages:
            self._wire.send_message(self._stream, each)
        self._send()

    def replies(self) -> list[object]:
        """The messages that the server has sent."""
        events = self._wire.receive(self._transport.written, 0.0)
        return [each.message for each in events if type(each) is MessageReceived]

    def code(self) -> int | None:
        """The status that the stream has ended with."""
        events = self._wire.receive(self._transport.written, 0.0)
        found = [each.trailers for each in events if type(each) is StreamEnded]
        assert found
        assert found[0] is not None
        return found[0].code

    def _send(self) -> None:
        send(self._server, b"".join(self._wire.take()))


async def begun() -> None:
    """Returns when handlers wait for their messages."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_stream_takes_its_messages_where_they_are_read_and_in_its_own_context() -> None:
    whose: ContextVar[str] = ContextVar("whose", default="nobody's")
    taken: list[tuple[bytes, str, object]] = []

    def take(messages: Iterator[bytes]) -> None:
        taken.extend((bytes(each), whose.get(), asyncio.current_task()) for each in messages)

    async def handle(call: IncomingCall) -> None:
        whose.set("the stream's")
        await call.deliver(take)

    async def scenario() -> None:
        sends = asyncio.current_task()
        owner = connections(OneStream(handle))
        client = Client(owner)
        await begun()
        client.message(b"a", b"b")
        assert taken == [(b"a", "the stream's", sends), (b"b", "the stream's", sends)]
        await owner.close(0)

    asyncio.run(scenario())


def test_a_reply_where_a_message_is_read_leaves_with_that_read_and_takes_no_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{NativeConnection.__module__}._AT_ONCE_SECONDS", float("inf"))

    async def handle(call: IncomingCall) -> None:
        def take(messages: Iterator[bytes]) -> None:
            for each in messages:
                assert call.try_write(each)

        await call.deliver(take)

    async def scenario() -> None:
        owner = connections(OneStream(handle))
        client = Client(owner)
        await begun()
        turns: list[object] = []
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "call_soon", turns.append)
            client.message(b"a", b"b")
        assert client.replies() == [b"a", b"b"]
        assert turns == []
        await owner.close(0)

    asyncio.run(scenario())


def test_a_large_reply_of_a_stream_is_taken_once_where_the_windows_let_it_go() -> None:
    large = bytes(3 << 20)

    async def handle(call: IncomingCall) -> None:
        def take(messages: Iterator[bytes]) -> None:
            for _ in messages:
                assert call.try_write(large)

        await call.deliver(take)

    async def scenario() -> None:
        owner = connections(OneStream(handle))
        client = Client(owner, bounds=ConnectionLimits(window_bytes=8 << 20))
        await begun()
        client.message(b"a")
        assert client.replies() == [large]
        await owner.close(0)

    asyncio.run(scenario())


def test_what_a_stream_does_not_take_waits_until_it_can_go_on() -> None:
    taken: list[bytes] = []
    may_go_on = asyncio.Event()

    def take(messages: Iterator[bytes]) -> Awaitable[object] | None:
        taken.append(bytes(next(messages)))
        return may_go_on.wait()

    async def handle(call: IncomingCall) -> None:
        await call.deliver(take)

    async def scenario() -> None:
        owner = connections(OneStream(handle))
        client = Client(owner)
        await begun()
        client.message(b"a", b"b")
        client.message(b"c")
        await begun()
        assert taken == [b"a"]
        may_go_on.set()
        await begun()
        assert taken == [b"a", b"b", b"c"]
        await owner.close(0)

    asyncio.run(scenario())


def test_an_error_of_what_takes_messages_is_the_handler_s() -> None:
    raised: list[Exception] = []

    def take(messages: Iterator[bytes]) -> None:
        raise ValueError(bytes(next(messages)))

    async def handle(call: IncomingCall) -> None:
        try:
            await call.deliver(take)
        except ValueError as error:
            raised.append(error)

    async def scenario() -> None:
        owner = connections(OneStream(handle))
        client = Client(owner)
        await begun()
        client.message(b"a")
        await begun()
        assert [each.args for each in raised] == [(b"a",)]
        assert client.code() == 0
        await owner.close(0)

    asyncio.run(scenario())


CRUMBS = frames.message_head(2, 0, 1) + b"ab"
PACKED = literal(b"grpc-encoding", b"gzip")


def packed(message: bytes) -> bytes:
    """A frame with a compressed message."""
    data = gzip.compress(message)
    prefix = b"\1" + len(data).to_bytes(4, "big")
    return frames.frame(frames.DATA, 0, 1, prefix + data)


def test_crumbs_that_calls_do_not_read_take_no_more_memory_than_all_may_and_it_comes_back() -> None:
    async def handle(_: IncomingCall) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        owner = connections(OneStream(handle))
        clients = [Client(owner, port) for port in range(40)]
        await begun()
        for each in clients:
            each.frames(CRUMBS * 5000)
        assert 0 < owner.unread.taken <= owner.unread.capacity
        ended = [each for each in clients if each.resets() == [frames.ErrorCode.ENHANCE_YOUR_CALM]]
        assert clients[0] not in ended  # who came when there was room goes on
        assert clients[-1] in ended
        await owner.close(0)
        await begun()
        for each in clients:
            each.leave()
        assert owner.unread.taken == 0

    asyncio.run(scenario())


def test_the_memory_of_messages_that_waited_comes_back_when_they_are_read() -> None:
    taken: list[bytes] = []
    may_go_on = asyncio.Event()

    async def handle(call: IncomingCall) -> None:
        await may_go_on.wait()
        await call.deliver(lambda messages: taken.extend(messages))

    async def scenario() -> None:
        owner = connections(OneStream(handle))
        client = Client(owner)
        await begun()
        client.frames(CRUMBS * 5000)
        assert owner.unread.taken > 0
        may_go_on.set()
        await begun()
        assert len(taken) == 5000
        assert owner.unread.taken <= 1 << 16  # a step, which the connection keeps
        await owner.close(0)

    asyncio.run(scenario())


def test_a_stream_of_compressed_messages_holds_the_room_of_one() -> None:
    taken: list[int] = []

    async def handle(call: IncomingCall) -> None:
        while (message := await call.read()) is not None:
            taken.append(len(message))

    async def scenario() -> None:
        owner = connections(OneStream(handle))
        client = Client(owner, block=PACKED)
        await begun()
        for _ in range(20):
            client.frames(packed(bytes(200_000)))
            await begun()
        assert taken == [200_000] * 20
        assert owner.memory.taken <= 200_000 + 3 * (1 << 16)
        await owner.close(0)

    asyncio.run(scenario())


def test_connections_take_turns_to_have_their_messages_unpacked() -> None:
    order: list[str] = []

    class Bomb:
        def __init__(self, whose: str) -> None:
            self._whose = whose

        def unpack(self) -> bytes:
            order.append(self._whose)
            return b""

    async def scenario() -> None:
        owner = connections()
        greedy = NativeConnection(owner, "ipv4:10.0.0.1:1", nobody)
        other = NativeConnection(owner, "ipv4:10.0.0.2:1", nobody)
        asked: list[Any] = [(greedy, "greedy")] * 10 + [(other, "other")]
        await asyncio.gather(*(each.unpack(Bomb(whose)) for each, whose in asked))
        assert order.index("other") == 1
        await owner.close(0)

    asyncio.run(scenario())


def many_calls(names: Iterable[str]) -> bytes:
    """What a client sends that opens so many calls at once."""
    wire = Connection(ConnectionLimits(), 0.0, client=True)
    for name in names:
        wire.call(request_block(f"/s/{name}", "localhost"), name.encode(), 0.0)
    return b"".join(wire.take())


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call keeps the loop for longer than its connection may."""
    monkeypatch.setattr(f"{NativeConnection.__module__}._AT_ONCE_SECONDS", -1.0)


@pytest.mark.usefixtures("slow")
def test_calls_that_come_together_leave_turns_to_other_connections() -> None:
    begun: list[str] = []

    async def handle(call: IncomingCall) -> None:
        begun.append(call.method)

    async def scenario() -> None:
        owner, transports = connections(OneCall(handle)), [Transport(), Transport()]
        for transport, peer, names in zip(transports, "12", ("abc", "x"), strict=True):
            connection = NativeConnection(owner, f"ipv4:10.0.0.{peer}:1", nobody)
            connection.connection_made(transport)
            send(connection, many_calls(names))
        assert begun == ["/s/a", "/s/x"]
        assert [each.reads for each in transports] == [False, False]
        for _ in range(4):
            await asyncio.sleep(0)
        assert begun == ["/s/a", "/s/x", "/s/b", "/s/c"]
        assert [each.reads for each in transports] == [True, True]
        await owner.close(0)

    asyncio.run(scenario())


@pytest.mark.usefixtures("slow")
def test_a_stream_that_took_its_message_before_its_turn_begins_once() -> None:
    begun: list[str] = []
    taken: list[bytes] = []

    def take(messages: Iterator[bytes]) -> None:
        taken.extend(bytes(each) for each in messages)

    async def handle(call: IncomingCall) -> None:
        begun.append(call.method)
        await call.deliver(take)
        await asyncio.Event().wait()

    async def scenario() -> None:
        owner = connections(OneStream(handle))
        connection = NativeConnection(owner, "ipv4:10.0.0.1:1", nobody)
        connection.connection_made(Transport())
        wire = Connection(ConnectionLimits(), 0.0, client=True)
        streams = [wire.open(request_block(f"/s/{name}", "localhost"), 0.0) for name in "ab"]
        send(connection, b"".join(wire.take()))
        for _ in range(5):
            await asyncio.sleep(0)
        for stream, message in zip(streams, (b"1", b"2"), strict=True):
            wire.send_message(stream, message, last=True)
        send(connection, b"".join(wire.take()))
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == ["/s/a", "/s/b"]
        assert taken == [b"1", b"2"]
        await owner.close(0)

    asyncio.run(scenario())


@pytest.mark.usefixtures("slow")
def test_a_call_whose_connection_is_lost_before_its_turn_does_not_begin() -> None:
    begun: list[str] = []

    async def handle(call: IncomingCall) -> None:
        begun.append(call.method)

    async def scenario() -> None:
        owner = connections(OneCall(handle))
        connection = NativeConnection(owner, "ipv4:10.0.0.1:1", nobody)
        connection.connection_made(Transport())
        send(connection, many_calls("ab"))
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert begun == ["/s/a"]
        await owner.close(0)

    asyncio.run(scenario())


@pytest.mark.usefixtures("slow")
def test_a_connection_whose_turn_meets_a_want_of_memory_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def handle(_: IncomingCall) -> None:
        pass

    def fail(*_: object) -> None:
        raise MemoryError

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        owner, transport = connections(OneCall(handle)), Transport()
        connection = NativeConnection(owner, "ipv4:10.0.0.1:1", nobody)
        connection.connection_made(transport)
        send(connection, many_calls("ab"))
        before = transport.closed
        monkeypatch.setattr(connection, "_run", fail)
        await asyncio.sleep(0)
        assert (before, transport.closed) == (False, True)
        connection.connection_lost(None)

    asyncio.run(scenario())
