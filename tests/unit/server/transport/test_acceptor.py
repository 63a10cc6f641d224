"""Connections that come while there are as many handshakes as allowed."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.server.transport.acceptor import Acceptor
from tests.support.certificates import Authority

HANDSHAKES = 8
CONNECTIONS = 60
LONG_SECONDS = 60.0


class Greeting(asyncio.Protocol):
    """Greets whoever has come through."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"hello")
        transport.close()


@asynccontextmanager
async def acceptor(context: Callable[[], ssl.SSLContext], seconds: float) -> AsyncIterator[int]:
    """One of so few handshakes at a time, and its port."""
    opened = Acceptor(lambda _: Greeting(), context, seconds, HANDSHAKES)
    listener = socket.create_server(("127.0.0.1", 0))
    opened.open(listener)
    try:
        yield listener.getsockname()[1]
    finally:
        await opened.close()
        listener.close()


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[Callable[[], ssl.SSLContext], ssl.SSLContext]:
    authority = Authority()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.server().write(tmp_path, "server"))
    return lambda: server, ssl.create_default_context(cafile=authority.write(tmp_path))


def test_connections_wait_for_their_handshakes_while_there_are_as_many_as_allowed(
    contexts: tuple[Callable[[], ssl.SSLContext], ssl.SSLContext],
) -> None:
    async def greeted(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=contexts[1])
        said = await reader.readexactly(5)
        writer.close()
        return said

    async def scenario() -> list[bytes]:
        async with acceptor(contexts[0], LONG_SECONDS) as port:
            return await asyncio.gather(*(greeted(port) for _ in range(CONNECTIONS)))

    assert asyncio.run(scenario()) == [b"hello"] * CONNECTIONS


def test_the_wait_for_a_handshake_ends_in_time(
    contexts: tuple[Callable[[], ssl.SSLContext], ssl.SSLContext],
) -> None:
    async def scenario() -> None:
        async with acceptor(contexts[0], 0.1) as port:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
            for reader, writer in silent:  # none of them begins its handshake
                assert await asyncio.wait_for(reader.read(), LONG_SECONDS) == b""
                writer.close()

    asyncio.run(scenario())


def test_connections_that_wait_for_their_handshakes_are_closed_at_the_end(
    contexts: tuple[Callable[[], ssl.SSLContext], ssl.SSLContext],
) -> None:
    async def scenario() -> None:
        async with acceptor(contexts[0], LONG_SECONDS) as port:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
        for reader, writer in silent:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), LONG_SECONDS)
            writer.close()

    asyncio.run(scenario())
