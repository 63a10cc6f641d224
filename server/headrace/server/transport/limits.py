"""How many connections and streams a port has."""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

from headrace.server.settings.settings import Settings

_LEAST_STREAMS: Final = 128
_MORE_STREAMS: Final = 64
_OPEN_FILES: Final = 1 << 16


def max_connections(settings: Settings) -> int:
    """The most gRPC connections, with those whose handshake is in progress."""
    return 2 * max(_LEAST_STREAMS, settings.max_concurrent_rpcs)


def max_streams(settings: Settings) -> int:
    """The most open calls of a connection. That is a little more than one may have, which is half
    of all, so that the others learn that they are too many."""
    return max(_LEAST_STREAMS, settings.max_concurrent_rpcs // 2 + _MORE_STREAMS)


def allow_open_files() -> None:
    """Lets the process open 65,536 files if the system allows that, because a connection is one.

    Most systems allow 1,024 until a program asks for more, for the sake of programs that use
    `select`.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
