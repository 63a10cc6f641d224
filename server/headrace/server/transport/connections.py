"""Closes the connections of a server, because gRPC has no function for that.

When a gRPC server stops, its core answers calls that it has read and not yet handed to Python with
CANCELLED. It does so until the client learns that the server goes away. Nobody cancelled these
calls, and clients do not retry a cancelled call. If the connection ends, a client treats its open
calls as UNAVAILABLE. So the connections are closed before the core stops.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


def cut_connections(port: int) -> int:
    """Closes every TCP socket of this process with this local port.

    The listening socket is closed first, so that no client connects again meanwhile. Data that was
    written is still delivered.

    Returns:
        The number of connections. 0 if the system does not list a process's descriptors.
    """
    for number, listener in _sockets(port, listening=True):
        # gRPC logs an error if its socket stops listening; one that never did tells it nothing.
        with socket.socket(listener.family) as deaf:
            os.dup2(deaf.fileno(), number, inheritable=False)
    cut = 0
    for _, connection in _sockets(port, listening=False):
        with suppress(OSError):  # the client has closed it first
            connection.shutdown(socket.SHUT_RDWR)
        cut += 1
    return cut


def _sockets(port: int, *, listening: bool) -> Iterator[tuple[int, socket.socket]]:
    """Each socket's descriptor and a copy of the socket. gRPC may close its own at any time."""
    numbers = [int(each.name) for each in _DESCRIPTORS.glob("*")]
    for number in numbers:
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            found = socket.socket(fileno=os.dup(number))
        except OSError:
            continue  # closed already
        with closing(found):
            if found.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            accepts = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if found.getsockname()[1] == port and bool(accepts) == listening:
                yield number, found
