"""The side socket, on which clients of this machine hand memory over by file descriptor.

It is a Unix socket beside gRPC's, for messages of `headrace.ipc`. The first one shows the caller's
credential. Then a message with one memfd hands memory over, and the answer has the secret name by
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
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from headrace.ipc.link import Link, Message, packed
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
MAX_CONNECTIONS: Final = 256
MAX_MESSAGE_BYTES: Final = 16 << 10
MAX_UNCLOSED: Final = 16
HELLO_SECONDS: Final = 10.0
_STOP_SECONDS = 1.0
_BACKLOG = 64
_PAUSE_SECONDS = 1.0
_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group


class HandoverSocket:
    """The side socket. Belongs to the event loop's thread.

    Args:
        regions: takes the memory.
        entrance: checks credentials, as for calls. None lets everybody in.
    """

    def __init__(self, regions: Regions, entrance: Entrance | None) -> None:
        self._regions = regions
        self._entrance = entrance
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._slots = Shares(MAX_CONNECTIONS)
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
        if self._refused.is_full or not self._slots.take(peer):
            connection.close()
            return
        connection.setblocking(False)
        link = Link(connection, MAX_MESSAGE_BYTES, 1, self._refused.take)
        task = loop.create_task(self._serve(link, peer, f"{user} unix:{process}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self.start()

    async def _serve(self, link: Link, peer: str, holder: str) -> None:
        """One connection, from its credential to its end."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await _next(link)
            _give_back(self._refused, hello.descriptors)
            await self._let_in(link, peer, holder, hello.header)
        except (TimeoutError, OSError):
            pass  # the client is too slow, has left, or has broken the protocol
        finally:
            link.close()
            self._slots.give_back(peer)

    async def _let_in(self, link: Link, peer: str, holder: str, hello: Mapping[str, Any]) -> None:
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
                _refuse(link, hello, error)
                return
        client = _Client(self._regions, link, self._refused, holder, CALLER.get().name)
        try:
            _answer(link, hello, {})
            while client.take(await _next(link)):
                await asyncio.sleep(0)  # a flood of messages leaves the event loop to others
        finally:
            client.forget()
            if entrance is not None and visit is not None:
                entrance.leave(visit)


class _Client:
    """The memory that one connection has handed over."""

    def __init__(
        self,
        regions: Regions,
        link: Link,
        refused: RefusedDescriptors,
        holder: str,
        identity: str,
    ) -> None:
        self._regions = regions
        self._link = link
        self._refused = refused
        self._holder = holder
        self._identity = identity
        self._names: set[str] = set()

    def take(self, message: Message) -> bool:
        """Does what a message asks for, and answers. Returns whether more may follow.

        Raises:
            OSError: the client has left, or does not read the answers.
        """
        header, descriptors = message.header, message.descriptors
        name = header.get("take_back")
        try:
            if isinstance(name, str):
                _give_back(self._refused, descriptors)
                self._take_back(header, name)
            elif len(descriptors) != 1:
                _give_back(self._refused, descriptors)
                raise InvalidArgument(
                    f"a message hands over one memfd; this one has {len(descriptors)}", field=FIELD
                )
            else:
                region = self._hand_over(descriptors[0])
                facts = {"region": region.name, "bytes": region.byte_size}
                _answer(self._link, header, facts)
        except HeadraceError as error:
            _refuse(self._link, header, error)
        return len(descriptors) < 2

    def _hand_over(self, descriptor: int) -> HandedRegion:
        try:
            region = open_memory(descriptor, self._holder)
        except BaseException:
            _give_back(self._refused, (descriptor,))
            raise
        self._regions.hand_over(region, self._identity)
        self._names.add(region.name)
        return region

    def _take_back(self, question: Mapping[str, Any], name: str) -> None:
        """Answers when no request uses the memory any more."""
        ended = None
        if name in self._names:
            self._names.discard(name)
            ended = self._regions.take_back(name, self._identity)
        if ended is None:
            raise NotFound("this connection has handed over no such memory", field="take_back")
        loop, link = asyncio.get_running_loop(), self._link

        def answer() -> None:
            with suppress(OSError):
                _answer(link, question, {})

        def tell(_: Future[None]) -> None:
            with suppress(RuntimeError):  # the loop has closed, and the server ends
                loop.call_soon_threadsafe(answer)

        ended.add_done_callback(tell)

    def forget(self) -> None:
        for name in self._names:
            self._regions.take_back(name, self._identity)
        self._names.clear()


class RefusedDescriptors:
    """Closes descriptors of clients on a thread. The file behind one may be of a file system that
    its owner has made, and may let the thread wait for ever. So their number is bounded."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._count = 0
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        return self._waiting.qsize() >= MAX_UNCLOSED

    def take(self, descriptor: int) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headrace-handover", daemon=True)
            self._thread.start()
        self._waiting.put(descriptor)

    def close(self) -> None:
        """Ends the thread when it has closed the last descriptor. Waits a second for that."""
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while (descriptor := self._waiting.get()) is not None:
            with suppress(OSError):
                os.close(descriptor)


async def _next(link: Link) -> Message:
    """The next message.

    Raises:
        Disconnected: none comes any more, or what came is not one.
    """
    while (message := link.take()) is None:
        await _readable(link)
        link.read()
    return message


async def _readable(link: Link) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(link.fileno(), wake)
    try:
        await ready
    finally:
        loop.remove_reader(link.fileno())


def _answer(link: Link, question: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Answers a message with its id.

    Raises:
        OSError: the client has left, or does not read.
    """
    identifier = question.get("id")
    known = {"id": identifier} if isinstance(identifier, int | str) else {}
    link.send(packed({**known, **answer}))


def _refuse(link: Link, question: Mapping[str, Any], error: HeadraceError) -> None:
    """Answers a message with an error. Raises as `_answer`."""
    _answer(link, question, json.loads(to_json(describe(error, where=METHOD))))


def _give_back(refused: RefusedDescriptors, descriptors: Sequence[int]) -> None:
    """Closes descriptors of a client's that the server does not need.

    Raises:
        OSError: too many descriptors wait to be closed, so this connection ends.
    """
    for descriptor in descriptors:
        refused.take(descriptor)
    if descriptors and refused.is_full:
        raise ConnectionAbortedError
