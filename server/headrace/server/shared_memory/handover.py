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
import json
import os
import queue
import socket
import struct
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from headrace.runtime.errors import HeadraceError, InvalidArgument, NotFound
from headrace.server.access.entrance import Entrance
from headrace.server.access.identity import CALLER, Role
from headrace.server.access.refusal import reason_of
from headrace.server.shared_memory.handed import FIELD, HandedRegion, open_memory
from headrace.server.shared_memory.regions import Regions
from headrace.server.transport.shares import Shares
from headrace.server.transport.statuses import describe
from headrace.wire.errors import to_json

METHOD: Final = "HandOverMemory"
SUFFIX: Final = ".memory"
"""What is added to the path of gRPC's socket."""
MAX_PACKET_BYTES: Final = 16 << 10
MAX_CONNECTIONS: Final = 256
HELLO_SECONDS: Final = 10.0
_BACKLOG = 64
_PAUSE_SECONDS = 1.0
_MAX_UNCLOSED = 16
_FLAGS = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
_ONE = socket.CMSG_LEN(struct.calcsize("i"))  # CMSG_SPACE would be room for two
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
        self._refused = _Refused()

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
        self._refused.close()

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
            channel = _Channel(connection, self._refused)
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
        self, channel: _Channel, peer: str, holder: str, hello: Mapping[str, Any]
    ) -> None:
        """Serves a client if its credential is valid, for as long as it is."""
        entrance, credential = self._entrance, hello.get("authorization")
        headers = () if credential is None else (("authorization", str(credential)),)
        visit = None
        if entrance is not None:
            try:
                visit = entrance.enter(headers, tuple, Role.INFER, peer, stays=False)
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

    def __init__(self, regions: Regions, channel: _Channel, holder: str, identity: str) -> None:
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


class _Channel:
    """The packets of one connection."""

    def __init__(self, connection: socket.socket, refused: _Refused) -> None:
        self._connection = connection
        self._refused = refused

    async def receive(self) -> tuple[Mapping[str, Any], int | None] | None:
        """The next packet and its descriptor, which the caller owns. None at the end, or after a
        packet that breaks the protocol."""
        # It waits each time, so that a flood of packets leaves the event loop to others.
        await _readable(self._connection)
        data, ancillary, flags, _ = self._connection.recvmsg(MAX_PACKET_BYTES, _ONE, _FLAGS)
        descriptors = [
            descriptor
            for level, kind, content in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for (descriptor,) in struct.iter_unpack("i", content[: len(content) // 4 * 4])
        ]
        packet = _parse(data)
        if flags & socket.MSG_CTRUNC or len(descriptors) > 1:
            text = "a packet has one descriptor, and the server has to have room for it"
            self.refuse(packet or {}, InvalidArgument(text, field=FIELD))
        elif packet is not None and not flags & socket.MSG_TRUNC:
            return packet, descriptors[0] if descriptors else None
        for each in descriptors:
            self.give_back(each)
        return None

    def give_back(self, descriptor: int | None) -> None:
        """Closes a client's descriptor that the server does not need.

        Raises:
            OSError: too many descriptors wait to be closed, so this connection ends.
        """
        if descriptor is not None:
            self._refused.take(descriptor)
            if self._refused.is_full:
                raise ConnectionAbortedError

    def send(self, question: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Answers a packet with its id.

        Raises:
            OSError: the client has left, or does not read.
        """
        identifier = question.get("id")
        known = {"id": identifier} if isinstance(identifier, int | str) else {}
        data = json.dumps({**known, **answer}).encode()
        self._connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def refuse(self, question: Mapping[str, Any], error: HeadraceError) -> None:
        """Answers a packet with an error."""
        self.send(question, json.loads(to_json(describe(error, where=METHOD))))


class _Refused:
    """Closes descriptors of clients on a thread. The file behind one may be of a file system that
    its owner has made, and may let the thread wait for ever. So their number is bounded."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._count = 0
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        return self._waiting.qsize() >= _MAX_UNCLOSED

    def take(self, descriptor: int) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headrace-handover", daemon=True)
            self._thread.start()
        self._waiting.put(descriptor)

    def close(self) -> None:
        """Ends the thread when it has closed the last descriptor."""
        self._waiting.put(None)

    def _run(self) -> None:
        while (descriptor := self._waiting.get()) is not None:
            with suppress(OSError):
                os.close(descriptor)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection.fileno(), wake)
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())


def _parse(data: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
