"""Our channels are correct clients of gRPC: grpcio's two servers are the other end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace.client.channel.channel import CallFailed
from tests.support.channel_callers import KINDS, Callers, calling
from tests.support.client_fake import eventually

SECONDS = 60.0
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
DETAILS = "ä % + \n“quoted”"
TRAILING = (("text", "a, b"), ("some-bin", b"\x00\xff,\xfe"), ("some-bin", b""))


class Served:
    """What both servers do."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, bytes], threading.Event] = {}

    def began(self, request: bytes) -> threading.Event:
        """Whether the server has begun a call that hangs; its request tells which one."""
        return self._events.setdefault(("began", request), threading.Event())

    def ended(self, request: bytes) -> threading.Event:
        """Whether the server has seen the end of a call that hangs."""
        return self._events.setdefault(("ended", request), threading.Event())

    def status(self, request: bytes, context: Any) -> Any:
        context.set_trailing_metadata(TRAILING)
        return context.abort(CODES[int(request)], DETAILS)

    def metadata(self, _: bytes, context: Any) -> bytes:
        sent = sorted((key, value) for key, value in context.invocation_metadata() if key[0] == "x")
        return repr(sent).encode()

    def left(self, _: bytes, context: Any) -> bytes:
        return repr(context.time_remaining()).encode()


def handlers(served: Served, asynchronous: bool) -> Any:
    def echo(request: bytes, _: Any) -> bytes:
        return request

    def packed(request: bytes, context: Any) -> bytes:
        context.set_compression(grpc.Compression.Gzip)
        return request

    def hang(request: bytes, context: Any) -> bytes:
        context.add_callback(served.ended(request).set)
        served.began(request).set()
        while context.is_active():
            time.sleep(0.01)
        return b""

    async def hang_async(request: bytes, _: Any) -> bytes:
        served.began(request).set()
        try:
            await asyncio.sleep(SECONDS)
        finally:
            served.ended(request).set()
        return b""

    def chat(requests: Any, _: Any) -> Iterator[bytes]:
        yield from requests

    async def chat_async(requests: Any, _: Any) -> Any:
        async for request in requests:
            yield request

    def count(request: bytes, _: Any) -> Iterator[bytes]:
        yield from (b"%d" % number for number in range(int(request)))

    async def count_async(request: bytes, _: Any) -> Any:
        for number in range(int(request)):
            yield b"%d" % number

    def total(requests: Any, _: Any) -> bytes:
        return b"%d" % sum(map(len, requests))

    async def total_async(requests: Any, _: Any) -> bytes:
        return b"%d" % sum([len(request) async for request in requests])

    def made(function: Callable[..., Any]) -> Any:
        if not asynchronous:
            return grpc.unary_unary_rpc_method_handler(function)

        async def awaited(request: bytes, context: Any) -> Any:
            found = function(request, context)
            return await found if asyncio.iscoroutine(found) else found

        return grpc.unary_unary_rpc_method_handler(awaited)

    return grpc.method_handlers_generic_handler(
        "t",
        {
            "Echo": made(echo),
            "Packed": made(packed),
            "Status": made(served.status),
            "Metadata": made(served.metadata),
            "Left": made(served.left),
            "Hang": made(hang_async if asynchronous else hang),
            "Chat": grpc.stream_stream_rpc_method_handler(chat_async if asynchronous else chat),
            "Count": grpc.unary_stream_rpc_method_handler(count_async if asynchronous else count),
            "Total": grpc.stream_unary_rpc_method_handler(total_async if asynchronous else total),
        },
    )


OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(scope="module", params=["grpc", "grpc.aio"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Served]]:
    served = Served()
    if request.param == "grpc":
        made = grpc.server(ThreadPoolExecutor(40), options=OPTIONS)
        made.add_generic_rpc_handlers((handlers(served, asynchronous=False),))
        port = made.add_insecure_port("127.0.0.1:0")
        made.start()
        yield f"127.0.0.1:{port}", served
        made.stop(None)
        return
    ready: list[int] = []
    started, stopping = threading.Event(), threading.Event()

    async def run() -> None:
        aio = grpc.aio.server(options=OPTIONS)
        aio.add_generic_rpc_handlers((handlers(served, asynchronous=True),))
        ready.append(aio.add_insecure_port("127.0.0.1:0"))
        await aio.start()
        started.set()
        await asyncio.to_thread(stopping.wait)
        await aio.stop(None)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    started.wait()
    yield f"127.0.0.1:{ready[0]}", served
    stopping.set()
    thread.join()


@pytest.fixture(params=KINDS)
def callers(request: pytest.FixtureRequest, server: tuple[str, Served]) -> Iterator[Callers]:
    with calling(request.param, server[0]) as found:
        yield found


@pytest.mark.parametrize("size", [0, 1, 16_384, 70_000, 5_000_000])
def test_a_message_comes_back(callers: Callers, size: int) -> None:
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


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_every_status_comes_with_text_and_metadata(callers: Callers, code: grpc.StatusCode) -> None:
    with pytest.raises(CallFailed) as failed:
        callers.one("/t/Status", b"%d" % CODES.index(code), timeout=SECONDS)
    assert (failed.value.code, failed.value.message) == (code, DETAILS)
    trailing = list(failed.value.trailing)
    assert [each for each in trailing if each[0] in ("text", "some-bin")] == list(TRAILING)


def test_metadata_goes_to_the_server(callers: Callers) -> None:
    sent = (("x-text", "a b"), ("x-some-bin", b"\x00\xff"), ("x-text", "again"))
    reply = callers.one("/t/Metadata", metadata=sent, timeout=SECONDS)
    assert bytes(reply.message) == repr(sorted(sent)).encode()


def test_an_unknown_method_is_unimplemented(callers: Callers) -> None:
    with pytest.raises(CallFailed) as failed:
        callers.one("/t/Nothing", timeout=SECONDS)
    assert failed.value.code is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_replies_may_be_compressed(callers: Callers, size: int) -> None:
    assert bytes(callers.one("/t/Packed", b"y" * size, timeout=SECONDS).message) == b"y" * size


def test_the_server_knows_the_deadline(callers: Callers) -> None:
    left = float(callers.one("/t/Left", timeout=50.0).message)
    assert 20.0 < left <= 50.5
    assert bytes(callers.one("/t/Left").message) in (b"None", b"inf") or left


def test_a_call_ends_at_its_deadline_on_both_ends(
    callers: Callers, server: tuple[str, Served]
) -> None:
    late = b"late %d" % id(callers)
    with pytest.raises(CallFailed) as failed:
        callers.one("/t/Hang", late, timeout=0.5)
    assert failed.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert server[1].ended(late).wait(SECONDS)
    assert callers.one("/t/Echo", b"after", timeout=SECONDS).message == b"after"


def test_a_time_that_is_up_sends_nothing(callers: Callers) -> None:
    with pytest.raises(CallFailed) as failed:
        callers.one("/t/Echo", timeout=0.0)
    assert failed.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_started_call_is_cancelled_on_the_server(server: tuple[str, Served]) -> None:
    target, served = server
    with calling("started", target) as callers:
        call = callers.channel.start("/t/Hang", b"started")
        assert served.began(b"started").wait(SECONDS)
        assert call.cancel()
        with pytest.raises(CallFailed) as failed:
            call.result()
        assert failed.value.code is grpc.StatusCode.CANCELLED
        assert not call.cancel()
        assert served.ended(b"started").wait(SECONDS)


def test_a_cancelled_task_cancels_the_call(server: tuple[str, Served]) -> None:
    target, served = server

    async def cancelled(channel: Any) -> None:
        task = asyncio.ensure_future(channel.unary("/t/Hang", b"task"))
        assert await asyncio.to_thread(served.began(b"task").wait, SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(served.ended(b"task").wait, SECONDS)

    with calling("tasks", target) as callers:
        callers._runner.run(cancelled(callers.channel))


def test_closing_a_channel_ends_its_calls(server: tuple[str, Served]) -> None:
    target, served = server
    with calling("started", target) as callers:
        calls = {each: callers.channel.start("/t/Hang", each) for each in (b"a", b"b", b"c")}
        for each in calls:
            assert served.began(each).wait(SECONDS)
    for each, call in calls.items():
        with pytest.raises(CallFailed) as failed:
            call.result(SECONDS)
        assert failed.value.code is grpc.StatusCode.CANCELLED
        assert served.ended(each).wait(SECONDS)


@pytest.mark.parametrize("sizes", [[], [0], [1, 0, 3], [70_000] * 30, [3_000_000] * 3])
def test_a_stream_echoes(callers: Callers, sizes: list[int]) -> None:
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


def test_a_message_above_the_limit_fails_alone(server: tuple[str, Served]) -> None:
    for kind in KINDS:
        with calling(kind, server[0], max_message_bytes=1000) as callers:
            calls: list[tuple[str, Any, dict[str, Any]]] = [
                ("/t/Echo", b"x" * 1001, {"timeout": SECONDS}),
                ("/t/Packed", b"x" * 900, {"timeout": SECONDS}),
            ]
            large, small = callers.all(calls)
            assert isinstance(large, CallFailed)
            assert large.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not isinstance(small, CallFailed)


def test_a_server_that_stops_refuses_new_calls_and_ends_old_ones(
    server: tuple[str, Served],
) -> None:
    """GOAWAY: calls that run go on, and the channel connects anew to the server after it."""
    served = Served()
    for kind in KINDS:
        first = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        first.add_generic_rpc_handlers((handlers(served, asynchronous=False),))
        port = first.add_insecure_port("127.0.0.1:0")
        first.start()
        with calling(kind, f"127.0.0.1:{port}") as callers:
            assert callers.one("/t/Echo", b"1", timeout=SECONDS).message == b"1"
            first.stop(None).wait()
            second = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
            second.add_generic_rpc_handlers((handlers(served, asynchronous=False),))
            assert eventually(lambda: second.add_insecure_port(f"127.0.0.1:{port}"))  # noqa: B023
            second.start()
            assert callers.one("/t/Echo", b"2", timeout=SECONDS, repeat=True).message == b"2"
            second.stop(None).wait()
