"""gRPC's names of servers, and the places that they stand for.

The syntax is that of gRPC's ``doc/naming.md``. Two things differ: the port is 9000 if a name has
none, and ``dns:`` takes several hosts, as ``ipv4:`` and ``ipv6:`` do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from headrace.client.errors import invalid

DEFAULT_PORT: Final = 9000
DEFAULT_TARGET: Final = f"localhost:{DEFAULT_PORT}"

_SCHEME = re.compile(r"(unix|unix-abstract|vsock|dns|ipv4|ipv6|xds|google-c2p):")
# The schemes whose names hold hosts and ports, separated by commas.
_HOSTS = re.compile(r"(?:dns:(?://(?P<resolver>[^/]*)/)?|ipv4:|ipv6:)(?P<hosts>.*)", re.DOTALL)
_SOCKET = re.compile(r"(?P<scheme>unix|unix-abstract):(?://(?=/))?(?P<path>.+)", re.DOTALL)
_PORT = re.compile(r":([^:\]]*)$")
_LOOPBACK = re.compile(r"localhost|127\.[\d.]+|::1")


@dataclass(frozen=True, slots=True)
class Location:
    """Where a server listens: a host and a port, or a Unix socket.

    Attributes:
        host: a name or an IP address, without brackets. Empty for a Unix socket.
        path: of the Unix socket. It begins with a zero byte if it is in the abstract namespace.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path.startswith("\0"):
            return f"unix-abstract:{self.path[1:]}"
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine for certain."""
        return bool(self.path) or _LOOPBACK.fullmatch(self.host) is not None


@dataclass(frozen=True, slots=True)
class Name:
    """What a user named.

    Attributes:
        text: the name as gRPC takes it. str() gives it.
        places: to be tried in this order. Empty if only gRPC can look the name up.
        resolver: the DNS server to ask. Empty for those of this machine.
    """

    text: str
    places: tuple[Location, ...]
    resolver: str = ""

    def __str__(self) -> str:
        return self.text

    @property
    def authority(self) -> str:
        """What requests name as the server (``:authority``)."""
        return "localhost" if self.places[0].path else str(self.places[0])

    @property
    def host(self) -> str:
        """What the server's certificate has to be for."""
        return self.places[0].host or "localhost"

    @property
    def is_local(self) -> bool:
        """Whether calls stay on this machine."""
        return bool(self.places) and all(place.is_local for place in self.places)


def parse(target: object) -> Name:
    """What a name stands for.

    Raises:
        InvalidArgument: it is no text, is empty, begins with a scheme that gRPC does not know, for
            example http, or has a port that no server can have.
    """
    if isinstance(target, str) and _SCHEME.match(target):
        if found := _HOSTS.fullmatch(target):
            hosts = unquote(found["hosts"]).split(",")
            places = tuple(_place(target, host) for host in hosts)
            return Name(target, places, found["resolver"] or "")
        if found := _SOCKET.fullmatch(target):
            zero = "\0" if found["scheme"] == "unix-abstract" else ""
            return Name(target, (Location(path=zero + unquote(found["path"])),))
        return Name(target, ())
    if not isinstance(target, str) or not target or "://" in target:
        message = f"{target!r} is not a server address; pass host:port, as {DEFAULT_TARGET}"
        raise invalid("target", message)
    place = _place(target, target.removesuffix(":"))
    return Name(str(place), (place,))


def _place(target: str, text: str) -> Location:
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"  # an IPv6 address without a port
    port = _PORT.search(text)
    if port is None:
        return Location(text.strip("[]"), DEFAULT_PORT)
    if port[1].isdecimal() and 1 <= int(port[1][:6]) <= 65535:
        return Location(text[: port.start()].strip("[]"), int(port[1]))
    raise invalid("target", f"{target!r}: {port[1]!r} is not a port; give one from 1 to 65535")
