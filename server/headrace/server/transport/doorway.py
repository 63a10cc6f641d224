"""Accepts connections, and does their TLS handshakes, bounded in time and number.

asyncio's own servers count a connection only when its handshake has ended, and keep the certificate
that they started with.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from ssl import SSLContext
from typing import Final, TypeAlias

from headrace.server.transport.shares import Shares

_log = logging.getLogger(__name__)

HANDSHAKES: Final = 256
_BACKLOG = 1024
_AT_ONCE = 64
_PAUSE_SECONDS = 1.0
_CLOSE_SECONDS = 1.0

Connect: TypeAlias = Callable[[socket.socket], asyncio.BaseProtocol | None]


class Doorway:
    """Accepts connections and does their handshakes. Belongs to the loop's thread.

    Args:
        connect: makes the protocol of an accepted socket, when its handshake has succeeded. None
            closes it.
        context: gives the TLS context in effect. None for plain text.
        seconds: the time for a handshake.
        handshakes: the most handshakes at a time. One address gets at most seven eighths of them.
            A connection beyond that is closed at once.
    """

    def __init__(
        self,
        connect: Connect,
        context: Callable[[], SSLContext] | None,
        seconds: float,
        handshakes: int = HANDSHAKES,
    ) -> None:
        self._connect = connect
        self._context = context
        self._seconds = seconds
        self._places = Shares(handshakes)
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, listener: socket.socket) -> None:
        """Begins to accept connections."""
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._listeners.append(listener)
        self._listen(listener)

    async def close(self) -> None:
        """Accepts no further connection, and ends the handshakes in progress."""
        listeners, self._listeners = self._listeners, []
        for each in listeners:
            asyncio.get_running_loop().remove_reader(each)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _listen(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accepts all connections that wait, because on a busy loop a round takes long."""
        for _ in range(_AT_ONCE):
            try:
                accepted, address = listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # the client has gone already
            except OSError as error:  # for example too many open files
                _log.warning("cannot accept a connection: %s", error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(_PAUSE_SECONDS, self._listen, listener)
                return
            accepted.setblocking(False)
            peer = "unix"
            if accepted.family != socket.AF_UNIX:
                peer = f"{address[0]}:{address[1]}"
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._places.take(peer):
                accepted.close()
                continue
            task = asyncio.get_running_loop().create_task(self._enter(accepted, peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _enter(self, accepted: socket.socket, peer: str) -> None:
        try:
            protocol = self._connect(accepted)
            if protocol is None:
                accepted.close()
                return
            secure = self._context is not None
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._context() if self._context is not None else None,
                ssl_handshake_timeout=self._seconds if secure else None,
                ssl_shutdown_timeout=_CLOSE_SECONDS if secure else None,
            )
        except OSError as error:  # a failed handshake, no time left, or the client has gone
            _log.debug("no connection with %s: %s", peer, error)
            accepted.close()
        finally:
            self._places.give_back(peer)
