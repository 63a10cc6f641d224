"""Checks that the server can listen on its addresses, before the server starts anything.

The check itself does not listen: clients could connect before the server can answer them.
"""

from __future__ import annotations

import errno
import socket
from typing import Any

from headrace.runtime.errors import InvalidArgument


def shown_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_address(setting: str, host: str, port: int) -> None:
    """
    Args:
        setting: the name of the port's setting, for example "http_port".

    Raises:
        InvalidArgument: the host's name cannot be resolved, or the server cannot listen on the
            address, for example because another server uses it.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"{host!r} is not an address, and no host has that name",
            field=setting.replace("port", "host"),
        ) from error
    tried = [_refusal(family, address) for family, *_, address in found]
    refusals = [each for each in tried if each is not None]
    taken = [each for each in refusals if each.errno == errno.EADDRINUSE]
    # A name may also resolve to an address that this machine lacks, for example an IPv6 one.
    if taken or len(refusals) == len(found):
        first = (taken or refusals)[0]
        raise InvalidArgument(
            f"cannot listen on {shown_address(host, port)}: {first.strerror}", field=setting
        ) from first


def _refusal(family: socket.AddressFamily, address: Any) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        return error
    return None
