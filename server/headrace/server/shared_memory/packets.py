"""Packets of JSON objects, and descriptors that come with them, on a Unix socket."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from headrace.runtime.errors import HeadraceError, InvalidArgument
from headrace.server.shared_memory.handed import FIELD
from headrace.server.transport.statuses import describe
from headrace.wire.errors import to_json

METHOD: Final = "HandOverMemory"
MAX_PACKET_BYTES: Final = 16 << 10
MAX_UNCLOSED: Final = 16
_FLAGS = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
_ONE = socket.CMSG_LEN(struct.calcsize("i"))  # CMSG_SPACE would be room for two
_STOP_SECONDS = 1.0


class PacketChannel:
    """The packets of one connection."""

    def __init__(self, connection: socket.socket, refused: RefusedDescriptors) -> None:
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
