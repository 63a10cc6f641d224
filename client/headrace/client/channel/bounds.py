"""What a server may do, and how a connection's socket is set."""

from __future__ import annotations

import socket
import time
from functools import partial
from typing import Final

from headrace.http2.limits import ConnectionLimits

CONNECT_SECONDS: Final = 20.0
"""How long it may take until a connection can be used."""
READ_BYTES: Final = 64 << 10
USER_AGENT: Final = "headrace-python"

UNSEEN_SECONDS: Final = 0.2
"""A connection that was idle for longer is looked at before a call goes out."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_TRUSTED_SECONDS: Final = 60.0
_SURE_SECONDS: Final = 5.0
_HEADER_BYTES: Final = 64 << 10
# An idle connection is kept known to routers, and one whose other end is gone ends. A server sees
# nothing of that, while it may punish PING frames.
_KEEP_IDLE_SECONDS: Final = 30
_KEEP_INTERVAL_SECONDS: Final = 10
_KEEP_COUNT: Final = 3
_UNACKNOWLEDGED_MILLISECONDS: Final = 20_000


def limits(max_message_bytes: int) -> ConnectionLimits:
    """The limits of a client's end."""
    return ConnectionLimits(message_bytes=max_message_bytes, header_bytes=_HEADER_BYTES)


def set_up(connected: socket.socket) -> None:
    """Sets the options of a connection's socket."""
    if connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEP_IDLE_SECONDS),
        ("TCP_KEEPINTVL", _KEEP_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _KEEP_COUNT),
        ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MILLISECONDS),
    ):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


clock: Final = partial(time.clock_gettime, _CLOCK)
"""Seconds, in which the machine's sleep counts, too."""


def is_stale(idle: float, *, repeat: bool) -> bool:
    """Whether a connection that was idle so many seconds may be dead without anybody knowing, so
    that a call had better open a new one. One that may be repeated can take a greater risk."""
    return idle > (_TRUSTED_SECONDS if repeat else _SURE_SECONDS)
