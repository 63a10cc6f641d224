"""gRPC over a Unix socket: how long a connection may stay without saying anything."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.server.settings.settings import Settings
from headrace.server.transport import limits, unix_front_end
from headrace.server.transport.unix_front_end import UnixFrontEnd

SECONDS = 60.0
SHORT_MILLISECONDS = 300


class Endless(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Every method answers at once, and goes on until its caller ends it."""

    def service(self, _: Any) -> Any:
        async def call(_: Any, context: Any) -> None:
            await context.write(b"begun")
            await asyncio.Event().wait()

        return grpc.stream_stream_rpc_method_handler(call)


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="h") as folder:  # tmp_path is too long for a socket
        yield Path(folder) / "s"


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_front_end, "_IDLE_MILLISECONDS", SHORT_MILLISECONDS)
    monkeypatch.setattr(limits, "_HANDSHAKE_MILLISECONDS", SHORT_MILLISECONDS)


def front_end(path: Path, **settings: Any) -> UnixFrontEnd:
    return UnixFrontEnd(Settings(**settings), path, Endless(), None)


async def end_of(channel: grpc.aio.Channel) -> None:
    """Returns when a connection that was made has ended."""
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(state)
    await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)


def test_with_access_control_a_connection_without_calls_ends(path: Path) -> None:
    async def scenario() -> None:
        served = front_end(path, tokens=Path("tokens"))
        served.bind()
        await served.start()
        try:
            async with asyncio.timeout(SECONDS), grpc.aio.insecure_channel(f"unix:{path}") as quiet:
                await end_of(quiet)
        finally:
            await served.stop(0)

    asyncio.run(scenario())


def test_a_connection_with_a_call_stays_and_anybody_s_without_access_control(path: Path) -> None:
    async def scenario() -> None:
        guarded = front_end(path, tokens=Path("tokens"))
        public = front_end(path.with_name("t"))
        for each in (guarded, public):
            each.bind()
            await each.start()
        async with (
            asyncio.timeout(SECONDS),
            grpc.aio.insecure_channel(f"unix:{path}") as busy,
            grpc.aio.insecure_channel(f"unix:{path}", [("quiet", 1)]) as quiet,
            grpc.aio.insecure_channel(f"unix:{path.with_name('t')}") as guest,
        ):
            # A handshake that takes too long is repeated.
            call = busy.stream_stream("/any/Method")(wait_for_ready=True)
            assert await call.read() == b"begun"
            await guest.channel_ready()
            for _ in range(2):  # as long as others need to be cut twice
                await end_of(quiet)
            ready = grpc.ChannelConnectivity.READY
            assert (busy.get_state(), guest.get_state()) == (ready, ready)
            assert not call.done()
            call.cancel()
        for each in (guarded, public):
            await each.stop(0)

    asyncio.run(scenario())


def test_a_connection_that_never_begins_ends_even_without_access_control(path: Path) -> None:
    async def scenario() -> None:
        served = front_end(path)
        served.bind()
        await served.start()
        with socket.socket(socket.AF_UNIX) as silent:
            silent.setblocking(False)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(SECONDS):
                await loop.sock_connect(silent, str(path))
                while await loop.sock_recv(silent, 1 << 16):
                    pass  # gRPC's first frames
        await served.stop(0)

    asyncio.run(scenario())
