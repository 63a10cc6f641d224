"""Clients that begin calls and give them up at once, over real sockets and raw HTTP/2.

This is the rapid reset of HTTP/2, CVE-2023-44487.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import h2.events
import h2.exceptions
import pytest

from headrace.client import Client
from headrace.server.transport.front_end import one_reply
from headrace.server.transport.guard import GuardedHandlers
from headrace.server.transport.resets import FREE_RESETS
from headrace.server.transport.strangers import Strangers
from tests.integration.harness import BASIC, CALL_SECONDS, Server
from tests.support.raw_http2 import METHOD, Raw

BURST = 100
MOST_BURSTS = 40
METHODS = (
    *("/headrace.v1.InferenceEngine/Infer", "/headrace.v1.InferenceEngine/InferStream"),
    *("/grpc.health.v1.Health/Watch", METHOD, "/no.such/Method"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*BASIC, "--max-concurrent-rpcs", "8") as running:
        yield running
        assert running.stop() == 0, running.log()


def give_up(raw: Raw, count: int, path: str = METHOD) -> None:
    for _ in range(count):
        raw.h2.reset_stream(raw.headers(path=path))
    raw.flush()


def check(raw: Raw) -> str:
    """What becomes of a whole call: its status, or ``refused``."""
    stream = raw.headers()
    raw.send(stream, b"")
    while True:
        events = raw.events(h2.events.Event)
        if not events:
            raise ConnectionError("the server ended the connection")
        for each in events:
            if getattr(each, "stream_id", None) != stream:
                continue
            if isinstance(each, h2.events.StreamReset):
                return "refused"
            if isinstance(each, h2.events.TrailersReceived | h2.events.ResponseReceived):
                status = dict(each.headers or ()).get(b"grpc-status")
                if status is not None:
                    return status.decode()


@pytest.mark.parametrize("path", METHODS)
def test_who_gives_up_calls_again_and_again_gets_no_more_and_others_do(
    server: Server, path: str
) -> None:
    """Each burst ends before the next one begins, so only the server's memory of them counts."""
    with Raw(server.address) as raw, Client(server.address, timeout=CALL_SECONDS) as client:
        answers = []
        for _ in range(MOST_BURSTS):
            give_up(raw, BURST, path)
            answers.append(check(raw))
            assert client.devices()
            if answers[-1] == "refused":
                break
        assert answers[-1] == "refused"
        assert set(answers[:-1]) == {"0"}
        assert len(answers) * BURST > FREE_RESETS


def test_who_gives_up_some_calls_is_served(server: Server) -> None:
    with Raw(server.address) as raw:
        give_up(raw, FREE_RESETS * 3 // 4 // 2)
        assert check(raw) == "0"
        give_up(raw, FREE_RESETS * 3 // 4 // 2)
        assert [check(raw) for _ in range(3)] == ["0"] * 3


def test_who_gives_up_every_second_call_is_served(server: Server) -> None:
    with Raw(server.address) as raw:
        raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2 * FREE_RESETS):
            give_up(raw, 1)
            assert check(raw) == "0"


def test_a_client_of_ours_that_cancels_calls_is_served(server: Server) -> None:
    """Its calls end without an answer, and it goes on over the same connection."""
    with grpc.insecure_channel(server.address) as channel:
        method = channel.unary_unary(METHOD)
        for _ in range(2 * FREE_RESETS):
            method.future(b"", timeout=CALL_SECONDS).cancel()
            assert method(b"", timeout=CALL_SECONDS)


class _Answers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def service(self, _: Any) -> grpc.RpcMethodHandler:
        return one_reply(self._answer)

    async def _answer(self, _: Any, context: Any) -> bytes:
        await context.read()
        return b""


def test_the_connection_of_a_client_that_does_not_stop_is_ended() -> None:
    def attack(port: int) -> int:
        with Raw(f"127.0.0.1:{port}") as raw:
            for turn in range(MOST_BURSTS):
                try:
                    give_up(raw, BURST)
                    check(raw)
                except (ConnectionError, h2.exceptions.ProtocolError):
                    return turn
        return MOST_BURSTS

    async def run() -> int:
        strangers = Strangers(10, None)
        guarded = GuardedHandlers(_Answers(), strangers, patience_seconds=0.0)
        grpc_server = grpc.aio.server()
        grpc_server.add_generic_rpc_handlers((guarded,))
        port = grpc_server.add_insecure_port("127.0.0.1:0")
        await grpc_server.start()
        strangers.start(port)
        turns = await asyncio.to_thread(attack, port)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await channel.unary_unary(METHOD)(b"", timeout=CALL_SECONDS)  # a new one is served
        guarded.stop()
        await grpc_server.stop(0.0)
        await asyncio.to_thread(strangers.stop)
        return turns

    assert FREE_RESETS // BURST <= asyncio.run(run()) < MOST_BURSTS


def test_pings_end_no_call_however_many_there_are(server: Server) -> None:
    with Raw(server.address) as raw:
        watch = raw.headers(path="/grpc.health.v1.Health/Watch")
        raw.send(watch, b"")
        acknowledged = 0
        for number in range(50):
            raw.h2.ping(number.to_bytes(8, "big"))
            raw.flush()
            acknowledged += len(
                [
                    each
                    for each in raw.events(h2.events.PingAckReceived)
                    if isinstance(each, h2.events.PingAckReceived)
                ]
            )
        assert (acknowledged, check(raw)) == (50, "0")
