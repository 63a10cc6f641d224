"""Identities of callers, and the roles that they have."""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass, field


class Role(enum.IntEnum):
    """What a caller may do. Each role includes the roles before it."""

    OPEN = 0
    """Nothing is needed: anybody may call."""
    READ = 1
    """Lists, metadata, metrics, and the health of networks."""
    INFER = 2
    """Inference."""
    MANAGE = 3
    """Everything that changes the server."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One caller.

    Attributes:
        name: ``token:NAME``, ``jwt:ISSUER:SUBJECT`` or ``certificate:NAME``, so that credentials of
            different kinds never have the same name.
        roles: the roles that the credential gives.
    """

    name: str
    roles: frozenset[Role]
    _highest: Role = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_highest", max(self.roles, default=Role.OPEN))

    @property
    def highest(self) -> Role:
        return self._highest

    def may(self, role: Role) -> bool:
        """Whether the caller has `role`, or a role that includes it."""
        return role <= self._highest


ANONYMOUS = Identity("anonymous", frozenset(Role))
"""Every caller of a server without access control. It may do everything."""

STRANGER = Identity("stranger", frozenset())
"""A caller of an open call that has sent no valid credential."""

CALLER: ContextVar[Identity] = ContextVar("caller", default=ANONYMOUS)
"""The caller of the request that this task handles.

It is set before the message is read. Threads and worker processes do not see it: pass them what
they need.
"""


def holder_of(peer: str) -> str:
    """The name under which `Shares` counts what a call takes. It holds the connection, and the
    caller's identity, or the address of a caller without one.

    Args:
        peer: the address in gRPC's form.
    """
    caller = CALLER.get()
    if caller is ANONYMOUS or caller is STRANGER:
        return peer
    return f"{caller.name}|:{peer.replace(':', '|')}"


def sharer() -> str:
    """The name of whoever's share a request counts for; empty if the caller has no identity."""
    caller = CALLER.get()
    return "" if caller is ANONYMOUS else caller.name
