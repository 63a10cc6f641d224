"""Finds the user of this machine that a connection belongs to.

gRPC and HTTP only report a client's address. The kernel knows more: a client on this machine has a
socket with the addresses of the server's socket in reverse, and /proc/net/tcp lists the user that
made the socket. A client on another machine, or in a container with a network of its own, has no
socket in that list and so no user.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from headrace.server.access.identity import ANONYMOUS

MAX_KNOWN: Final = 1024
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_DESCRIPTORS = Path("/proc/self/fd")
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
        """The name to count bytes and places under, for each connection and for each user."""
        return f"{self.user} {self.peer}"


class _Known(NamedTuple):
    user: int
    descriptor: int  # of the server's socket; the inode shows if it is still the same
    inode: int


class Users:
    """The users of one listening socket's connections. Belongs to one event loop.

    A peer is remembered only while the server's socket of its connection is open, because another
    user's connection may have the same address later. Each listening socket has its own `Users`,
    because two connections to different ports of a server may come from the same port.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    async def of(self, peer: str) -> int | None:
        """The user id of the client, or None if the client is not on this machine.

        Args:
            peer: the client's address in gRPC's form, for example ``ipv4:127.0.0.1:5000``.
        """
        known = self._known.get(peer)
        if known is not None:
            if _inode(known.descriptor) == known.inode:
                return known.user
            del self._known[peer]
        address = parse_peer(peer)
        if address is None:
            return None
        known = await asyncio.get_running_loop().run_in_executor(None, _look_up, address)
        if known is None:
            return None
        while len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[peer] = known
        return known.user


def parse_peer(peer: str) -> Address | None:
    """A TCP peer's address, or None for any other peer. IPv4 is mapped into IPv6."""
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _address(host.strip("[]"), int(port))


def peer_of(host: str, port: int) -> str:
    """The name that gRPC gives to a peer."""
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _address(host: str, port: int) -> Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv4Address):
        found = ipaddress.IPv6Address(f"::ffff:{found}")
    return found, port


def _look_up(peer: Address) -> _Known | None:
    found = list(_own_sockets(peer))
    if len(found) != 1:  # closed already, or connected to two of the server's ports
        return None
    descriptor, inode, own = found[0]
    user = _user_of_socket(peer, own)
    return None if user is None else _Known(user, descriptor, inode)


def _own_sockets(peer: Address) -> Iterator[tuple[int, int, Address]]:
    """Descriptor, inode and own address of each of this process's sockets with that peer."""
    for number in [int(each.name) for each in _DESCRIPTORS.glob("*")]:
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(number))  # gRPC may close its own at any time
        except OSError:
            continue
        with closing(copy):
            if copy.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                theirs, ours = copy.getpeername(), copy.getsockname()
            except OSError:
                continue  # the socket listens, or has ended
            own = _address(ours[0], ours[1])
            inode = os.fstat(copy.fileno()).st_ino
            if own is not None and _address(theirs[0], theirs[1]) == peer:
                yield number, inode, own


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
        except OSError:
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


def _inode(descriptor: int) -> int | None:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None
