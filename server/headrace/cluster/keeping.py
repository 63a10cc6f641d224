"""What a replica asks of the keeper, and what it hears."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from headrace.cluster.desired import Changes, Value, VersionedValue
from headrace.cluster.members import Problem, ReplicaAddress, ReplicaStatus


class CommitResult(NamedTuple):
    """The outcome of a change: its revision. `newest` is set if the change was refused, because it
    builds on an older one."""

    revision: int
    newest: VersionedValue | None = None


class Update(NamedTuple):
    """News for a replica: changes of the desired state, and the live replicas.

    Attributes:
        roster: the `roster` of the live replicas.
        members: the live replicas, if they are not those that the replica knows. A thousand of them
            are a large message.
    """

    changes: Changes
    roster: str
    members: tuple[ReplicaAddress, ...] | None


class KeeperClient(Protocol):
    """What a replica asks of the keeper, wherever the keeper runs."""

    def commit(self, key: str, value: Value | None, expected: int) -> CommitResult:
        """Changes a key, as the keeper does. Waits for the answer; not for the event loop.

        Raises:
            Unavailable: the keeper cannot be reached, or cannot write to its store.
        """

    def follow(
        self, member: ReplicaAddress, status: ReplicaStatus, known: str
    ) -> Awaitable[Update]: ...

    def report(self, member: ReplicaAddress, status: ReplicaStatus) -> Awaitable[None]: ...

    def enter(self, member: ReplicaAddress, status: ReplicaStatus) -> Awaitable[bool]: ...

    def settle(self, key: str, revision: int) -> Awaitable[list[Problem]]: ...

    def release(self, name: str) -> Awaitable[None]: ...

    def leave(self, name: str) -> Awaitable[None]: ...
