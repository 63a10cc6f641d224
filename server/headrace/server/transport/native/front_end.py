"""The ports of the front end on HTTP/2 of our own."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Final

from headrace.http2.limits import ConnectionLimits
from headrace.runtime.errors import InvalidArgument
from headrace.server.addresses import shown_address
from headrace.server.settings.settings import Settings
from headrace.server.transport.acceptor import Acceptor
from headrace.server.transport.call import Methods
from headrace.server.transport.limits import max_connections, max_streams
from headrace.server.transport.native.connections import Connections
from headrace.server.transport.native.strangers import STRANGER_SECONDS
from headrace.server.transport.tls import ServerTls

_HANDSHAKE_SECONDS: Final = 10.0
_TRIES: Final = 16
"""How many ports of the system's choice are tried: one that is free at the first address may be
another program's at the next."""
_LEAST_UNREAD: Final = 128
_COMING_MESSAGES: Final = 8
"""How many messages of the largest size may be on their way at a time. One connection gets half."""


class NativeFrontEnd:
    """A `FrontEnd` on a TCP port, or at the path of a Unix socket. There the system says whose
    connection it is.

    Args:
        tls: the certificate. None for plain text.
        methods: what calls find.
    """

    def __init__(self, settings: Settings, tls: ServerTls | None, methods: Methods) -> None:
        self._host, self._wanted = settings.host, settings.port
        self._listeners: list[socket.socket] = []
        most = settings.max_message_bytes
        bounds = ConnectionLimits(streams=max_streams(settings), message_bytes=most)
        self._connections = Connections(
            methods,
            bounds,
            most=max_connections(settings),
            room_bytes=_COMING_MESSAGES * (most or 64 << 20),
            # The windows of all streams, so that only who sends crumbs ever fills it.
            unread_bytes=max(_LEAST_UNREAD, settings.max_concurrent_rpcs) * bounds.window_bytes,
            stranger_seconds=STRANGER_SECONDS if settings.has_access_control else None,
        )
        self._acceptor = Acceptor(
            self._connections.connect,
            tls.grpc_context if tls is not None else None,
            _HANDSHAKE_SECONDS,
        )

    @property
    def connections(self) -> int:
        return self._connections.count

    def bind(self) -> int:
        tries = 1 if self._wanted else _TRIES
        try:
            found = socket.getaddrinfo(
                self._host, self._wanted, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            while not self._listeners:
                tries -= 1
                try:
                    self._listeners = self._bound(dict.fromkeys(found))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE or not tries:
                        raise
        except OSError as error:
            raise InvalidArgument(
                f"cannot listen on {shown_address(self._host, self._wanted)}: {error.strerror}",
                field="port",
            ) from error
        port: int = self._listeners[0].getsockname()[1]
        return port

    def _bound(self, found: Iterable[tuple[Any, ...]]) -> list[socket.socket]:
        """Listeners at all addresses, on one port."""
        listeners: list[socket.socket] = []
        port = self._wanted
        with ExitStack() as stack:
            for family, _, _, _, address in found:
                both = family == socket.AF_INET6 and self._host in ("::", "[::]")
                listener = socket.create_server(
                    (address[0], port), family=family, dualstack_ipv6=both
                )
                listeners.append(stack.enter_context(listener))
                port = listener.getsockname()[1]
            stack.pop_all()
        return listeners

    def listen(self, path: str) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listeners.append(listener)
        listener.bind(path)
        listener.listen()

    async def start(self) -> None:
        for listener in self._listeners:
            self._acceptor.open(listener)

    async def lost(self) -> None:
        """Never returns."""
        await asyncio.get_running_loop().create_future()

    async def stop(self, seconds: float) -> None:
        await self._acceptor.close()
        for listener in self._listeners:
            listener.close()
        await self._connections.close(seconds)
