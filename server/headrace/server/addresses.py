"""Checks that the server can listen on its addresses, before the server starts anything.

The check itself does not listen: clients could connect before the server can answer them.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any

from headrace.runtime.errors import InvalidArgument
from headrace.server.settings.settings import Settings


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
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"{host!r} is not an address, and no host has that name",
            field=setting.replace("port", "host"),
        ) from error
    tried = [_refusal(family, address) for family, *_, address in addresses]
    refusals = [each for each in tried if each is not None]
    taken = [refusal for refusal in refusals if refusal.errno == errno.EADDRINUSE]
    # A name may also resolve to an address that this machine lacks, for example an IPv6 one.
    if taken or len(refusals) == len(addresses):
        first = (taken or refusals)[0]
        raise InvalidArgument(
            f"cannot listen on {shown_address(host, port)}: {first.strerror}", field=setting
        ) from first


def check_exposure(settings: Settings) -> None:
    """Checks that a server that other machines reach has TLS and access control.

    Raises:
        InvalidArgument: it lacks one of them, and nobody has said that this is right.
    """
    if settings.allow_insecure:
        return
    lacking = {
        "no TLS": settings.tls_cert is None,
        "no access control": not settings.has_access_control,
    }
    tcp = ("http_host",) if settings.unix_socket_only else ("host", "http_host")
    for setting in tcp:
        host = getattr(settings, setting)
        if any(lacking.values()) and not is_loopback(host):
            what = " and ".join(name for name, lacks in lacking.items() if lacks)
            raise InvalidArgument(
                f"{setting} {host} is open to other machines, but the server has {what}\n"
                "give --tls-cert, --tls-key and --tokens (`headrace tls new` and `headrace token "
                "new` make them), or --allow-insecure if something else protects the ports",
                field=setting,
            )
    # A client certificate is part of TLS, which the Unix socket does not speak.
    controlled = settings.tokens is not None or settings.jwt_jwks is not None
    if settings.unix_socket is not None and settings.unix_socket_mode & 0o002 and not controlled:
        raise InvalidArgument(
            f"unix_socket_mode {settings.unix_socket_mode:04o} lets every user of this machine "
            "connect, but callers there need no token\n"
            "give --tokens, or a mode as 0660 with --unix-socket-owner :GROUP, or --allow-insecure "
            "if the folder of the socket keeps others out",
            field="unix_socket_mode",
        )


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach the host's addresses. A name that cannot be
    resolved counts as one that others reach."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return False
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in addresses)


def _refusal(family: socket.AddressFamily, address: Any) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        return error
    return None
