"""The TLS handshakes of HTTP connections, bounded in time and number.

asyncio's own servers count a connection only when its handshake has ended, and keep the certificate
that they started with.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from ssl import SSLContext
from typing import Final

from headrace.server.transport.shares import Shares

_log = logging.getLogger(__name__)

HANDSHAKES: Final = 256
_BACKLOG = 1024
_PAUSE_SECONDS = 0.1
_CLOSE_SECONDS = 1.0


class Doorway:
    """Accepts connections and does their handshakes. Belongs to the loop's thread.

    Args:
        context: gives the context in effect.
        connect: makes the protocol of a connection whose handshake has succeeded.
        seconds: the time for a handshake.
        handshakes: the most handshakes at a time. One address gets at most seven eighths of them.
            A connection beyond that is closed at once.
    """

    def __init__(
        self,
        context: Callable[[], SSLContext],
        connect: Callable[[], asyncio.Protocol],
        seconds: float,
        handshakes: int = HANDSHAKES,
    ) -> None:
        self._context = context
        self._connect = connect
        self._seconds = seconds
        self._places = Shares(handshakes)
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, listener: socket.socket) -> None:
        """Begins to accept connections."""
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._start(self._accept(listener))

    async def close(self) -> None:
        """Accepts no further connection, and ends the handshakes in progress."""
        tasks = list(self._tasks)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:  # too many open files, or the client has gone already
                _log.warning("cannot accept an HTTP connection: %s", error.strerror)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            peer = f"{address[0]}:{address[1]}"
            if self._places.take(peer):
                self._start(self._enter(accepted, peer))
            else:
                accepted.close()

    async def _enter(self, accepted: socket.socket, peer: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connect,
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=self._seconds,
                ssl_shutdown_timeout=_CLOSE_SECONDS,
            )
        except OSError as error:  # a failed handshake, no time left, or the client has gone
            _log.debug("no TLS connection with %s: %s", peer, error)
            accepted.close()
        finally:
            self._places.give_back(peer)
