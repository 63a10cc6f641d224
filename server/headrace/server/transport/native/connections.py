"""All connections of one port: how many there may be, and when one is ended."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final

from headrace.http2.faults import ConnectionFault
from headrace.http2.frames import ErrorCode
from headrace.http2.limits import ConnectionLimits
from headrace.server.shared_memory.users import UserLookup, peer_of
from headrace.server.transport.call import Methods
from headrace.server.transport.native.connection import READ_BYTES, NativeConnection
from headrace.server.transport.native.strangers import OpenConnection, unwanted
from headrace.server.transport.shares import Shares, release_soon

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 0.1
_COMING_CALLS: Final = 8192
"""How many calls may be open whose message has not come yet. One connection gets half of what is
left, and each takes some 2 KB."""
_HANDSHAKE_LOOKS: Final = 10
_QUIET_SECONDS: Final = 60.0
_ANSWER_LOOKS: Final = 20
"""Looks, and not seconds: between two the loop has read all sockets. A server that was held up
would else end clients whose answers have come and were not read yet."""
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: process, user, group


class Connections:
    """The connections of one port or Unix socket. Belongs to the event loop's thread.

    Looks at them once a second while there are any: a client that does not begin, that never shows
    a credential or that has vanished gives its slot back.

    Args:
        methods: what calls find.
        bounds: those of each connection.
        most: the most connections. One address gets at most seven eighths.
        room_bytes: the memory for messages that have begun to come. One connection gets at most
            half of what is left.
        unread_bytes: the same for messages that have come and wait for their calls to read them.
        stranger_seconds: how long a connection may stay without a credential. None: for ever.
    """

    def __init__(
        self,
        methods: Methods,
        bounds: ConnectionLimits,
        *,
        most: int,
        room_bytes: int,
        unread_bytes: int,
        stranger_seconds: float | None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.methods = methods
        self.bounds = bounds
        self.memory = Shares(room_bytes)
        self.unread = Shares(unread_bytes)
        self.coming = Shares(_COMING_CALLS)
        self.unpacker = ThreadPoolExecutor(1, "headrace-unpack")
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.context = copy_context()
        self._most = most
        self._stranger_seconds = stranger_seconds
        self._open: set[NativeConnection] = set()
        self._numbers = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None
        self.count = 0

    def connect(self, accepted: socket.socket) -> NativeConnection | None:
        """What reads and writes an accepted socket. None if no slot is free for its connection."""
        if self.count >= self._most:
            return None
        user: Callable[[], Awaitable[int | None]]
        if accepted.family == socket.AF_UNIX:
            credentials = accepted.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
            )
            process, owner, _ = _CREDENTIALS.unpack(credentials)
            peer = f"unix:{owner}:{process}:{next(self._numbers)}"
            user = partial(_known, owner)
        else:
            try:
                theirs, ours = accepted.getpeername(), accepted.getsockname()
            except OSError:  # the client has left
                return None
            peer = peer_of(theirs[0].removeprefix("::ffff:").partition("%")[0], theirs[1])
            user = UserLookup(theirs, ours).find
        return NativeConnection(self, peer, user)

    def entered(self, connection: NativeConnection) -> None:
        self._open.add(connection)
        self.count += 1
        if self._timer is None:
            self._timer = self.loop.call_later(_LOOK_SECONDS, self._look)

    def left(self, connection: NativeConnection) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self.count -= 1
        release_soon(self.memory)
        if not self._open and self._emptied is not None:
            self._emptied.set()

    def broken(self, connection: NativeConnection, fault: ConnectionFault) -> None:
        """Notes that a connection ends because its client broke the protocol."""
        level = logging.INFO if fault.code is ErrorCode.ENHANCE_YOUR_CALM else logging.DEBUG
        _log.log(level, "ended the connection of %s: %s", connection.peer, fault)

    async def close(self, seconds: float) -> None:
        """Ends all connections. A client hears that it should open no more calls. Its connection
        closes when its calls have ended; what lasts longer than so many seconds is cancelled."""
        self.unpacker.shutdown(wait=False, cancel_futures=True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._emptied = asyncio.Event()
        for end in (NativeConnection.go_away, NativeConnection.stop, NativeConnection.abort):
            for connection in list(self._open):
                end(connection)
            if not self._open:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), max(seconds, _CLOSE_SECONDS))

    def _look(self) -> None:
        now = self.loop.time()
        for connection in list(self._open):
            if connection.pinged or not connection.wire.is_acknowledged:
                connection.looks += 1
                if connection.looks > (_ANSWER_LOOKS if connection.pinged else _HANDSHAKE_LOOKS):
                    connection.abort()
            elif now - connection.heard > _QUIET_SECONDS:
                connection.ping()
        peers = {connection.peer: connection for connection in self._open}
        ends = unwanted(
            [
                OpenConnection(connection.peer, connection.since, connection.has_credential)
                for connection in peers.values()
            ],
            now,
            per_address=self._most * 7 // 8,
            stranger_seconds=self._stranger_seconds,
        )
        for peer, why in ends.items():
            _log.info("ended the connection of %s: %s", peer, why)
            peers[peer].end(why)
        self._timer = self.loop.call_later(_LOOK_SECONDS, self._look) if self._open else None


async def _known(user: int) -> int:
    return user
