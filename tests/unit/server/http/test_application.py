"""What every HTTP request goes through: ids, errors, counting, logs, and the end of the server."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import grpc
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headrace.runtime import errors
from headrace.runtime.metrics.counters import Counters
from headrace.runtime.metrics.families import HTTP_REQUESTS
from headrace.server.http.application import Application
from headrace.server.http.errors import STATUSES
from headrace.server.http.server import HttpServer
from headrace.server.logs import configure_logging
from headrace.testing.counted import number
from headrace.testing.occupied import eventually
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.server.http.serving import application, ask, connected, fine, guarded, raw, serving


async def broken(_: Request) -> Response:
    raise RuntimeError("secret")


def test_a_route_that_raises_says_an_id_that_the_log_explains_and_the_server_goes_on() -> None:
    log = io.StringIO()
    configure_logging(form="json", stream=log)
    with serving(application(broken=broken, fine=fine)) as server:
        status, _, body = ask(server, "/broken")
        assert status == 500
        assert body.startswith("internal error ")
        assert "secret" not in body
        assert ask(server, "/fine")[::2] == (200, "fine")
    event, failed = map(json.loads, log.getvalue().splitlines())
    assert "secret" in event["exception"]
    assert event["error_id"] in body
    assert event["where"] == "GET /broken"
    assert failed["request_id"] == event["request_id"]
    assert "secret" not in json.dumps(failed)


def raising(error: Exception) -> Application:
    async def refuse(_: Request) -> Response:
        raise error

    return Application([], Counters(), [guarded("/v2/refuse", refuse), guarded("/refuse", refuse)])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidArgument("no"), 400),
        (errors.FailedPrecondition("no"), 400),
        (errors.NotFound("no"), 404),
        (errors.AlreadyExists("no"), 409),
        (errors.ResourceExhausted("no"), 429),
        (errors.Unimplemented("no"), 501),
        (errors.Unavailable("no"), 503),
        (errors.DeadlineExceeded("no"), 504),
        (errors.Cancelled("no"), 499),
    ],
)
def test_an_error_has_its_status_and_the_protocol_s_body(error: Exception, status: int) -> None:
    with serving(raising(error)) as server:
        found, headers, body = ask(server, "/v2/refuse")
        assert (found, json.loads(body)) == (status, {"error": "no"})
        assert headers["content-type"] == "application/json"
        assert ask(server, "/refuse")[::2] == (status, "no\n")
        assert ("retry-after" in headers) == (status in (429, 503))


def test_the_body_names_the_field_at_fault() -> None:
    with serving(raising(errors.InvalidArgument("takes text", field="parameters['a']"))) as server:
        assert json.loads(ask(server, "/v2/refuse")[2]) == {"error": "parameters['a']: takes text"}
    named = errors.InvalidArgument("priority is 99; give less", field="priority")
    with serving(raising(named)) as server:
        assert json.loads(ask(server, "/v2/refuse")[2]) == {"error": "priority is 99; give less"}


def test_every_status_that_grpc_has_is_one_of_http() -> None:
    assert STATUSES.keys() == {each.name for each in grpc.StatusCode}


def test_a_full_queue_says_when_to_try_again() -> None:
    with serving(raising(errors.QueueFull("full", retry_delay_seconds=2.5))) as server:
        status, headers, _ = ask(server, "/v2/refuse")
    assert (status, headers["retry-after"]) == (429, "3")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /v2 HTTP/1.1\r\nX: " + b"x" * (17 << 10) + b"\r\n\r\n", 431),
        (b"POST /count HTTP/1.1\r\nContent-Length: abc\r\n\r\n", 400),
        (b"no request\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_gets_json_and_an_id_that_the_log_has(
    sent: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.server.request_log")
    with serving(application()) as server:
        head, _, body = raw(server, sent).partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ") for line in lines[1:])
    assert (lines[0].split(" ")[1], list(json.loads(body))) == (str(status), ["error"])
    assert (headers["connection"], int(headers["content-length"])) == ("close", len(body))
    (line,) = (vars(each) for each in caplog.records if hasattr(each, "request_id"))
    assert (line["request_id"], line["code"]) == (headers["x-request-id"], str(status))


def test_that_something_is_not_ready_is_an_answer_and_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def unready(_: Request) -> Response:
        return PlainTextResponse("loading", 503)

    caplog.set_level(logging.DEBUG, "headrace.server.request_log")
    counters = Counters()
    with serving(application(counters, ready=unready)) as server:
        assert ask(server, "/ready")[0] == 503
    (line,) = (each for each in caplog.records if hasattr(each, "request_id"))
    assert (line.levelno, line.message, vars(line)["code"]) == (
        logging.DEBUG,
        "request ended",
        "503",
    )


def test_a_request_keeps_its_id_or_gets_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "headrace.server.request_log")
    with serving(application(fine=fine)) as server:
        _, headers, _ = ask(server, "/fine", headers={"X-Request-Id": "mine"})
        assert headers["x-request-id"] == "mine"
        identifiers = {ask(server, "/fine")[1]["x-request-id"] for _ in range(2)}
        assert len(identifiers) == 2
        _, headers, _ = ask(server, "/fine", headers={"X-Request-Id": "a" * 500})
        assert headers["x-request-id"] == "a" * 128
        _, headers, _ = ask(server, "/fine", headers={"X-Request-Id": "\xe9"})
        assert headers["x-request-id"].isascii()
    told = [vars(each) for each in caplog.records if hasattr(each, "method")]
    assert {(each["method"], each["code"]) for each in told} == {("GET /fine", "200")}


def test_the_request_of_a_client_that_leaves_is_cancelled_and_counted_as_such() -> None:
    counters, running, left = Counters(), threading.Event(), threading.Event()

    async def wait(request: Request) -> Response:
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            left.set()
        raise AssertionError

    async def read(request: Request) -> Response:
        try:
            running.set()
            await request.body()
        finally:
            left.set()
        raise AssertionError

    post = b"POST /read HTTP/1.1\r\nContent-Length: 9\r\n\r\nshort"
    get = b"GET /wait HTTP/1.1\r\n\r\n"
    with serving(application(counters, wait=wait, read=read)) as server:
        for sent in (get, get * 3, post):
            running.clear()
            left.clear()
            with connected(server) as client:
                client.sendall(sent)
                assert running.wait(PATIENCE_SECONDS)
            assert left.wait(PATIENCE_SECONDS)
            ask(server, "/probe")  # behind the other's end, on the same loop
    snapshot = counters.snapshot()
    assert number(snapshot, HTTP_REQUESTS, "/read", "499") == 1
    assert number(snapshot, HTTP_REQUESTS, "/wait", "499") == 2


class _Tensors:
    """What a request's context holds."""


_TENSORS: ContextVar[_Tensors | None] = ContextVar("tensors", default=None)


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "leaves"])
@pytest.mark.parametrize("size", [1, 1 << 24], ids=["small", "large"])
def test_nothing_holds_what_a_request_held_once_it_is_over(stays: bool, size: int) -> None:
    """Neither the timer of an idle connection, nor a cycle that waits for the collector."""
    held: list[weakref.ref[_Tensors]] = []

    async def reply(_: Request) -> Response:
        tensors = _Tensors()
        held.append(weakref.ref(tensors))
        _TENSORS.set(tensors)
        return Response(bytes(size))

    gc.disable()
    try:
        with serving(application(reply=reply)) as server, connected(server) as client:
            client.sendall(b"GET /reply HTTP/1.1\r\nHost: x\r\n\r\n")
            client.recv(1)
            if stays:
                left = size
                while left > 0:
                    left -= len(client.recv(1 << 20))
            else:
                client.close()
            eventually(lambda: held[0]() is None, "the request's tensors are gone")
    finally:
        gc.enable()


def test_a_drain_waits_for_what_runs_and_refuses_what_comes() -> None:
    running, go_on = threading.Event(), threading.Event()

    async def slow(_: Request) -> Response:
        running.set()
        await asyncio.to_thread(go_on.wait, 60)
        return PlainTextResponse("done")

    app = application(slow=slow)
    with serving(app) as server, ThreadPoolExecutor(2) as pool:
        reply = pool.submit(ask, server, "/slow")
        assert running.wait(PATIENCE_SECONDS)
        app.draining = True
        drain = pool.submit(asyncio.run, server.call(app.drain))
        status, headers, body = ask(server, "/slow")
        assert (status, body) == (503, "the server is shutting down; use another one\n")
        assert int(headers["retry-after"]) > 0
        assert ask(server, "/probe")[::2] == (200, "fine")
        assert not drain.done()
        go_on.set()
        assert reply.result(PATIENCE_SECONDS)[::2] == (200, "done")
        drain.result(PATIENCE_SECONDS)


def test_work_that_is_cancelled_at_the_end_is_answered() -> None:
    running = threading.Event()

    async def endless(_: Request) -> Response:
        running.set()
        await asyncio.Event().wait()
        raise AssertionError

    app = application(endless=endless)
    with serving(app) as server, ThreadPoolExecutor(1) as pool:
        reply = pool.submit(ask, server, "/endless")
        assert running.wait(PATIENCE_SECONDS)
        asyncio.run(server.call(app.cancel))
        assert reply.result(PATIENCE_SECONDS)[0] == 503


def test_nothing_is_drained_where_no_server_has_started() -> None:
    app = application()
    asyncio.run(HttpServer("127.0.0.1", 0, app).call(app.drain))
