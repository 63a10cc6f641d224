"""The side socket, on which clients of this machine hand memory over by file descriptor.

It is a Unix socket beside gRPC's. Each packet is a JSON object. The first one shows the caller's
credential. Then a packet with one memfd hands memory over, and the answer has the secret name by
which the caller's requests name this memory. Memory belongs to the identity of the caller and to
the connection: when the connection ends, the server forgets the memory.

Everything runs on gRPC's event loop, with one task for each connection. Only descriptors that are
refused are closed by a thread, because a hostile file system may make that wait.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from headrace.runtime.errors import HeadraceError, InvalidArgument, NotFound
from headrace.server.access.entrance import Entrance
from headrace.server.access.identity import CALLER, Role
from headrace.server.access.refusal import reason_of
from headrace.server.shared_memory.handed import FIELD, HandedRegion, open_memory
from headrace.server.shared_memory.packets import METHOD, PacketChannel, RefusedDescriptors
from headrace.server.shared_memory.regions import Regions
from headrace.server.transport.shares import Shares

SUFFIX: Final = ".memory"
"""What is added to the path of gRPC's socket."""
MAX_CONNECTIONS: Final = 256
HELLO_SECONDS: Final = 10.0
_BACKLOG = 64
_PAUSE_SECONDS = 1.0
_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group


class Handover:
    """The side socket. Belongs to the event loop's thread.

    Args:
        regions: takes the memory.
        entrance: checks credentials, as for calls. None lets everybody in.
    """

    def __init__(self, regions: Regions, entrance: Entrance | None) -> None:
        self._regions = regions
        self._entrance = entrance
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._places = Shares(MAX_CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused = RefusedDescriptors()

    def listen(self, path: str) -> None:
        """Makes the socket. Connections wait until `start`.

        Raises:
            OSError: the system refuses the path.
        """
        self._listener.bind(path)
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    async def close(self) -> None:
        """Ends all connections. The memory of requests in flight stays until they end."""
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._refused.close)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left: the listener stays readable until one is
            loop.remove_reader(self._listener.fileno())
            loop.call_later(_PAUSE_SECONDS, self._accept_again)
            return
        process, user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        peer = f"unix:{user}:{process}"
        if self._refused.is_full or not self._places.take(peer):
            connection.close()
            return
        task = loop.create_task(self._serve(connection, peer, f"{user} unix:{process}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self.start()

    async def _serve(self, connection: socket.socket, peer: str, holder: str) -> None:
        """One connection, from its credential to its end."""
        try:
            connection.setblocking(False)
            channel = PacketChannel(connection, self._refused)
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await channel.receive()
            if hello is not None:
                channel.give_back(hello[1])
                await self._let_in(channel, peer, holder, hello[0])
        except (TimeoutError, OSError):
            pass  # the client is too slow, or has left
        finally:
            connection.close()
            self._places.give_back(peer)

    async def _let_in(
        self, channel: PacketChannel, peer: str, holder: str, hello: Mapping[str, Any]
    ) -> None:
        """Serves a client if its credential is valid, for as long as it is."""
        entrance, credential = self._entrance, hello.get("authorization")
        headers = () if credential is None else (("authorization", str(credential)),)
        visit = None
        if entrance is not None:
            try:
                task = asyncio.current_task()
                assert task is not None
                visit = entrance.enter(headers, tuple, Role.INFER, peer, task, stays=False)
            except HeadraceError as error:
                why = reason_of(error) or ""
                entrance.record(METHOD, Role.INFER, peer, error.status, why, "")
                channel.refuse(hello, error)
                return
        client = _Client(self._regions, channel, holder, CALLER.get().name)
        try:
            channel.send(hello, {})
            while (received := await channel.receive()) is not None:
                client.take(*received)
        finally:
            client.forget()
            if entrance is not None and visit is not None:
                entrance.leave(visit)


class _Client:
    """The memory that one connection has handed over."""

    def __init__(
        self, regions: Regions, channel: PacketChannel, holder: str, identity: str
    ) -> None:
        self._regions = regions
        self._channel = channel
        self._holder = holder
        self._identity = identity
        self._names: set[str] = set()

    def take(self, packet: Mapping[str, Any], descriptor: int | None) -> None:
        """Does what a packet asks for, and answers.

        Raises:
            OSError: the client has left, or does not read the answers.
        """
        try:
            name = packet.get("take_back")
            if isinstance(name, str):
                self._channel.give_back(descriptor)
                self._take_back(packet, name)
            elif descriptor is None:
                raise InvalidArgument(
                    "a packet hands over one memfd; this one has none", field=FIELD
                )
            else:
                region = self._hand_over(descriptor)
                self._channel.send(packet, {"region": region.name, "bytes": region.byte_size})
        except HeadraceError as error:
            self._channel.refuse(packet, error)

    def _hand_over(self, descriptor: int) -> HandedRegion:
        try:
            region = open_memory(descriptor, self._holder)
        except BaseException:
            self._channel.give_back(descriptor)
            raise
        self._regions.hand_over(region, self._identity)
        self._names.add(region.name)
        return region

    def _take_back(self, packet: Mapping[str, Any], name: str) -> None:
        """Answers when no request uses the memory any more."""
        ended = None
        if name in self._names:
            self._names.discard(name)
            ended = self._regions.take_back(name, self._identity)
        if ended is None:
            raise NotFound("this connection has handed over no such memory", field="take_back")
        loop, channel = asyncio.get_running_loop(), self._channel

        def answer() -> None:
            with suppress(OSError):
                channel.send(packet, {})

        def tell(_: Future[None]) -> None:
            with suppress(RuntimeError):  # the loop has closed, and the server ends
                loop.call_soon_threadsafe(answer)

        ended.add_done_callback(tell)

    def forget(self) -> None:
        for name in self._names:
            self._regions.take_back(name, self._identity)
        self._names.clear()
