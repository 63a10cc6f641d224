"""The networks of a server, under the names that callers use.

Every service reaches networks through this module, so that no method can forget whose network it
is. A name that a caller gives becomes a full name here (see `loading/entry.py`), and a full name
becomes a name for the caller here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from headrace.runtime.errors import PermissionDenied
from headrace.runtime.execution.job import Job
from headrace.runtime.loading.entry import (
    NetworkEntry,
    NetworkState,
    check_network_name,
    full_name,
    is_network_name,
    owner_of,
    plain_name,
)
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.system.asker import Asker, current_asker
from headrace.server.access.identity import ANONYMOUS, CALLER, Identity, Role

_MAX_OWNER_LENGTH: Final = 96
"""A file name of the state directory holds the network's name, its owner and its version."""

_NOBODY: Final = "nobody"


class Networks:
    """Networks that all clients share: a full name is what callers use.

    Thread-safe, because the registry is.

    Attributes:
        acquire, release, submit: those of `NetworkRegistry`, with a caller's name. Requests use
            them, so they add no call.
    """

    def __init__(self, registry: NetworkRegistry) -> None:
        self._registry = registry
        self.acquire: Callable[..., NetworkEntry] = registry.acquire
        self.release = registry.release
        self.submit: Callable[[NetworkEntry, Job], None] = registry.submit

    # -- names --

    @property
    def owner(self) -> str:
        """The owner of what the caller loads or uploads now; empty if all clients share it."""
        return ""

    def names(self, name: str) -> tuple[str, ...]:
        """The full names that a caller's name may stand for. The first that exists is meant."""
        return (name,)

    def existing(self, name: str) -> str:
        """The full name of the network that the caller means. It need not exist."""
        return name

    def new(self, name: str) -> str:
        """The full name of a network that the caller loads.

        Raises:
            InvalidArgument: `name` is not a network name.
        """
        return full_name(check_network_name(name), self.owner)

    def changeable(self, name: str) -> str:
        """The full name of a network that the caller wants to change.

        Raises:
            PermissionDenied: the caller sees the network, but may not change it.
        """
        return self.existing(name)

    def manages(self, full: str) -> bool:  # noqa: ARG002 - of networks that all share
        """Whether the caller may change the network."""
        return CALLER.get().may(Role.MANAGE)

    def sees(self, full: str) -> bool:  # noqa: ARG002 - of networks that all share
        """Whether the caller sees the network."""
        return True

    def shown(self, full: str) -> str:
        """The name under which the caller sees a network."""
        return full

    def check_operator(self, what: str) -> None:
        """
        Args:
            what: what only operators may do, for the error.

        Raises:
            PermissionDenied: the caller is not an operator.
        """

    # -- lists --

    def find(self, name: str, version: str = "") -> NetworkEntry:
        """A network in any state that the caller sees. Raises as `NetworkRegistry.find`."""
        return self._registry.find(self.existing(name), version)

    def versions(self, name: str) -> list[NetworkEntry]:
        """The versions, in any state, of a network that the caller sees; the lowest first."""
        return self._registry.versions(self.existing(name))

    def entries(self) -> list[NetworkEntry]:
        """As `NetworkRegistry.entries`, without the networks that the caller does not see."""
        return [entry for entry in self._registry.entries() if self.sees(entry.key.name)]

    def failed(self) -> list[tuple[str, str]]:
        """As `NetworkRegistry.failed`, without the networks that the caller does not see."""
        failed = self._registry.failed()
        return [(self.shown(name), version) for name, version in failed if self.sees(name)]

    def lacking(self) -> list[tuple[str, str]]:
        """The networks that are loaded and lack one that they run: name, and what they lack."""
        ready = [each for each in self.entries() if each.state is NetworkState.READY]
        loaded = ((each.key.name, each.executable) for each in ready)  # which may be closed soon
        reasons = [
            (self.shown(name), executable.unready())
            for name, executable in loaded
            if executable is not None
        ]
        return [(name, reason) for name, reason in reasons if reason]


class PrivateNetworks(Networks):
    """Networks that belong to whom loads them (``--private-networks``).

    - A *tenant* is an identity with the role infer or manage. It sees and uses its own networks and
      the shared ones. A network of its own hides the shared one of the same name. It changes only
      its own.
    - The networks of the repository, and those that an *operator* loads, are shared. An operator
      sees, uses and changes all networks, and changes devices.
    - An identity with the role read alone is an observer: it sees all networks.
    - Operators and observers see a tenant's network as ``NAME@OWNER``.
    - A caller without a credential sees the shared networks, where the method is open to it.

    Args:
        operators: the names of the identities that are operators.
    """

    def __init__(self, registry: NetworkRegistry, operators: Collection[str]) -> None:
        super().__init__(registry)
        self._operators = frozenset(operators)
        self.acquire = self._acquire
        self.submit = self._submit

    @property
    def owner(self) -> str:
        caller = CALLER.get()
        return "" if caller.name in self._operators else owner_name(caller.name)

    def names(self, name: str) -> tuple[str, ...]:
        caller = CALLER.get()
        if self._sees_all(caller):
            return (name,)
        own = full_name(name, owner_name(caller.name))
        # A name with an owner in it is not a name for a tenant.
        return (own, name) if is_network_name(name) else (own,)

    def existing(self, name: str) -> str:
        return self._registry.first(self.names(name))

    def changeable(self, name: str) -> str:
        full = self.existing(name)
        owner = self.owner
        if owner and owner_of(full) != owner and self._registry.has(full):
            raise PermissionDenied(
                f"network {plain_name(full)!r} is not yours: all clients share it, and only an "
                "operator changes it; load a network of your own under this name"
            )
        return full

    def manages(self, full: str) -> bool:
        return super().manages(full) and self.owner in ("", owner_of(full))

    def sees(self, full: str) -> bool:
        caller = CALLER.get()
        if self._sees_all(caller):
            return True
        owner, own = owner_of(full), owner_name(caller.name)
        return owner == own or (not owner and not self._registry.has(full_name(full, own)))

    def shown(self, full: str) -> str:
        return full if self._sees_all(CALLER.get()) else plain_name(full)

    def check_operator(self, what: str) -> None:
        if self.owner:
            raise PermissionDenied(
                f"{what} affects all clients, so only an operator may do it: the setting operators "
                "lists their identities"
            )

    def _sees_all(self, caller: Identity) -> bool:
        observes = caller.may(Role.READ) and not caller.may(Role.INFER)
        return observes or caller.name in self._operators

    def _acquire(self, name: str, version: str = "", sequence: str = "") -> NetworkEntry:
        key = _of_caller(sequence) if sequence else ""
        return self._registry.acquire(self.existing(name), version, key)

    def _submit(self, entry: NetworkEntry, job: Job) -> None:
        if job.sequence is not None:  # two tenants may use the same id on a shared network
            job.sequence = job.sequence._replace(key=_of_caller(job.sequence.id))
        self._registry.submit(entry, job)


def asker(operators: Collection[str] | None) -> Asker:
    """Who asks for a load or a query now. Whoever may unload others' networks is trusted. Without a
    caller it is whoever the thread works for: at a start, the owner of a network that was kept.

    Args:
        operators: as `PrivateNetworks`. None if all clients share the networks.
    """
    caller = CALLER.get()
    if caller is ANONYMOUS:
        return current_asker()
    if operators is None:
        return Asker(caller.name, caller.may(Role.MANAGE))
    trusted = caller.name in operators
    return Asker(caller.name, trusted, "" if trusted else owner_name(caller.name))


def owner_as_asker(owner: str) -> Asker:
    """Whoever has loaded the networks of an owner; the server itself, if they have none."""
    return Asker(unquote(owner), trusted=not owner, owner=owner)


@lru_cache(maxsize=4096)
def owner_name(identity: str) -> str:
    """An identity's name as the owner of networks, short and without special characters."""
    quoted = quote(identity, safe=":") or _NOBODY
    if len(quoted) <= _MAX_OWNER_LENGTH:
        return quoted
    kind = quote(identity.partition(":")[0], safe="")[:16]
    return f"{kind}:sha256:{hashlib.sha256(identity.encode()).hexdigest()}"


def _of_caller(sequence: str) -> str:
    return f"{sequence}@{owner_name(CALLER.get().name)}"
