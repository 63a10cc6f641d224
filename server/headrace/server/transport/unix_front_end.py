"""A front end on a Unix socket: its file, and the socket beside it that takes memory."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from headrace.server.settings.settings import Settings
from headrace.server.shared_memory.handover import SUFFIX, HandoverSocket
from headrace.server.transport.front_end import FrontEnd
from headrace.server.transport.unix_socket import Permissions, SocketFile, owner_of


class ListeningFrontEnd(FrontEnd, Protocol):
    """A front end that can listen at a path."""

    def listen(self, path: str) -> None:
        """Makes a socket there. Connections wait until `start`.

        Raises:
            InvalidArgument, OSError: it cannot be made.
        """


class UnixFrontEnd:
    """A `FrontEnd` on a Unix socket, without TLS: who may connect is up to the permissions of its
    file.

    Args:
        path: the path of the socket.
        front_end: carries the calls.
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
        front_end: ListeningFrontEnd,
        handover: HandoverSocket | None,
    ) -> None:
        permissions = Permissions(settings.unix_socket_mode, *owner_of(settings.unix_socket_owner))
        self.address = f"unix:{path.absolute()}"
        self._file = SocketFile(path, permissions)
        self._front_end = front_end
        self._handover = handover

    @property
    def connections(self) -> int:
        return self._front_end.connections

    def bind(self) -> int:
        self._file.place(self._front_end.listen)
        if self._handover is not None:
            self._file.place(self._handover.listen, SUFFIX)
        return 0

    async def start(self) -> None:
        await self._front_end.start()
        if self._handover is not None:
            self._handover.start()

    async def lost(self) -> None:
        await self._front_end.lost()

    async def stop(self, seconds: float) -> None:
        self._file.remove()
        await self._front_end.stop(seconds)
        if self._handover is not None:
            await self._handover.close()
