"""Accepts connections, and does their TLS handshakes, bounded in time and number.

asyncio's own servers count a connection only when its handshake has ended, and keep the certificate
that they started with.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict, deque
from collections.abc import Callable
from ssl import SSLContext
from typing import Final, NamedTuple, TypeAlias

from headrace.server.transport.shares import Shares

_log = logging.getLogger(__name__)

HANDSHAKES: Final = 256
_WAITING: Final = 1024
_BACKLOG = 1024
_AT_ONCE = 64
_PAUSE_SECONDS = 1.0
_CLOSE_SECONDS = 1.0

Connect: TypeAlias = Callable[[socket.socket], asyncio.BaseProtocol | None]


class _Accepted(NamedTuple):
    """A connection that waits for its handshake.

    Attributes:
        until: the time of the loop's clock at which it is closed.
    """

    socket: socket.socket
    peer: str
    until: float


class Acceptor:
    """Accepts connections and does their handshakes. Belongs to the loop's thread.

    While there are as many handshakes as allowed, 1,024 further connections wait in line. One
    address gets at most seven eighths of the handshakes and of the line, and takes turns with the
    others. A connection for which the line has no room is closed.

    Args:
        connect: makes the protocol of an accepted socket, when its handshake has succeeded. None
            closes it.
        context: gives the TLS context in effect. None for plain text.
        seconds: the time for a handshake, and for the wait before it.
        handshakes: the most handshakes at a time.
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
        self._slots = Shares(handshakes)
        self._line = Shares(_WAITING)
        self._waiting: OrderedDict[str, deque[_Accepted]] = OrderedDict()  # by address, in turn
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
        for listener in listeners:
            asyncio.get_running_loop().remove_reader(listener)
        while self._waiting:
            for waiting in self._waiting.popitem()[1]:
                self._turn_away(waiting)
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
            if self._slots.take(peer):
                self._begin(accepted, peer)
            elif self._line.take(peer):
                until = asyncio.get_running_loop().time() + self._seconds
                line = self._waiting.setdefault(peer.rpartition(":")[0], deque())
                line.append(_Accepted(accepted, peer, until))
            else:
                accepted.close()

    def _begin(self, accepted: socket.socket, peer: str) -> None:
        """Begins the handshake of a connection that has its slot."""
        task = asyncio.get_running_loop().create_task(self._enter(accepted, peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _go_on(self) -> None:
        """Gives the free slots to connections that wait, of one address after the other."""
        now = asyncio.get_running_loop().time()
        for _ in range(len(self._waiting)):
            if not self._slots.left:
                return
            address, line = self._waiting.popitem(last=False)
            while line and line[0].until <= now:
                self._turn_away(line.popleft())
            if line and self._slots.take(line[0].peer):
                accepted, peer, _ = line.popleft()
                self._line.give_back(peer)
                self._begin(accepted, peer)
            if line:
                self._waiting[address] = line  # behind the others

    def _turn_away(self, waiting: _Accepted) -> None:
        self._line.give_back(waiting.peer)
        waiting.socket.close()

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
            self._slots.give_back(peer)
            self._go_on()
