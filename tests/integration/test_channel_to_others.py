"""Our channels are correct clients of gRPC: the other end is grpcio's two servers, one in C++, and
a server behind nginx, HAProxy and Envoy, where these are installed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.client.channel.channel import CallFailed
from tests.support.channel_callers import KINDS, Callers, calling
from tests.support.client_fake import eventually
from tests.support.grpc_servers import (
    DETAILS,
    TRAILING,
    Served,
    cpp,
    grpcio,
    grpcio_aio,
    handlers,
    told,
)
from tests.support.patience import DEADLINES
from tests.support.patience import PATIENCE_SECONDS as SECONDS
from tests.support.ports import held_port
from tests.support.proxies import NAMES, proxied

FAILURES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
SERVERS: dict[str, Callable[[Path], AbstractContextManager[Served]]] = {
    "grpcio": lambda _: grpcio(),
    "grpc.aio": lambda _: grpcio_aio(),
    "C++": cpp,
}


AIO = pytest.param("grpc.aio", marks=pytest.mark.long)  # the core in C++ of grpcio's other server


@pytest.fixture(scope="module", params=["grpcio", AIO, "C++", *NAMES])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server, or grpcio's behind a proxy."""
    folder = tmp_path_factory.mktemp("server")
    with ExitStack() as stack:
        if request.param in SERVERS:
            yield stack.enter_context(SERVERS[request.param](folder))
            return
        served = stack.enter_context(grpcio())
        served.address = stack.enter_context(proxied(request.param, served.address, folder)).address
        yield served


@pytest.fixture(params=KINDS)
def callers(request: pytest.FixtureRequest, server: Served) -> Iterator[Callers]:
    with calling(request.param, server.address) as found:
        yield found


def test_a_message_comes_back(callers: Callers) -> None:
    for size in (0, 1, 16_384, 70_000, 5_000_000, 64 << 20):
        request = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        assert bytes(callers.one("/t/Echo", request, timeout=SECONDS).message) == request


def test_a_message_may_be_in_parts(callers: Callers) -> None:
    parts: list[bytes | bytearray | memoryview] = [
        b"one",
        memoryview(b"two"),
        b"",
        bytearray(100_000),
    ]
    reply = callers.one("/t/Echo", parts, timeout=SECONDS)
    assert bytes(reply.message) == b"".join(parts)


def test_each_of_many_calls_has_its_own_reply(callers: Callers) -> None:
    calls = [("/t/Echo", b"%d" % number * 1000, {"timeout": SECONDS}) for number in range(32)]
    for _ in range(5):
        for (_, request, _), reply in zip(calls, callers.all(calls), strict=True):
            assert not isinstance(reply, CallFailed), reply
            assert bytes(reply.message) == request


def test_every_status_comes_with_text_and_metadata(callers: Callers) -> None:
    for code in FAILURES:
        with pytest.raises(CallFailed) as failed:
            callers.one("/t/Status", b"%d" % code.value[0], timeout=SECONDS)
        assert (failed.value.code, failed.value.message) == (code, DETAILS)
        for name in ("text", "some-bin"):  # in C++ names come in their order
            found = [value for key, value in failed.value.trailing if key == name]
            assert found == [value for key, value in TRAILING if key == name]


def test_metadata_goes_to_the_server(callers: Callers) -> None:
    sent = (("t-text", "a b"), ("t-some-bin", b"\x00\xff"), ("t-text", "again"))
    reply = callers.one("/t/Metadata", metadata=sent, timeout=SECONDS)
    assert bytes(reply.message) == told(sent)


def test_sixteen_kibibytes_of_metadata_go_to_the_server(callers: Callers) -> None:
    sent = (("t-long", "a" * 10_000), ("t-long-bin", bytes(range(256)) * 18))
    reply = callers.one("/t/Metadata", metadata=sent, timeout=SECONDS)
    assert bytes(reply.message) == told(sent)


def test_an_unknown_method_is_unimplemented(callers: Callers) -> None:
    with pytest.raises(CallFailed) as failed:
        callers.one("/t/Nothing", timeout=SECONDS)
    assert failed.value.code is grpc.StatusCode.UNIMPLEMENTED


def test_replies_may_be_compressed(callers: Callers) -> None:
    for size in (10, 3_000_000):
        reply = callers.one("/t/Packed", b"y" * size, timeout=SECONDS)
        assert bytes(reply.message) == b"y" * size


def test_the_server_knows_the_deadline(callers: Callers) -> None:
    left = float(callers.one("/t/Left", timeout=50.0).message)
    assert 20.0 < left <= 50.5
    assert bytes(callers.one("/t/Left").message) in (b"None", b"inf") or left


def test_a_call_ends_at_its_deadline_on_both_ends(callers: Callers, server: Served) -> None:
    for seconds in DEADLINES:  # until the call begins in its time
        late = b"late %g %d" % (seconds, id(callers))
        with pytest.raises(CallFailed) as failed:
            callers.one("/t/Hang", late, timeout=seconds)
        assert failed.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        if server.began(late).is_set():
            break
    assert server.ended(late).wait(SECONDS)
    assert callers.one("/t/Echo", b"after", timeout=SECONDS).message == b"after"


def test_a_time_that_is_up_sends_nothing(callers: Callers) -> None:
    with pytest.raises(CallFailed) as failed:
        callers.one("/t/Echo", timeout=0.0)
    assert failed.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_started_call_is_cancelled_on_the_server(server: Served) -> None:
    with calling("started", server.address) as callers:
        call = callers.channel.start("/t/Hang", b"started")
        assert server.began(b"started").wait(SECONDS)
        assert call.cancel()
        with pytest.raises(CallFailed) as failed:
            call.result()
        assert failed.value.code is grpc.StatusCode.CANCELLED
        assert not call.cancel()
        assert server.ended(b"started").wait(SECONDS)


def test_a_cancelled_task_cancels_the_call(server: Served) -> None:
    async def cancelled(channel: Any) -> None:
        task = asyncio.ensure_future(channel.unary("/t/Hang", b"task"))
        assert await asyncio.to_thread(server.began(b"task").wait, SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.ended(b"task").wait, SECONDS)

    with calling("tasks", server.address) as callers:
        callers._runner.run(cancelled(callers.channel))


def test_closing_a_channel_ends_its_calls(server: Served) -> None:
    with calling("started", server.address) as callers:
        calls = {each: callers.channel.start("/t/Hang", each) for each in (b"a", b"b", b"c")}
        for each in calls:
            assert server.began(each).wait(SECONDS)
    for each, call in calls.items():
        with pytest.raises(CallFailed) as failed:
            call.result(SECONDS)
        assert failed.value.code is grpc.StatusCode.CANCELLED
        assert server.ended(each).wait(SECONDS)


def test_a_stream_echoes(callers: Callers) -> None:
    for sizes in ([], [0], [1, 0, 3], [70_000] * 30, [3_000_000] * 3):
        sent = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
        assert callers.chat("/t/Chat", sent, timeout=SECONDS) == (sent, None)


def test_a_server_streams(callers: Callers) -> None:
    found, failure = callers.chat("/t/Count", [b"2000"], timeout=SECONDS)
    assert failure is None
    assert found == [b"%d" % number for number in range(2000)]


def test_a_client_streams(callers: Callers) -> None:
    assert callers.chat("/t/Total", [b"ab"] * 100, timeout=SECONDS) == ([b"200"], None)


def test_a_stream_ends_at_its_deadline(callers: Callers) -> None:
    found, failure = callers.chat("/t/Hang", [b"stream"], timeout=0.5)
    assert not found
    assert failure is not None
    assert failure.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_message_above_the_limit_fails_alone(server: Served) -> None:
    for kind in KINDS:
        with calling(kind, server.address, max_message_bytes=1000) as callers:
            calls: list[tuple[str, Any, dict[str, Any]]] = [
                ("/t/Echo", b"x" * 1001, {"timeout": SECONDS}),
                ("/t/Packed", b"x" * 900, {"timeout": SECONDS}),
            ]
            large, small = callers.all(calls)
            assert isinstance(large, CallFailed)
            assert large.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not isinstance(small, CallFailed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_channel_finds_the_server_that_comes_after_one_that_stops(kind: str) -> None:
    def made() -> Any:
        server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((handlers(Served(), asynchronous=False),))
        return server

    first, second = made(), made()
    port = first.add_insecure_port(f"127.0.0.1:{held_port()}")
    first.start()
    with calling(kind, f"127.0.0.1:{port}") as callers:
        assert callers.one("/t/Echo", b"1", timeout=SECONDS).message == b"1"
        first.stop(None).wait()
        assert eventually(lambda: second.add_insecure_port(f"127.0.0.1:{port}"))
        second.start()
        assert callers.one("/t/Echo", b"2", timeout=SECONDS, repeat=True).message == b"2"
        second.stop(None).wait()


@pytest.fixture(scope="module")
def behind() -> Iterator[Served]:
    """The server behind proxies that come and go."""
    with grpcio() as served:
        yield served


def echoes(count: int, **options: Any) -> list[tuple[str, Any, dict[str, Any]]]:
    return [("/t/Echo", b"%d" % number, {"timeout": SECONDS, **options}) for number in range(count)]


def check_echoes(callers: Callers, calls: list[tuple[str, Any, dict[str, Any]]]) -> None:
    for (_, request, _), outcome in zip(calls, callers.all(calls), strict=True):
        assert not isinstance(outcome, CallFailed), outcome
        assert bytes(outcome.message) == request


@pytest.mark.parametrize("name", ["nginx", "envoy"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_call_fails_when_a_proxy_ends_connections(
    kind: str, name: str, behind: Served, tmp_path: Path
) -> None:
    """These proxies say goodbye after 50 calls, and do so here every few milliseconds."""
    with (
        proxied(name, behind.address, tmp_path, calls=50) as proxy,
        calling(kind, proxy.address) as callers,
    ):
        for _ in range(15):
            check_echoes(callers, echoes(32))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_proxy_that_is_killed_is_found_again(
    kind: str, name: str, behind: Served, tmp_path: Path
) -> None:
    with (
        proxied(name, behind.address, tmp_path) as proxy,
        calling(kind, proxy.address) as callers,
    ):
        for _ in range(3):
            check_echoes(callers, echoes(8, repeat=True))
            proxy.restart()


def test_no_call_fails_when_nginx_takes_its_configuration_anew(
    behind: Served, tmp_path: Path
) -> None:
    with (
        proxied("nginx", behind.address, tmp_path, calls=50) as proxy,
        calling("threads", proxy.address) as callers,
    ):
        for turn in range(20):
            if turn % 5 == 4:
                proxy.process.send_signal(signal.SIGHUP)
            check_echoes(callers, echoes(16, repeat=True))
