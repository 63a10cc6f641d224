"""The HTTP side: metrics, probes, and its bounds against slow and greedy clients."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator, Mapping
from http import HTTPStatus

import pytest
from prometheus_client import CollectorRegistry

from headrace.runtime.metrics.counters import Counters
from headrace.server.http.endpoints import MAX_HEAD_BYTES, HttpServer, Reply, operations_routes
from headrace.server.http.metrics import make_registry


class Readiness:
    """Why the server is not ready, as a test sets it."""

    why_not: str | None = None

    def __call__(self) -> str | None:
        return self.why_not


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
def server(readiness: Readiness) -> Iterator[HttpServer]:
    counters = Counters()
    counters.grpc("Infer")["OK"] = 1
    routes = operations_routes(make_registry(counters, lambda: {"CPU": True}), readiness)
    server = HttpServer("127.0.0.1", 0, routes)
    server.start()
    yield server
    server.stop()


def ask(
    server: HttpServer, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read().decode()
    finally:
        connection.close()


def raw(server: HttpServer, sent: bytes) -> bytes:
    """What comes back for exactly these bytes, until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(sent)
        return until_closed(client)


def until_closed(client: socket.socket) -> bytes:
    received = b""
    try:
        while data := client.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def test_metrics_are_in_prometheus_text_by_default(server: HttpServer) -> None:
    status, headers, body = ask(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert 'headrace_grpc_requests_total{code="OK",method="Infer"} 1.0' in body


def test_metrics_are_in_openmetrics_if_asked_for(server: HttpServer) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    _, headers, body = ask(server, "/metrics", headers=accept)
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")


def test_the_process_is_alive_even_when_not_ready(server: HttpServer, readiness: Readiness) -> None:
    readiness.why_not = "draining"
    assert ask(server, "/healthz")[::2] == (200, "alive\n")


def test_readiness_says_why_not(server: HttpServer, readiness: Readiness) -> None:
    assert ask(server, "/readyz")[::2] == (200, "ready\n")
    readiness.why_not = "loading the model repository"
    assert ask(server, "/readyz")[::2] == (503, "loading the model repository\n")


def test_readiness_names_the_networks_that_failed_and_the_others_serve() -> None:
    routes = operations_routes(
        CollectorRegistry(), lambda: None, failed_networks=lambda: ["detector", "ranker"]
    )
    reply = routes["/readyz"]({})
    assert (reply.status, reply.body) == (
        200,
        b"ready\nnetwork detector failed to load\nnetwork ranker failed to load\n",
    )


def test_head_gives_the_length_without_the_body(server: HttpServer) -> None:
    status, headers, body = ask(server, "/healthz", "HEAD")
    assert (status, headers["Content-Length"], body) == (200, "6", "")


def test_an_unknown_path_names_the_known_ones(server: HttpServer) -> None:
    assert ask(server, "/metric")[::2] == (404, "not found; known: /metrics, /healthz, /readyz\n")


def test_a_query_string_is_no_part_of_the_path(server: HttpServer) -> None:
    assert ask(server, "/healthz?verbose")[0] == 200


def test_other_methods_are_refused(server: HttpServer) -> None:
    status, headers, _ = ask(server, "/metrics", "POST")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("sent", [b"garbage\r\n\r\n", b"GET /healthz HTTP/2\r\n\r\n", b"\r\n\r\n"])
def test_what_is_not_http_is_refused(server: HttpServer, sent: bytes) -> None:
    assert raw(server, sent).startswith(b"HTTP/1.1 400 ")


def test_a_head_above_the_bound_is_refused(server: HttpServer) -> None:
    sent = b"GET /healthz HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n"
    answer = raw(server, sent)
    assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""  # reset if it was still sending
    assert ask(server, "/healthz")[0] == 200


def test_a_route_that_raises_is_answered_and_the_server_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_headers: Mapping[str, str]) -> Reply:
        raise RuntimeError("secret")

    def fine(_headers: Mapping[str, str]) -> Reply:
        return Reply(HTTPStatus.OK, b"fine")

    server = HttpServer("127.0.0.1", 0, {"/broken": broken, "/fine": fine})
    server.start()
    try:
        assert ask(server, "/broken")[::2] == (500, "internal error; see the log\n")
        assert ask(server, "/fine")[::2] == (200, "fine")
    finally:
        server.stop()
    assert "secret" in caplog.text


def test_a_client_that_never_ends_its_request_is_cut_off() -> None:
    server = HttpServer("127.0.0.1", 0, {}, timeout_seconds=0.05)
    server.start()
    try:
        assert raw(server, b"GET /healthz HTTP/1.1\r\n") == b""
    finally:
        server.stop()


def test_a_client_that_never_reads_is_cut_off() -> None:
    large = Reply(HTTPStatus.OK, b"x" * (32 << 20))  # more than both sockets buffer
    routes = {"/": lambda _headers: large}
    server = HttpServer("127.0.0.1", 0, routes, max_connections=1, timeout_seconds=0.1)
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while not raw(server, b"GET /none HTTP/1.1\r\n\r\n"):
                pass  # the only place is taken until the slow client is cut off
            assert len(until_closed(client)) < len(large.body)
    finally:
        server.stop()


def test_one_connection_too_many_is_closed_at_once(readiness: Readiness) -> None:
    routes = operations_routes(make_registry(Counters(), dict), readiness)
    server = HttpServer("127.0.0.1", 0, routes, max_connections=2)
    server.start()
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(2)]
    try:
        assert raw(server, b"") == b""
    finally:
        for client in idle:
            client.close()
        server.stop()


def test_stopping_closes_open_connections_and_frees_the_port() -> None:
    server = HttpServer("127.0.0.1", 0, {})
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(b"GET /")
        server.stop()
        assert until_closed(client) == b""
    server.stop()
    again = HttpServer("127.0.0.1", server.port, {})
    again.start()
    again.stop()


def test_a_port_in_use_is_reported_at_start(server: HttpServer) -> None:
    with pytest.raises(OSError, match="in use"):
        HttpServer("127.0.0.1", server.port, {}).start()


def test_the_address_names_the_port_that_was_picked(server: HttpServer) -> None:
    assert server.port > 0
    assert server.address == f"127.0.0.1:{server.port}"


def test_ipv6_is_served_too() -> None:
    server = HttpServer("::1", 0, {"/": lambda _headers: Reply(HTTPStatus.OK, b"six")})
    try:
        server.start()
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    try:
        assert server.address == f"[::1]:{server.port}"
        with socket.create_connection(("::1", server.port), timeout=10) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert until_closed(client).endswith(b"six")
    finally:
        server.stop()
