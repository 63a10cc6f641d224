"""The connections of a port, on transports that are none."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterable
from typing import Any

from headrace.http2.limits import Limits
from headrace.server.transport.call import Bound
from headrace.server.transport.native.connection import NativeConnection
from headrace.server.transport.native.connections import Connections


class NoMethods:
    def find(self, path: str) -> Bound | None:
        return None


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

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def nobody() -> int | None:
    return None


def connections() -> Connections:
    return Connections(NoMethods(), Limits(), most=8, room_bytes=1 << 20, stranger_seconds=None)


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
