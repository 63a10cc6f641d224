"""The replicas of a cluster, and where each stands. The time is an argument of every decision."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

LOST_SECONDS: Final = 15.0
"""A replica that has not been heard of for so long does not count as live."""


@dataclass(frozen=True)
class ReplicaStatus:
    """Where a replica stands. The replica tells it.

    Attributes:
        ready: whether the replica takes requests. It has caught up once before that.
        revision: the newest revision that the replica has heard of.
        pending: the keys that it is still changing.
        failed: why it could not change other keys.
        number: grows with each status that the replica tells. Calls may overtake each other, and
            may be sent again.
    """

    ready: bool = False
    revision: int = 0
    pending: frozenset[str] = frozenset()
    failed: Mapping[str, str] = field(default_factory=dict)
    number: int = 0


class ReplicaAddress(NamedTuple):
    """A replica.

    Attributes:
        address: host and port of its gRPC server.
        node: the machine that it runs on.
    """

    name: str
    address: str = ""
    node: str = ""


class Problem(NamedTuple):
    """A replica that does not have what it shall have, and why."""

    member: ReplicaAddress
    reason: str

    def __str__(self) -> str:
        where = f" on {self.member.node}" if self.member.node else ""
        return f"{self.member.name}{where}: {self.reason}"


class Members:
    """The live replicas. Belongs to one thread.

    Args:
        lost_seconds: how long a replica counts that nobody hears of.
    """

    def __init__(self, lost_seconds: float = LOST_SECONDS) -> None:
        self._lost_seconds = lost_seconds
        self._members: dict[str, ReplicaAddress] = {}
        self._heard: dict[str, float] = {}
        self._statuses: dict[str, ReplicaStatus] = {}
        self._leaving: set[str] = set()
        self._live: tuple[ReplicaAddress, ...] | None = None  # made when it is needed
        self._roster = ""

    def tell(self, member: ReplicaAddress, status: ReplicaStatus, now: float) -> bool:
        """Notes where a replica stands. Returns whether the set of replicas has changed."""
        changed = self._members.get(member.name) != member
        if changed:
            self._members[member.name] = member
            self._live = None
        self._heard[member.name] = now
        known = self._statuses.get(member.name)
        if known is None or known.number <= status.number:
            self._statuses[member.name] = status
        return changed

    def leave(self, name: str) -> bool:
        """Forgets a replica that ends. Returns whether the set of replicas has changed."""
        self._leaving.discard(name)
        self._heard.pop(name, None)
        self._statuses.pop(name, None)
        self._live = None
        return self._members.pop(name, None) is not None

    def lose(self, now: float) -> list[ReplicaAddress]:
        """Forgets the replicas that have not been heard of for too long, and returns them."""
        late = [name for name, then in self._heard.items() if now - then > self._lost_seconds]
        lost = [self._members[name] for name in late]
        for name in late:
            self.leave(name)
        return lost

    def live(self) -> tuple[ReplicaAddress, ...]:
        """The live replicas in the order of their names."""
        if self._live is None:
            self._live = tuple(self._members[name] for name in sorted(self._members))
            self._roster = roster(self._live)
        return self._live

    def roster(self) -> str:
        """The `roster` of the live replicas."""
        self.live()
        return self._roster

    def will_leave(self, name: str) -> bool:
        """Notes that a replica is about to leave. Returns whether that is new."""
        new = name in self._members and name not in self._leaving
        self._leaving |= {name} & self._members.keys()
        return new

    def staying(self) -> set[str]:
        """The names of the live replicas that take requests and are not about to leave."""
        return {name for name, status in self._statuses.items() if status.ready} - self._leaving

    def leaving(self) -> set[str]:
        """The names of the live replicas that are about to leave."""
        return set(self._leaving)

    def status(self, name: str) -> ReplicaStatus:
        return self._statuses.get(name, ReplicaStatus())

    def behind(self, key: str, revision: int) -> list[str]:
        """The names of the replicas of which `is_behind` is true."""
        return [member for member in self._members if self.is_behind(member, key, revision)]

    def is_behind(self, name: str, key: str, revision: int) -> bool:
        """Whether a live replica takes requests and has not dealt with a key's revision yet."""
        status = self.status(name)
        return status.ready and (status.revision < revision or key in status.pending)

    def problems(self, key: str) -> list[Problem]:
        """The live replicas that could not do what the desired state says of the key."""
        return [
            Problem(member, reason)
            for member in self.live()
            if (reason := self._statuses[member.name].failed.get(key)) is not None
        ]


def roster(members: Collection[ReplicaAddress]) -> str:
    """A short text that differs for different sets of replicas."""
    return hashlib.sha256("\0".join(sorted(map(repr, members))).encode()).hexdigest()[:16]
