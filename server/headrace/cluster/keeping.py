"""What a replica asks of the keeper, and what it hears."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from headrace.cluster.desired import Changes, Entry, Value
from headrace.cluster.members import Member, Problem, Standing


class Committed(NamedTuple):
    """The outcome of a change: its revision. `newest` is set if the change was refused, because it
    builds on an older one."""

    revision: int
    newest: Entry | None = None


class Update(NamedTuple):
    """News for a replica: changes of the desired state, and the live replicas.

    Attributes:
        roster: the `roster` of the live replicas.
        members: the live replicas, if they are not those that the replica knows. A thousand of them
            are a large message.
    """

    changes: Changes
    roster: str
    members: tuple[Member, ...] | None


class Keeping(Protocol):
    """What a replica asks of the keeper, wherever the keeper runs."""

    def commit(self, key: str, value: Value | None, expected: int) -> Committed:
        """Changes a key, as the keeper does. Waits for the answer; not for the event loop.

        Raises:
            Unavailable: the keeper cannot be reached, or cannot write to its store.
        """

    def follow(self, member: Member, standing: Standing, known: str) -> Awaitable[Update]: ...

    def report(self, member: Member, standing: Standing) -> Awaitable[None]: ...

    def enter(self, member: Member, standing: Standing) -> Awaitable[bool]: ...

    def settle(self, key: str, revision: int) -> Awaitable[list[Problem]]: ...

    def release(self, name: str) -> Awaitable[None]: ...

    def leave(self, name: str) -> Awaitable[None]: ...
