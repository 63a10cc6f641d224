"""gRPC over a Unix socket, beside the front end on TCP or instead of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Final

import grpc

from headrace.runtime.errors import InvalidArgument
from headrace.server.settings.settings import Settings
from headrace.server.shared_memory.handover import SUFFIX, Handover
from headrace.server.transport.connections import cut_connections
from headrace.server.transport.limits import channel_options, strangers
from headrace.server.transport.strangers import STRANGER_SECONDS
from headrace.server.transport.unix_socket import Permissions, SocketFile, owner_of

_IDLE_MILLISECONDS: Final = int(STRANGER_SECONDS * 1000)


class UnixFrontEnd:
    """Serves the methods on a Unix socket, without TLS: who may connect is up to the permissions
    of its file. Its connections have no names, so gRPC calls all of them ``unix:``.

    Belongs to the thread of the event loop on which it is made.

    Args:
        path: the path of the socket.
        handlers: finds the handler of a call.
        handover: takes memory on a socket of its own, beside this one. None: clients send tensors
            in messages.

    Raises:
        AlreadyExists: another server uses the path.
        InvalidArgument: the path or the owner cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        path: Path,
        handlers: grpc.GenericRpcHandler,
        handover: Handover | None,
    ) -> None:
        permissions = Permissions(settings.unix_socket_mode, *owner_of(settings.unix_socket_owner))
        self.address = f"unix:{path.absolute()}"
        self._file = SocketFile(path, permissions)
        self._handover = handover
        self._bound = ""  # the path under which the system knows the socket
        settings = replace(settings, processes=1)  # no front ends have a part in it
        # gRPC does not say whose call it is, so the connections of those who have shown a
        # credential cannot be told from others. A stranger's call ends at once, and a connection
        # without a call ends, too. A client connects again with its next call.
        idle = [("grpc.max_connection_idle_ms", _IDLE_MILLISECONDS)]
        options = [*channel_options(settings), *(idle if settings.has_access_control else [])]
        self._strangers = strangers(settings, checks=False)
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((handlers,))

    @property
    def connections(self) -> int:
        """How many connections are open. Any thread may read it."""
        return self._strangers.connections

    def bind(self) -> None:
        """Makes the sockets. Connections wait until `start`.

        Raises:
            AlreadyExists: another server uses the path.
            InvalidArgument: the system refuses the path or its owner.
        """
        self._file.place(self._listen)
        if self._handover is not None:
            self._file.place(self._handover.listen, SUFFIX)

    def _listen(self, path: str) -> None:
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise InvalidArgument(
                f"cannot make a socket for {self.address}", field="unix_socket"
            ) from error
        self._bound = path

    async def start(self) -> None:
        """Accepts connections, after `bind`."""
        await self._server.start()
        self._strangers.start(self._bound)
        if self._handover is not None:
            self._handover.start()

    async def stop(self, seconds: float) -> None:
        """Removes the sockets and ends the connections. Calls that last longer than that are
        cancelled. It may also be called without `start` or `bind`."""
        self._file.remove()
        if self._bound:
            cut_connections(self._bound)
        await self._server.stop(seconds)
        await asyncio.to_thread(self._strangers.stop)
        if self._handover is not None:
            await self._handover.close()
