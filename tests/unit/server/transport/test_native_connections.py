"""The connections of a port, on transports that are none."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from headrace.http2.calls import request_block
from headrace.http2.connection import Connection, MessageReceived, StreamEnded
from headrace.http2.limits import ConnectionLimits
from headrace.server.transport.call import BoundMethod, IncomingCall, Methods, Reply
from headrace.server.transport.native.connection import NativeConnection
from headrace.server.transport.native.connections import Connections


class NoMethods:
    def find(self, path: str) -> BoundMethod | None:
        return None


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

    def set_write_buffer_limits(self, _: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.written += bytes(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        for each in parts:
            self.write(each)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

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


class Client:
    """A client with one stream, which the server's handler has begun to read."""

    def __init__(self, owner: Connections) -> None:
        self._transport = Transport()
        self._server = NativeConnection(owner, "ipv4:10.0.0.1:1", nobody)
        self._server.connection_made(self._transport)
        self._wire = Connection(ConnectionLimits(), 0.0, client=True)
        self._stream = self._wire.open(request_block("/s/M", "localhost"), 0.0)
        self._send()

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
