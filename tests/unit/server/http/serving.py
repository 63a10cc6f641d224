"""A HTTP server for tests, and clients of it that say exactly what they send."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headrace.runtime.metrics.counters import Counters
from headrace.server.access.identity import Role
from headrace.server.http.application import Application
from headrace.server.http.guard import GuardedRoute
from headrace.server.http.server import HttpServer

Endpoint = Callable[[Request], Awaitable[Response]]


async def fine(_: Request) -> Response:
    return PlainTextResponse("fine")


def guarded(path: str, endpoint: Endpoint, *methods: str) -> GuardedRoute:
    """A route for everybody, for GET unless told otherwise."""
    return GuardedRoute(path, endpoint, dict.fromkeys(methods or ("GET",), Role.OPEN))


def application(counters: Counters | None = None, /, **endpoints: Endpoint) -> Application:
    """One that answers a probe at /probe and each endpoint at /NAME."""
    routes = [guarded(f"/{name}", each, "GET", "POST") for name, each in endpoints.items()]
    return Application([guarded("/probe", fine)], counters or Counters(), routes)


@contextmanager
def serving(application: Application, **options: Any) -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1", 0, application, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ask(
    server: HttpServer,
    path: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> tuple[int, dict[str, str], str]:
    """Status, headers with their names in lower case, and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body, headers=dict(headers or {}))
        reply = connection.getresponse()
        given = {name.lower(): value for name, value in reply.getheaders()}
        return reply.status, given, reply.read().decode()
    finally:
        connection.close()


def connected(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def raw(server: HttpServer, sent: bytes) -> bytes:
    """What comes back for exactly these bytes, until the server closes."""
    with connected(server) as client:
        client.sendall(sent)
        return until_closed(client)


def until_closed(client: socket.socket) -> bytes:
    received = []
    try:
        while data := client.recv(1 << 20):
            received.append(data)
    except ConnectionResetError:
        pass
    return b"".join(received)


def replies(client: socket.socket, number: int) -> list[tuple[int, bytes]]:
    """Status and body of so many replies on one connection, in order; all with a length."""
    found: list[tuple[int, bytes]] = []
    received = b""
    while len(found) < number:
        head, end, rest = received.partition(b"\r\n\r\n")
        length = [
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        ]
        if end and len(rest) >= length[0]:
            found.append((int(head.split(b" ")[1]), rest[: length[0]]))
            received = rest[length[0] :]
            continue
        data = client.recv(65536)
        assert data, f"the connection ended after {found} and {received!r}"
        received += data
    return found
