"""The HTTP server: uvicorn on a thread and an event loop of its own.

The loop is separate from gRPC's loop. So HTTP work does not delay gRPC's calls, and the server
answers a probe while there are many calls. On such a thread, uvicorn installs no signal handlers
and does not change the logging.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from ssl import SSLContext
from typing import Any, cast

import uvicorn

from headrace.server.addresses import shown_address
from headrace.server.http.application import Application
from headrace.server.http.connection import ConnectionBounds, ConnectionLimit, HttpConnection
from headrace.server.loop import LastingLoop
from headrace.server.transport.acceptor import Acceptor

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 1024
_STOP_SECONDS = 1
_JOIN_SECONDS = 5.0


class HttpServer:
    """Serves one application. `start` and `stop` belong to one thread.

    Args:
        host: the address to listen on.
        port: the port to listen on. 0 picks a free port.
        application: its lifespan begins and ends on the server's thread.
        max_connections: the most open connections. Beyond it, some more may be open and are marked
            as spare. Any further connection is closed at once.
        bounds: the bounds of each connection. A handshake has the time that a head has.
        tls: gives the context for a new connection. Without it, the server speaks plain HTTP.
    """

    def __init__(
        self,
        host: str,
        port: int,
        application: Application,
        *,
        max_connections: int = MAX_CONNECTIONS,
        bounds: ConnectionBounds | None = None,
        tls: Callable[[], SSLContext] | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._application = application
        self._slots = ConnectionLimit(max_connections)
        self._bounds = bounds or ConnectionBounds()
        self._tls = tls
        self._server: _Uvicorn | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that the server listens on, once it has started."""
        return self._port

    @property
    def address(self) -> str:
        """``host:port``, with brackets around an IPv6 host."""
        return shown_address(self._host, self._port)

    @property
    def connections(self) -> int:
        """How many connections are open. Any thread may call this."""
        return len(self._server.server_state.connections) if self._server is not None else 0

    def start(self) -> None:
        """Returns when connections are accepted.

        Raises:
            OSError: the server cannot listen on the address.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server(
            (self._host, self._port), family=family, dualstack_ipv6=self._host == "::"
        )
        self._port = listener.getsockname()[1]
        running: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(listener, running), name="http", daemon=True
        )
        self._thread.start()
        running.result()

    def stop(self) -> None:
        """Closes all connections, and waits some seconds for the thread to end. Harmless if not
        started. Blocks: not for an event loop's thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        assert self._loop is not None  # set before `start` returned
        assert self._server is not None
        self._loop.call_soon_threadsafe(self._server.end)
        thread.join(_JOIN_SECONDS)
        if thread.is_alive():  # it ends with the process
            _log.warning("the HTTP server has not ended within %g seconds", _JOIN_SECONDS)

    async def call(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Awaits `function` on the server's loop, for a caller on another loop.

        Does nothing if the server is not started.
        """
        if self._thread is not None:
            assert self._loop is not None  # set before `start` returned
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(), self._loop))

    def _run(self, listener: socket.socket, running: Future[None]) -> None:
        with listener, asyncio.Runner(loop_factory=LastingLoop) as runner:
            try:
                runner.run(self._serve(listener, running))
            except BaseException as error:  # noqa: BLE001 - uvicorn raises SystemExit too
                if running.done():
                    _log.exception("the HTTP server has ended")
                else:
                    running.set_exception(error)

    async def _serve(self, listener: socket.socket, running: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        protocol = partial(
            HttpConnection,
            bounds=self._bounds,
            slots=self._slots,
            refused=self._application.refused,
        )
        config = uvicorn.Config(
            self._application,
            http=cast("type[asyncio.Protocol]", protocol),
            ws="none",
            lifespan="on",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=self._bounds.idle_seconds,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        self._server = _Uvicorn(config, running, self._tls, self._bounds.seconds)
        await self._server.serve([listener])


class _Uvicorn(uvicorn.Server):
    """Reports when it listens, checks its connections ten times a second, and ends at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        running: Future[None],
        tls: Callable[[], SSLContext] | None,
        handshake_seconds: float,
    ) -> None:
        super().__init__(config)
        self._running = running
        self._acceptor: Acceptor | None = None
        if tls is not None:
            self._acceptor = Acceptor(lambda _: self._connection(), tls, handshake_seconds)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            for listener in sockets or []:
                self._acceptor.open(listener)
        self._running.set_result(None)

    def _connection(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    async def on_tick(self, counter: int) -> bool:
        now = time.monotonic()
        for connection in list(self._connections()):
            connection.check(now)
        return await super().on_tick(counter)

    def end(self) -> None:
        """Ends `serve` without waiting for requests."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor is not None:
            await self._acceptor.close()
        for connection in list(self._connections()):
            connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()
        await super().shutdown(sockets)

    def _connections(self) -> Any:
        return (
            connection
            for connection in self.server_state.connections
            if isinstance(connection, HttpConnection)
        )
