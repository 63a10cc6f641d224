"""The ports of the front end on HTTP/2 of our own."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from headrace.http2.limits import Limits
from headrace.runtime.errors import InvalidArgument
from headrace.server.addresses import shown_address
from headrace.server.settings.settings import Settings
from headrace.server.shared_memory.handover import SUFFIX, Handover
from headrace.server.transport.call import Methods
from headrace.server.transport.doorway import Doorway
from headrace.server.transport.limits import max_connections, max_streams
from headrace.server.transport.native.connections import Connections
from headrace.server.transport.native.strangers import STRANGER_SECONDS
from headrace.server.transport.tls import ServerTls
from headrace.server.transport.unix_socket import Permissions, SocketFile, owner_of

_HANDSHAKE_SECONDS: Final = 10.0
_COMING_MESSAGES: Final = 8
"""How many messages of the largest size may be on their way at a time. One connection gets half."""


def _connections(settings: Settings, methods: Methods) -> Connections:
    most = settings.max_message_bytes
    return Connections(
        methods,
        Limits(streams=max_streams(settings), message_bytes=most),
        most=max_connections(settings),
        room_bytes=_COMING_MESSAGES * (most or 64 << 20),
        stranger_seconds=STRANGER_SECONDS if settings.has_access_control else None,
    )


class NativeFrontEnd:
    """A `FrontEnd` on a TCP port.

    Args:
        tls: the certificate. None for plain text.
        methods: what calls find.
    """

    def __init__(self, settings: Settings, tls: ServerTls | None, methods: Methods) -> None:
        self._host, self._wanted = settings.host, settings.port
        self._listeners: list[socket.socket] = []
        self._connections = _connections(settings, methods)
        self._doorway = Doorway(
            self._connections.connect,
            tls.grpc_context if tls is not None else None,
            _HANDSHAKE_SECONDS,
        )

    @property
    def connections(self) -> int:
        """As `FrontEnd.connections`."""
        return self._connections.count

    def bind(self) -> int:
        """As `FrontEnd.bind`."""
        port = self._wanted
        try:
            found = socket.getaddrinfo(
                self._host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                both = family == socket.AF_INET6 and self._host in ("::", "[::]")
                listener = socket.create_server(
                    (address[0], port), family=family, dualstack_ipv6=both
                )
                self._listeners.append(listener)
                port = listener.getsockname()[1]
        except OSError as error:
            raise InvalidArgument(
                f"cannot listen on {shown_address(self._host, self._wanted)}: {error.strerror}",
                field="port",
            ) from error
        return port

    async def start(self) -> None:
        """As `FrontEnd.start`."""
        for each in self._listeners:
            self._doorway.open(each)

    async def stop(self, seconds: float) -> None:
        """As `FrontEnd.stop`."""
        await self._doorway.close()
        for each in self._listeners:
            each.close()
        await self._connections.close(seconds)


class NativeUnixFrontEnd:
    """A `FrontEnd` on a Unix socket, without TLS: who may connect is up to the permissions of its
    file. The system says whose connection it is.

    Args:
        path: the path of the socket.
        methods: what calls find.
        handover: takes memory on a socket of its own, beside this one. None: clients send tensors
            in messages.

    Raises:
        AlreadyExists: another server uses the path.
        InvalidArgument: the path or the owner cannot be used.
    """

    def __init__(
        self, settings: Settings, path: Path, methods: Methods, handover: Handover | None
    ) -> None:
        permissions = Permissions(settings.unix_socket_mode, *owner_of(settings.unix_socket_owner))
        self.address = f"unix:{path.absolute()}"
        self._file = SocketFile(path, permissions)
        self._handover = handover
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connections = _connections(settings, methods)
        self._doorway = Doorway(self._connections.connect, None, _HANDSHAKE_SECONDS)

    @property
    def connections(self) -> int:
        """How many connections are open. Any thread may read it."""
        return self._connections.count

    def bind(self) -> int:
        """As `FrontEnd.bind`. Connections wait until `start`."""

        def listen(path: str) -> None:
            self._listener.bind(path)
            self._listener.listen()

        self._file.place(listen)
        if self._handover is not None:
            self._file.place(self._handover.listen, SUFFIX)
        return 0

    async def start(self) -> None:
        """As `FrontEnd.start`."""
        self._doorway.open(self._listener)
        if self._handover is not None:
            self._handover.start()

    async def stop(self, seconds: float) -> None:
        """As `FrontEnd.stop`."""
        self._file.remove()
        await self._doorway.close()
        self._listener.close()
        await self._connections.close(seconds)
        if self._handover is not None:
            await self._handover.close()
