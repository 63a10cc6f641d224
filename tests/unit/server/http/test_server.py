"""The HTTP server over real sockets: its bounds against slow and greedy clients, and its end."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headrace.server.http.connection import ConnectionBounds
from headrace.server.http.server import HttpServer
from tests.support.patience import PATIENCE_SECONDS
from tests.support.ports import held_port
from tests.unit.server.http.serving import (
    application,
    ask,
    connected,
    fine,
    raw,
    replies,
    serving,
    until_closed,
)

QUICK = ConnectionBounds(seconds=0.5, idle_seconds=1)
BOUNDS_SECONDS = (0.5, 2.0, 8.0)
"""A client on a busy machine may need longer than the first ones, so a test tries one after the
other."""
GET = b"GET /fine HTTP/1.1\r\nHost: h\r\n\r\n"
LARGE = 32 << 20  # more than both sockets buffer


async def large(_: Request) -> Response:
    return PlainTextResponse(b"x" * LARGE)


async def count(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


@pytest.mark.parametrize(
    "sent", [b"garbage\r\n\r\n", b"GET /probe HTTP/2\r\n\r\n", b"\x16\x03\x01"]
)
def test_what_is_not_http_is_refused(sent: bytes) -> None:
    with serving(application()) as server:
        assert raw(server, sent).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /count HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /count HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /count HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
        b"POST /count HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /f\xe9 HTTP/1.1\r\n\r\n",
    ],
)
def test_a_request_that_two_parsers_may_read_in_two_ways_is_refused(sent: bytes) -> None:
    with serving(application(count=count)) as server:
        answer = raw(server, sent)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1


def test_a_trailer_is_no_header() -> None:
    """Otherwise a credential behind the body would count, beside one that a proxy has checked."""

    async def shown(request: Request) -> Response:
        await request.body()
        return PlainTextResponse(",".join(sorted(request.headers)))

    head = b"POST /shown HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"2\r\n{}\r\n0\r\nAuthorization: Bearer a\r\nX-Request-Id: b\r\n\r\n"
    with serving(application(shown=shown)) as server, connected(server) as client:
        for _ in range(2):  # the second request has its own headers again
            client.sendall(head + body)
            assert replies(client, 1) == [(200, b"host,transfer-encoding")]


def test_a_connection_answers_one_request_after_another() -> None:
    with serving(application(fine=fine)) as server, connected(server) as client:
        for _ in range(3):
            client.sendall(GET)
            assert replies(client, 1) == [(200, b"fine")]


def test_requests_that_are_sent_ahead_are_answered_in_their_order() -> None:
    async def slow(_: Request) -> Response:
        await asyncio.sleep(0)
        return PlainTextResponse("slow")

    post = b"POST /count HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
    sent = GET.replace(b"fine", b"slow") + post + GET
    app = application(slow=slow, count=count, fine=fine)
    with serving(app) as server, connected(server) as client:
        client.sendall(sent)
        assert replies(client, 3) == [(200, b"slow"), (200, b"3"), (200, b"fine")]


def test_garbage_behind_a_request_does_not_break_its_reply() -> None:
    with serving(application(large=large)) as server:
        answer = raw(server, GET.replace(b"fine", b"large") + b"garbage\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert answer.endswith(b"x" * 1000)
    assert len(answer) > LARGE


def test_too_many_requests_sent_ahead_end_the_connection() -> None:
    with serving(application(fine=fine)) as server:
        assert raw(server, GET * 2000).count(b"HTTP/1.1 200") < 100
        assert ask(server, "/fine")[0] == 200


def test_a_connection_that_asks_to_be_closed_is_closed() -> None:
    with serving(application(fine=fine)) as server:
        assert raw(server, GET[:-2] + b"Connection: close\r\n\r\n").endswith(b"fine")
        assert raw(server, b"GET /fine HTTP/1.0\r\n\r\n").endswith(b"fine")


def test_a_body_is_asked_for_when_the_client_waits_for_that() -> None:
    head = b"POST /count HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    with serving(application(count=count)) as server, connected(server) as client:
        client.sendall(head)
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"abc")
        assert replies(client, 1) == [(200, b"3")]


def sent_before_the_end(client: socket.socket, piece: bytes) -> int:
    """How often the piece was sent until the server ended the connection; a million at most."""
    sent = 0
    with suppress(ConnectionResetError, BrokenPipeError):
        while sent < 1_000_000:
            client.sendall(piece)
            sent += 1
    return sent


# -- bytes of a head --


def test_a_head_above_the_bound_is_refused() -> None:
    sent = b"GET /probe HTTP/1.1\r\nX: " + b"x" * ConnectionBounds().head_bytes + b"\r\n\r\n"
    with serving(application()) as server:
        answer = raw(server, sent)
        assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""  # reset if it was still sending
        assert ask(server, "/probe")[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 1000,
        b"GET / HTTP/1.1\r\nX: ",
        b"GET / HTTP/1.1\r\n" + b"x" * 1000,
        b"POST /count HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        b"POST /count HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        b"",
    ],
    ids=["path", "header's value", "header's name", "trailer", "chunk's extension", "empty lines"],
)
def test_what_has_no_end_is_cut_off_long_before_it_fills_the_memory(head: bytes) -> None:
    endless = b"\r\n" * 4096 if not head else b"x" * 8192
    with serving(application(count=count)) as server, connected(server) as client:
        client.sendall(head)
        assert sent_before_the_end(client, endless) < 2048  # what the sockets buffer


# -- time --


def in_time(works: Callable[[ConnectionBounds], bool], **more: int) -> bool:
    """Whether something works with bounds that leave its client enough time."""
    for seconds in BOUNDS_SECONDS:
        with suppress(OSError, http.client.HTTPException, AssertionError):  # it was cut off
            if works(ConnectionBounds(seconds=seconds, idle_seconds=1, **more)):
                return True
    return False


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET /fine HTTP/1.1\r\n", b"HTTP/1.1 408 "),
        (b"POST /count HTTP/1.1\r\nContent-Length: 9\r\n\r\nshort", b"HTTP/1.1 408 "),
        (b"POST /fine HTTP/1.1\r\nContent-Length: 9\r\n\r\nshort", b"HTTP/1.1 200 "),
    ],
    ids=["nothing", "head", "body", "a body that nobody reads"],
)
def test_a_client_that_never_ends_its_request_is_told_and_cut_off(
    sent: bytes, answer: bytes
) -> None:
    def found(bounds: ConnectionBounds) -> bool:
        with serving(application(fine=fine, count=count), bounds=bounds) as server:
            found = raw(server, sent)
        return found.startswith(answer) and found.count(b"HTTP/1.1") == bool(answer)

    assert in_time(found)


def test_a_client_that_sends_its_body_byte_by_byte_is_cut_off() -> None:
    head = b"POST /count HTTP/1.1\r\nContent-Length: 999999\r\n\r\n"
    bounds = ConnectionBounds(seconds=0.1, bytes_per_second=16 << 20)
    with serving(application(count=count), bounds=bounds) as server, connected(server) as client:
        client.sendall(head)
        assert sent_before_the_end(client, b"x") < 999_999


def test_a_large_body_may_take_longer_than_a_small_one() -> None:
    head = b"POST /count HTTP/1.1\r\nContent-Length: 8388609\r\n\r\n"

    def counted(bounds: ConnectionBounds) -> bool:
        app = application(count=count)
        with serving(app, bounds=bounds) as server, connected(server) as client:
            client.sendall(head + b"x" * (8 << 20))  # allows eight seconds more
            threading.Event().wait(1.6 * bounds.seconds)  # and a look at the connections
            client.sendall(b"x")
            return replies(client, 1) == [(200, b"8388609")]

    assert in_time(counted, bytes_per_second=1 << 20)


def test_a_client_that_never_reads_is_cut_off() -> None:
    def cut_off(bounds: ConnectionBounds) -> bool:
        asked = threading.Event()

        async def noted(request: Request) -> Response:
            asked.set()
            return await large(request)

        app = application(noted=noted)
        with serving(app, bounds=bounds) as server, connected(server) as client:
            client.sendall(GET.replace(b"fine", b"noted"))
            assert asked.wait(4 * bounds.seconds)  # or the bound on its head has ended it
            while server.connections:
                pass
            return len(until_closed(client)) < LARGE

    assert in_time(cut_off)


def test_a_client_that_never_reads_and_goes_on_asking_is_cut_off() -> None:
    async def medium(_: Request) -> Response:
        return PlainTextResponse(b"x" * 50_000)

    get = GET.replace(b"fine", b"medium")
    with serving(application(medium=medium), bounds=QUICK) as server, connected(server) as client:
        assert sent_before_the_end(client, get) < 1_000_000


def test_a_client_that_reads_slowly_but_steadily_gets_all() -> None:
    def gets_all(bounds: ConnectionBounds) -> bool:
        app = application(large=large)
        with serving(app, bounds=bounds) as server, connected(server) as client:
            client.sendall(GET.replace(b"fine", b"large"))
            received, pause = 0, threading.Event()
            while received <= LARGE and (data := client.recv(1 << 20)):
                received += len(data)
                pause.wait(0.02)
        return received > LARGE

    assert in_time(gets_all, bytes_per_second=1 << 20)


def test_a_connection_without_requests_is_closed_in_the_end() -> None:
    def closed(bounds: ConnectionBounds) -> bool:
        app = application(fine=fine)
        with serving(app, bounds=bounds) as server, connected(server) as client:
            client.sendall(GET)
            return replies(client, 1) == [(200, b"fine")] and until_closed(client) == b""

    assert in_time(closed)


def test_a_request_that_computes_is_not_taken_for_a_slow_client() -> None:
    def computed(bounds: ConnectionBounds) -> bool:
        async def compute(request: Request) -> Response:
            await request.body()
            await asyncio.sleep(4 * bounds.seconds)
            return PlainTextResponse("computed")

        with serving(application(compute=compute), bounds=bounds) as server:
            return ask(server, "/compute", "POST", body=b"x")[::2] == (200, "computed")

    assert in_time(computed)


# -- connections --


def test_beyond_the_usual_connections_probes_are_answered_and_others_refused() -> None:
    running, go_on = threading.Semaphore(0), threading.Event()

    async def slow(_: Request) -> Response:
        running.release()
        await asyncio.to_thread(go_on.wait, 60)
        return PlainTextResponse("done")

    app = application(slow=slow, fine=fine)
    with serving(app, max_connections=2) as server, ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(ask, server, "/slow") for _ in range(2)]
        assert all(running.acquire(timeout=PATIENCE_SECONDS) for _ in busy)
        status, headers, body = ask(server, "/fine")
        assert status == 429
        assert "--max-concurrent-rpcs" in body
        assert int(headers["retry-after"]) > 0
        assert ask(server, "/probe")[::2] == (200, "fine")
        go_on.set()
        assert [each.result(PATIENCE_SECONDS)[::2] for each in busy] == [(200, "done")] * 2
        assert ask(server, "/fine")[::2] == (200, "fine")


def test_a_connection_beyond_the_spare_ones_is_closed_at_once() -> None:
    with serving(application(), max_connections=2) as server:
        open_ones = [connected(server) for _ in range(2 + 64)]
        try:
            assert raw(server, b"") == b""
        finally:
            for client in open_ones:
                client.close()


def test_an_idle_connection_makes_room_for_a_new_one() -> None:
    with (
        serving(application(fine=fine), max_connections=2) as server,
        connected(server) as first,
        connected(server) as second,
    ):
        for client in (first, second):
            client.sendall(GET)
            assert replies(client, 1) == [(200, b"fine")]
        with connected(server) as third:
            assert until_closed(first) == b""  # idle for longest
            for client in (second, third):
                client.sendall(GET)
                assert replies(client, 1) == [(200, b"fine")]


# -- start and stop --


def test_stopping_closes_open_connections_and_frees_the_port() -> None:
    server = HttpServer("127.0.0.1", held_port(), application())
    server.start()
    with connected(server) as client:
        client.sendall(b"GET /")
        server.stop()
        assert until_closed(client) == b""
    server.stop()
    again = HttpServer("127.0.0.1", server.port, application())
    again.start()
    again.stop()


def test_stopping_ends_requests_under_way() -> None:
    running, ended = threading.Event(), threading.Event()

    async def endless(_: Request) -> Response:
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    with serving(application(endless=endless)) as server, connected(server) as client:
        client.sendall(GET.replace(b"fine", b"endless"))
        assert running.wait(PATIENCE_SECONDS)
        server.stop()
        assert ended.is_set()
        assert until_closed(client) == b""


def test_stopping_does_not_wait_for_ever_for_the_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked, free = threading.Event(), threading.Event()

    async def blocking(_: Request) -> Response:
        blocked.set()
        free.wait(PATIENCE_SECONDS)
        return PlainTextResponse("")

    server = HttpServer("127.0.0.1", 0, application(blocking=blocking))
    server.start()
    (thread,) = (each for each in threading.enumerate() if each.name == "http")
    with connected(server) as client:
        client.sendall(GET.replace(b"fine", b"blocking"))
        assert blocked.wait(PATIENCE_SECONDS)
        monkeypatch.setattr(f"{HttpServer.__module__}._JOIN_SECONDS", 0.0)
        server.stop()
        assert "has not ended" in caplog.text
        free.set()
        thread.join(PATIENCE_SECONDS)


def test_a_port_in_use_is_reported_at_start() -> None:
    with serving(application()) as server, pytest.raises(OSError, match="in use"):
        HttpServer("127.0.0.1", server.port, application()).start()


def test_the_address_names_the_port_that_was_picked() -> None:
    with serving(application()) as server:
        assert server.port > 0
        assert server.address == f"127.0.0.1:{server.port}"


def test_ipv6_is_served_too() -> None:
    server = HttpServer("::1", 0, application(fine=fine))
    try:
        server.start()
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    try:
        assert server.address == f"[::1]:{server.port}"
        with socket.create_connection(("::1", server.port), timeout=60) as client:
            client.sendall(GET)
            assert replies(client, 1) == [(200, b"fine")]
    finally:
        server.stop()
