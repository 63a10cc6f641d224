"""Bodies over real sockets: their lengths, encodings and memory, and how replies are deflated."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headrace.runtime.metrics.counters import Counters
from headrace.server.http.application import Application
from headrace.server.http.rest.bodies import Bodies
from headrace.server.http.rest.replies import Pieces, accepted_encoding, deflated
from headrace.server.http.server import HttpServer
from headrace.wire.codec import Buffer
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.server.http.serving import ask, connected, guarded, raw, replies, serving

LIMIT = 1 << 20
PATH = "/v2/echo"


class Echo:
    """Answers with what it was sent: the JSON's length, and all bytes; waits if it is held."""

    def __init__(self, capacity: int) -> None:
        self.bodies = Bodies(LIMIT, capacity)
        self.held = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    async def __call__(self, request: Request) -> Response:
        async with self.bodies.collected(request) as (body, _):
            self.held.set()
            await asyncio.to_thread(self.go_on.wait, 60)
            assert body.binary.readonly
            length = f"{len(body.text)} ".encode()
            parts: list[Buffer] = [length, body.text, body.binary]
            packed, encoding = await deflated(parts, accepted_encoding(request))
            headers = {"content-encoding": encoding} if encoding else {}
            return Pieces(packed, headers)


@pytest.fixture
def echo() -> Echo:
    return Echo(8 * LIMIT)


@pytest.fixture
def server(echo: Echo) -> Iterator[HttpServer]:
    async def answer(request: Request) -> Response:
        return await echo(request)

    async def fine(_: Request) -> Response:
        return PlainTextResponse("fine")

    routes = [guarded(PATH, answer, "POST"), guarded("/v2/fine", fine, "POST")]
    with serving(Application([], Counters(), routes)) as server:
        yield server


def post(server: HttpServer, body: bytes, **headers: str) -> tuple[int, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, _, said = ask(server, PATH, "POST", named, body)
    return status, said


def test_the_json_s_length_says_where_binary_data_begin(server: HttpServer) -> None:
    assert post(server, b"{}bin") == (200, "5 {}bin")
    assert post(server, b"{}bin", Inference_Header_Content_Length="2") == (200, "2 {}bin")
    assert post(server, b"{}", Inference_Header_Content_Length="2") == (200, "2 {}")


@pytest.mark.parametrize("length", ["-1", "x", "3", "", "9" * 40, "1.0", "\xb2"])
def test_a_length_of_the_json_that_cannot_be_is_refused(server: HttpServer, length: str) -> None:
    status, said = post(server, b"{}", Inference_Header_Content_Length=length)
    assert status == 400
    assert "inference-header-content-length" in json.loads(said)["error"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZip", "identity"])
def test_a_body_is_inflated(server: HttpServer, encoding: str) -> None:
    sent = b"{}" + b"x" * 600_000
    packed = {"gzip": gzip.compress(sent), "deflate": zlib.compress(sent), "identity": sent}
    status, said = post(
        server,
        packed[encoding.lower()],
        Content_Encoding=encoding,
        Inference_Header_Content_Length="2",
    )
    assert (status, said) == (200, "2 " + sent.decode())


def test_a_body_that_inflates_beyond_the_limit_is_refused(server: HttpServer) -> None:
    bomb = gzip.compress(bytes(64 << 20))
    assert len(bomb) < LIMIT
    status, said = post(server, bomb, Content_Encoding="gzip")
    assert status == 413
    assert "--max-message-bytes" in json.loads(said)["error"]
    assert post(server, gzip.compress(bytes(LIMIT)), Content_Encoding="gzip")[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        gzip.compress(b"{}", mtime=0)[:-1],
        gzip.compress(b"{}", mtime=0) + b"more",
        gzip.compress(b"{}", mtime=0) * 2,
        zlib.compress(b"{}"),
        gzip.compress(b"{}", mtime=0)[:-8] + b"\0" * 8,
    ],
)
def test_a_body_that_is_not_of_its_encoding_is_refused(server: HttpServer, body: bytes) -> None:
    status, said = post(server, body, Content_Encoding="gzip")
    assert status == 400
    assert "Content-Encoding" in json.loads(said)["error"]


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "zstd"])
def test_an_encoding_that_is_not_known_is_refused(server: HttpServer, encoding: str) -> None:
    status, said = post(server, b"{}", Content_Encoding=encoding)
    assert (status, "gzip and deflate" in said) == (415, True)


def test_a_body_above_the_limit_is_refused_before_it_is_sent(server: HttpServer) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nContent-Length: {LIMIT + 1}\r\nExpect: 100-continue\r\n\r\n"
    with connected(server) as client:
        client.sendall(head.encode())
        ((status, said),) = replies(client, 1)
    assert status == 413
    assert b"--max-message-bytes" in said
    assert post(server, bytes(LIMIT))[0] == 200


def test_a_body_without_a_length_is_refused_and_one_in_chunks_is_not(server: HttpServer) -> None:
    head = f"POST {PATH} HTTP/1.1\r\n".encode()
    answer = raw(server, head + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 411 ")
    chunked = head + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert raw(server, chunked + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n").endswith(b"2 {}")
    endless = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    answer = raw(server, chunked + endless * 17 + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_bodies_that_take_all_memory_make_others_try_later() -> None:
    echo = Echo(2 * LIMIT)
    echo.go_on.clear()

    async def answer(request: Request) -> Response:
        return await echo(request)

    app = Application([], Counters(), [guarded(PATH, answer, "POST")])
    with serving(app) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, server, bytes(900_000))
        assert echo.held.wait(PATIENCE_SECONDS)
        status, headers, said = ask(server, PATH, "POST", body=bytes(900_000))
        assert (status, int(headers["retry-after"]) > 0) == (429, True)
        assert "memory for bodies" in json.loads(said)["error"]
        echo.go_on.set()
        assert first.result(PATIENCE_SECONDS)[0] == 200
        assert post(server, bytes(900_000))[0] == 200  # all has been given back


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("br, deflate;q=0.5, gzip;q=0.1", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip; q=0", None),
        ("br", None),
        ("", None),
    ],
)
def test_a_large_reply_is_deflated_if_the_client_takes_that(
    server: HttpServer, accepted: str, encoding: str | None
) -> None:
    for size in (2000, 600_000):
        head = (
            f"POST {PATH} HTTP/1.1\r\nContent-Length: {size}\r\nAccept-Encoding: {accepted}\r\n"
            "Connection: close\r\n\r\n"
        )
        answer = raw(server, head.encode() + b"x" * size)
        headers, _, body = answer.partition(b"\r\n\r\n")
        assert (b"content-encoding: " in headers) == (encoding is not None)
        if encoding is not None:
            assert f"content-encoding: {encoding}".encode() in headers
            assert len(body) < size / 10
            body = zlib.decompress(body, 16 + 15 if encoding == "gzip" else 15)
        assert body == f"{size} ".encode() + b"x" * size


def test_a_small_reply_is_not_worth_deflating(server: HttpServer) -> None:
    status, headers, said = ask(server, PATH, "POST", {"Accept-Encoding": "gzip"}, b"{}")
    assert (status, said, "content-encoding" in headers) == (200, "2 {}", False)
