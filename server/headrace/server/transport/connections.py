"""Lists and closes the connections of a server, because gRPC has no function for that.

When a gRPC server stops, its core answers calls that it has read and not yet handed to Python with
CANCELLED. It does so until the client learns that the server goes away. Nobody cancelled these
calls, and clients do not retry a cancelled call. If the connection ends, a client treats its open
calls as UNAVAILABLE. So the connections are closed before the core stops.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_TCP = (socket.AF_INET, socket.AF_INET6)
_UNIX = (socket.AF_UNIX,)
_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group
FULL = (errno.EMFILE, errno.ENFILE)
"""The process, or the system, has no descriptor left."""


def cut_connections(local: int | str) -> int:
    """Closes every TCP socket of this process with this local port, or every Unix socket with this
    path.

    The listening socket is closed first, so that no client connects again meanwhile. Data that was
    written is still delivered.

    Returns:
        The number of connections. 0 if the system does not list a process's descriptors.
    """
    for number, listener in _sockets(local, listening=True):
        # gRPC logs an error if its socket stops listening; one that never did tells it nothing.
        with socket.socket(listener.family) as deaf:
            os.dup2(deaf.fileno(), number, inheritable=False)
    cut = 0
    for _, connection in _sockets(local, listening=False):
        with suppress(OSError):  # the client has closed it first
            connection.shutdown(socket.SHUT_RDWR)
        cut += 1
    return cut


class Connections:
    """The open connections of one port or Unix socket. Belongs to one thread.

    gRPC has one name for all clients of a Unix socket. Here, each connection has a name of its own,
    ``unix:USER:PROCESS:INODE``: the kernel knows which user and process has connected, and the
    server's end of the connection has the inode.

    Each look opens only sockets that are new, so that it costs some microseconds a connection.

    Args:
        local: the port, or the path that the Unix socket was bound to.
    """

    def __init__(self, local: int | str) -> None:
        self._local = local
        self._families = _UNIX if isinstance(local, str) else _TCP
        # By descriptor: what the system calls the socket, the peer (None if it is not a connection
        # of this port), and when it was first seen.
        self._known: dict[int, tuple[str, str | None, float]] = {}

    def look(self, now: float) -> Iterator[tuple[str, float]]:
        """The peers, those of TCP as gRPC writes them, and when they were first seen.

        Args:
            now: the time, on any clock.

        Raises:
            OSError: there is no descriptor left to look with. The next look may succeed.
        """
        found: dict[int, tuple[str, str | None, float]] = {}
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - cheaper, and there may be thousands
            try:
                link = os.readlink(f"{_DESCRIPTORS}/{name}")  # noqa: PTH115 - as above
            except OSError:
                continue  # closed already
            if not link.startswith("socket:"):
                continue
            number = int(name)
            known = self._known.get(number)
            if known is None or known[0] != link:
                known = (link, self._peer(number), now)
            found[number] = known
            if known[1] is not None:
                yield known[1], known[2]
        self._known = found

    def cut(self, peer: str) -> bool:
        """Ends the connection with this peer. Returns whether it was open."""
        for number, (_, known, _) in self._known.items():
            if known == peer:
                with _copy(number, self._families) as found:
                    # The descriptor may be another socket's by now.
                    if found is not None and _peer_of(found) == peer:
                        found.shutdown(socket.SHUT_RDWR)
                        return True
        return False

    def _peer(self, number: int) -> str | None:
        with _copy(number, self._families) as found:
            if found is None or _own_name(found) != self._local:
                return None
            return _peer_of(found)


def _peer_of(connection: socket.socket) -> str | None:
    """The other end. None if there is none."""
    if connection.family == socket.AF_UNIX:
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return None
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        process, user, _ = _CREDENTIALS.unpack(credentials)
        return f"unix:{user}:{process}:{os.fstat(connection.fileno()).st_ino}"
    try:
        host, port, *_ = connection.getpeername()
    except OSError:  # it listens, or the client has left
        return None
    host = host.removeprefix("::ffff:").partition("%")[0]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _own_name(connection: socket.socket) -> int | str:
    """The port or the path of this end."""
    name = connection.getsockname()
    return name if connection.family == socket.AF_UNIX else name[1]  # type: ignore[no-any-return]


@contextmanager
def _copy(
    number: int, families: Collection[socket.AddressFamily] = _TCP
) -> Iterator[socket.socket | None]:
    """A copy of a socket of these families. gRPC may close its own at any time. None for anything
    else.

    Raises:
        OSError: there is no descriptor left for a copy.
    """
    try:
        found = socket.socket(fileno=os.dup(number))
    except OSError as error:
        if error.errno in FULL:  # it is open, and nobody knows whose it is
            raise
        yield None  # closed already
        return
    with closing(found):
        yield found if found.family in families else None


def _sockets(local: int | str, *, listening: bool) -> Iterator[tuple[int, socket.socket]]:
    """Each socket's descriptor and a copy of the socket. gRPC may close its own at any time."""
    families = _UNIX if isinstance(local, str) else _TCP
    numbers = [int(each.name) for each in _DESCRIPTORS.glob("*")]
    for number in numbers:
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
        except OSError:
            continue  # closed already
        with _copy(number, families) as found:
            if found is None:
                continue
            accepts = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if _own_name(found) == local and bool(accepts) == listening:
                yield number, found  # inside, because the copy is closed afterwards
