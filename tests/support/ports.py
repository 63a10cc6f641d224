"""Ports for what listens later."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path


def free_port() -> int:
    """A port outside of those that the system gives to others, so that it is free later, too."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(first // 2, first)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
