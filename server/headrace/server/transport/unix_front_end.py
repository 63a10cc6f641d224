"""gRPC over a Unix socket, beside the front end on TCP or instead of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc

from headrace.runtime.errors import InvalidArgument
from headrace.server.settings.settings import Settings
from headrace.server.shared_memory.handover import SUFFIX, Handover
from headrace.server.transport.connections import cut_connections
from headrace.server.transport.limits import channel_options
from headrace.server.transport.unix_socket import Permissions, SocketFile, owner_of

_TABLE: Final = Path("/proc/net/unix")
_LISTENS: Final = 0x10000  # __SO_ACCEPTCON


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
        self._server = grpc.aio.server(options=channel_options(settings))
        self._server.add_generic_rpc_handlers((handlers,))

    @property
    def connections(self) -> int:
        """How many connections are open. Any thread may read it."""
        return count_connections(self._bound) if self._bound else 0

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
        if self._handover is not None:
            self._handover.start()

    async def stop(self, seconds: float) -> None:
        """Removes the sockets and ends the connections. Calls that last longer than that are
        cancelled. It may also be called without `start` or `bind`."""
        self._file.remove()
        if self._bound:
            cut_connections(self._bound)
        await self._server.stop(seconds)
        if self._handover is not None:
            await self._handover.close()


def count_connections(path: str, table: Path = _TABLE) -> int:
    """How many connections a Unix socket has accepted that are still open.

    Args:
        path: the path that the socket was bound to.
    """
    try:
        lines = table.read_bytes().splitlines()
    except OSError:
        return 0
    name, count = path.encode(), 0
    for line in lines:
        columns = line.split(None, 7)
        if len(columns) == 8 and columns[7] == name:
            count += not int(columns[3], 16) & _LISTENS
    return count
