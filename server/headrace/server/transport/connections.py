"""Closes the connections of a server, for which gRPC has no call.

When a gRPC server stops, its core answers every call that it has read and not yet handed to Python
with CANCELLED, and goes on doing so until the client has heard that the server goes away. Nobody
cancelled these calls, and no client sends such a call again. If its connection ends, a client takes
its open calls for UNAVAILABLE. So the connections are closed before the core is stopped.
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
    """Closes every TCP socket of this process whose own port this is: first the one that listens,
    so that no client comes back meanwhile. What has been written is still delivered.

    Returns:
        How many connections there were; 0 where the system does not list a process's descriptors.
    """
    for number, listener in _sockets(port, listening=True):
        # gRPC logs an error if its socket stops listening; one that never did tells it nothing.
        with socket.socket(listener.family) as deaf:
            os.dup2(deaf.fileno(), number, inheritable=False)
    cut = 0
    for _, connection in _sockets(port, listening=False):
        with suppress(OSError):  # its client was faster
            connection.shutdown(socket.SHUT_RDWR)
        cut += 1
    return cut


def _sockets(port: int, *, listening: bool) -> Iterator[tuple[int, socket.socket]]:
    """Each one's descriptor, and a second one of it, since gRPC may close its own at any time."""
    numbers = [int(each.name) for each in _DESCRIPTORS.glob("*")]
    for number in numbers:
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            found = socket.socket(fileno=os.dup(number))
        except OSError:
            continue  # closed by now
        with closing(found):
            if found.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            accepts = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if found.getsockname()[1] == port and bool(accepts) == listening:
                yield number, found
