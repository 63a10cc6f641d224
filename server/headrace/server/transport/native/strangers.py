"""Which connections to end: too many of one address, or without a credential for too long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

STRANGER_SECONDS: Final = 20.0


class OpenConnection(NamedTuple):
    """An open connection.

    Attributes:
        peer: the other end, ``ipv4:10.0.0.1:5000`` or ``unix:USER:PROCESS:NUMBER``.
        since: when it was accepted, in seconds of any clock.
        has_credential: whether it has shown a valid credential.
    """

    peer: str
    since: float
    has_credential: bool = False

    @property
    def address(self) -> str:
        """Who the connection belongs to: an address, or a user at a Unix socket."""
        host = self.peer.rpartition(":")[0]
        return host.rpartition(":")[0] if self.process else host

    @property
    def process(self) -> str:
        """The user's process at a Unix socket. Empty for TCP."""
        return self.peer.rpartition(":")[0] if self.peer.startswith("unix:") else ""


def unwanted(
    connected: Iterable[OpenConnection],
    now: float,
    *,
    per_address: int,
    stranger_seconds: float | None,
) -> dict[str, str]:
    """Which connections to end, and why.

    Args:
        per_address: the most connections of one address or user. Those without a credential go
            first, and then the latest. A process of a user leaves an eighth to the user's others.
        stranger_seconds: how long a connection may stay without a credential. None: for ever.
    """
    reasons: dict[str, str] = {}
    processes: dict[str, list[OpenConnection]] = defaultdict(list)
    addresses: dict[str, list[OpenConnection]] = defaultdict(list)
    for connection in connected:
        if (
            stranger_seconds is not None
            and not connection.has_credential
            and now - connection.since > stranger_seconds
        ):
            reasons[connection.peer] = f"no valid credential within {stranger_seconds:g} seconds"
        elif connection.process:
            processes[connection.process].append(connection)
        else:
            addresses[connection.address].append(connection)

    def bound(own: list[OpenConnection], most: int, whose: str) -> list[OpenConnection]:
        own.sort(key=lambda each: (not each.has_credential, each.since))
        for connection in own[most:]:
            reasons[connection.peer] = f"more than {most} connections of one {whose}"
        return own[:most]

    for own in processes.values():
        kept = bound(own, max(per_address * 7 // 8, 1), "process")
        addresses[kept[0].address] += kept
    for own in addresses.values():
        bound(own, per_address, "user" if own[0].process else "address")
    return reasons
