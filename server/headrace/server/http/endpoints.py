"""Metrics and probes over HTTP, on a thread and event loop of their own.

Apart from gRPC's loop, so that a scrape does not delay requests and a probe is answered while
requests are many. Bounded against strangers: so many connections, so many bytes of head, so many
seconds for reading one request and for writing its reply. One request a connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from headrace.server.addresses import shown_address

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 16 << 10
TIMEOUT_SECONDS = 5.0
PAUSE_SECONDS = 1.0
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reply:
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


# What a path answers; the argument is the request's headers, their names in lower case.
Route = Callable[[Mapping[str, str]], Reply]

# Why the server is not ready, in words; None if it is.
Unreadiness = Callable[[], str | None]


def operations_routes(
    registry: CollectorRegistry,
    unreadiness: Unreadiness,
    failed_networks: Callable[[], Iterable[str]] = tuple,
) -> dict[str, Route]:
    """/metrics in the form that the scraper asks for, /healthz and /readyz.

    Args:
        failed_networks: those that did not load. The server is ready without them, for it serves
            the others: a replica that is taken away for one would take these away as well.
    """

    def metrics(headers: Mapping[str, str]) -> Reply:
        encode, content_type = choose_encoder(headers.get("accept", ""))
        return Reply(HTTPStatus.OK, encode(registry), content_type)

    def healthz(_headers: Mapping[str, str]) -> Reply:
        return Reply(HTTPStatus.OK, b"alive\n")

    def readyz(_headers: Mapping[str, str]) -> Reply:
        why_not = unreadiness()
        if why_not is None:
            failed = "".join(f"network {name} failed to load\n" for name in failed_networks())
            return Reply(HTTPStatus.OK, f"ready\n{failed}".encode())
        return Reply(HTTPStatus.SERVICE_UNAVAILABLE, f"{why_not}\n".encode())

    return {"/metrics": metrics, "/healthz": healthz, "/readyz": readyz}


class HttpServer:
    """Answers GET and HEAD on fixed paths. `start` and `stop` belong to one thread.

    Args:
        host: address to listen on.
        port: 0 picks a free one.
        routes: by path; a route that raises is answered with 500 and logged.
        max_connections: open at a time; one more is closed at once.
        timeout_seconds: for reading a request, and again for writing its reply.
    """

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Route],
        *,
        max_connections: int = MAX_CONNECTIONS,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._host = host
        self._port = port
        self._routes = dict(routes)
        self._max_connections = max_connections
        self._timeout_seconds = timeout_seconds
        self._connections: set[asyncio.Task[None]] = set()  # touched on the loop only
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._running = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port listened on, once started."""
        return self._port

    @property
    def address(self) -> str:
        """``host:port``, with brackets around an IPv6 host."""
        return shown_address(self._host, self._port)

    def start(self) -> None:
        """Returns when connections are accepted.

        Raises:
            OSError: the address cannot be listened on.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server(
            (self._host, self._port), family=family, dualstack_ipv6=self._host == "::"
        )
        self._port = listener.getsockname()[1]
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listener)), name="http", daemon=True
        )
        self._thread.start()
        self._running.wait()

    def stop(self) -> None:
        """Closes every connection, returns when the thread has ended. Harmless if not started."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        assert self._loop is not None  # set before `start` returned
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        thread.join()

    async def _serve(self, listener: socket.socket) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        listener.setblocking(False)
        loop.add_reader(listener, self._accept, loop, listener)
        self._running.set()
        await self._stop.wait()
        loop.remove_reader(listener)
        listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:  # out of file descriptors: a while without accepting lets some come free
            _log.exception("cannot accept a connection")
            loop.remove_reader(listener)
            loop.call_later(PAUSE_SECONDS, self._accept_again, loop, listener)
            return
        if len(self._connections) >= self._max_connections:
            connection.close()
            return
        connection.setblocking(False)
        task = loop.create_task(self._connected(connection))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        # Also for a task that was cancelled before it began.
        task.add_done_callback(lambda _task: connection.close())

    def _accept_again(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        if listener.fileno() >= 0:  # not stopped meanwhile
            loop.add_reader(listener, self._accept, loop, listener)

    async def _connected(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_HEAD_BYTES)
        try:
            await self._answer(reader, writer)
        except (TimeoutError, OSError, EOFError, asyncio.CancelledError):
            # Too slow, gone, or stopping. Cancellation ends here: the task has nothing more to do.
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._timeout_seconds):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                head = None
        if head is None:
            text = f"the request's head is above {MAX_HEAD_BYTES} bytes\n"
            method, reply = "GET", Reply(_TOO_LARGE, text.encode())
        else:
            method, reply = self._reply(head)
        writer.write(_encoded(reply, with_body=method != "HEAD"))
        async with asyncio.timeout(self._timeout_seconds):
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    def _reply(self, head: bytes) -> tuple[str, Reply]:
        """The request's method and what it is answered."""
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        try:
            method, target, version = first.split(" ")
        except ValueError:
            method = target = version = ""
        if not version.startswith("HTTP/1."):
            return "GET", Reply(HTTPStatus.BAD_REQUEST, b"not an HTTP/1 request\n")
        path = target.partition("?")[0]
        route = self._routes.get(path)
        if route is None:
            known = ", ".join(self._routes)
            return method, Reply(HTTPStatus.NOT_FOUND, f"not found; known: {known}\n".encode())
        if method not in ("GET", "HEAD"):
            text = b"only GET and HEAD are answered\n"
            return method, Reply(_NOT_ALLOWED, text, headers=(("Allow", "GET, HEAD"),))
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        try:
            return method, route(headers)
        except Exception:  # noqa: BLE001 - one broken route must not end the server
            _log.exception("no reply to %s %s", method, path)
            return method, Reply(HTTPStatus.INTERNAL_SERVER_ERROR, b"internal error; see the log\n")


_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_NOT_ALLOWED = HTTPStatus.METHOD_NOT_ALLOWED


def _encoded(reply: Reply, *, with_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(reply.body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in reply.headers),
    ]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return head + reply.body if with_body else head
