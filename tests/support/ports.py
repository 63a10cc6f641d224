"""Ports that are nobody else's."""

from __future__ import annotations

import socket


def held_port() -> int:
    """A port that stays with this process until it ends. Nobody listens there: a client is refused.
    Servers of a test may listen there, one after the other, at any of this machine's addresses.

    A port that was merely free a moment ago may be another program's by now, as the port of a
    connection or of a server: many tests run at once. The socket that holds it is bound, so the
    system gives the port to nobody; and as it does not listen, it lets those bind who allow reuse
    of addresses and name the port, which servers do.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        port: int = holder.getsockname()[1]
        holder.detach()  # it stays open
    return port
