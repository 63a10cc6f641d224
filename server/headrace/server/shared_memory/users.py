"""Finds the user of this machine that a connection belongs to.

A socket only has its client's address. The kernel knows more: a client on this machine has a
socket with the addresses of the server's socket in reverse, and /proc/net/tcp lists the user that
made the socket. A client on another machine, or in a container with a network of its own, has no
socket in that list and so no user.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from headrace.runtime.errors import exhausted
from headrace.server.access.identity import ANONYMOUS

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_OVERFLOW = Path("/proc/sys/kernel/overflowuid")
_ESTABLISHED = b"01"

Address: TypeAlias = tuple[ipaddress.IPv6Address, int]


class Caller(NamedTuple):
    """The client of a call.

    Attributes:
        user: its user on this machine; None if it is elsewhere.
        peer: its address.
        owner: tells clients of one user apart if they may not see each other's regions.
        identity: the name of its identity. Memory that was handed over belongs to it.
    """

    user: int | None
    peer: str
    owner: str = ""
    identity: str = ANONYMOUS.name

    @property
    def holder(self) -> str:
        """The name to count bytes and slots under, for each connection, and for each user and
        identity."""
        return f"{self.identity} {self.user} {self.peer}"


class UserLookup:
    """Finds the user that one connection belongs to, once. Belongs to one event loop.

    Args:
        theirs, ours: the addresses of the connection's two ends, host and port first.
    """

    __slots__ = ("_looking", "_ours", "_theirs")

    def __init__(self, theirs: Sequence[Any], ours: Sequence[Any]) -> None:
        self._theirs = theirs
        self._ours = ours
        self._looking: asyncio.Future[int | None] | None = None

    async def find(self) -> int | None:
        """The id of the client's user. None if the client is not on this machine. Calls that want
        it at once wait for one look."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().run_in_executor(None, self._look_up)
        looking = self._looking
        try:
            return await asyncio.shield(looking)
        except Exception:
            if self._looking is looking:
                self._looking = None  # the next call looks again
            raise

    def _look_up(self) -> int | None:
        theirs, ours = (_address(end[0], end[1]) for end in (self._theirs, self._ours))
        return None if theirs is None or ours is None else _user_of_socket(theirs, ours)


def peer_of(host: str, port: int) -> str:
    """The name that gRPC gives to a peer."""
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _address(host: str, port: int) -> Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        address = ipaddress.IPv6Address(f"::ffff:{address}")
    return address, port


def _user_of_socket(local: Address, remote: Address) -> int | None:
    """The user that made the connected socket with these addresses in this network namespace."""
    wanted = {
        (_table_form(local, family), _table_form(remote, family))
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    users = set()
    for table in _TABLES:
        try:
            lines = table.read_bytes().splitlines()[1:]
        except OSError as error:
            if exhausted(error) is not None:  # that does not say that the client is elsewhere
                raise
            continue
        for line in lines:
            columns = line.split(maxsplit=8)
            if (columns[1], columns[2]) in wanted and columns[3] == _ESTABLISHED:
                users.add(int(columns[7]))
    if len(users) != 1:
        return None
    user = users.pop()
    return None if user == _unmapped_user() else user


def _table_form(address: Address, family: int) -> bytes:
    """An address in the form of /proc/net/tcp: its words in the machine's byte order."""
    host, port = address
    packed = host.packed
    if family == socket.AF_INET:
        packed = packed[-4:] if host.ipv4_mapped else b""
    words = struct.unpack(f">{len(packed) // 4}I", packed)
    order = "<" if sys.byteorder == "little" else ">"
    turned = struct.pack(f"{order}{len(words)}I", *words)
    return b"%s:%04X" % (turned.hex().upper().encode(), port)


def _unmapped_user() -> int:
    """The number for all users that have no number in this user namespace."""
    try:
        return int(_OVERFLOW.read_text("ascii"))
    except (OSError, ValueError):
        return 65534
