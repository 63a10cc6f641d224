"""What a replica knows of the networks that only some replicas have."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable

from headrace.cluster.desired import Value
from headrace.cluster.members import ReplicaAddress
from headrace.cluster.placement.choice import holders_of
from headrace.runtime.loading.registry import NetworkRegistry


class Directory:
    """Belongs to the event loop, apart from `find`, `away` and `addresses`, which any thread may
    call: what they read is replaced as a whole.

    Args:
        own: the name of this replica.

    Attributes:
        here: the networks of this replica. They have to be set before the first call.
    """

    here: NetworkRegistry

    def __init__(self, own: str) -> None:
        self._own = own
        self._holders: dict[str, tuple[str, ...]] = {}
        self._addresses: dict[str, str] = {}
        self._turn = itertools.count()

    def __bool__(self) -> bool:
        """Whether there are any such networks."""
        return bool(self._holders)

    # -- what the convergence tells --

    def place(self, name: str, value: Value | None) -> None:
        """Takes over which replicas have a network. None: all of them, or there is none."""
        if value is None:
            self._holders.pop(name, None)
        else:
            self._holders[name] = holders_of(value)

    def meet(self, members: Iterable[ReplicaAddress]) -> list[str]:
        """Takes over the live replicas. Returns the networks that this may concern."""
        addresses = {member.name: member.address for member in members}
        changed = {name for name, _ in addresses.items() ^ self._addresses.items()}
        self._addresses = addresses
        return [name for name, holder in self._holders.items() if not changed.isdisjoint(holder)]

    def is_for(self, name: str) -> bool:
        """Whether this replica is to have a network."""
        holders = self._holders.get(name)
        return holders is None or self._own in holders

    # -- what calls ask --

    def holders(self, name: str) -> tuple[str, ...]:
        """The replicas that are to have a network. Empty if all are."""
        return self._holders.get(name, ())

    def elsewhere(self) -> list[str]:
        """The networks that other replicas serve and this one does not."""
        return [name for name in self._holders if not self.here.serving(name)]

    def find(self, names: Iterable[str], sequence: str = "") -> str:
        """The first of these full names that a network has, if calls to it have to be passed on.
        Otherwise an empty text.

        Args:
            sequence: as for `addresses`.
        """
        for name in names:
            if name in self._holders:
                own = self.here.serving(name) and self._order(name, sequence)[:1] == [self._own]
                return "" if own else name
            if self.here.has(name):
                break
        return ""

    def away(self, names: Iterable[str]) -> tuple[str, ...]:
        """The other replicas that are to have the first of these full names that a network has.
        Empty if this replica serves it, or if all replicas are to have it."""
        for name in names:
            if self.here.serving(name):
                break
            if holders := self._holders.get(name):
                return tuple(holder for holder in holders if holder != self._own)
            if self.here.has(name):
                break
        return ()

    def addresses(self, name: str, sequence: str = "") -> list[str]:
        """The addresses of the other live replicas that are to have a network, in the order in
        which a call tries them.

        Args:
            sequence: the sequence that the request belongs to. All requests of a sequence begin
                with the same replica, while it lives. Other requests take turns.
        """
        known = self._addresses
        others = (replica for replica in self._order(name, sequence) if replica != self._own)
        return [known[replica] for replica in others if replica in known]

    def is_live(self, address: str) -> bool:
        """Whether a live replica has this address."""
        return address in self._addresses.values()

    def _order(self, name: str, sequence: str) -> list[str]:
        """The live replicas that are to have a network, in the order in which a call here tries
        them. It begins with this one, if it has the network and there is no sequence."""
        live = [replica for replica in self._holders.get(name, ()) if replica in self._addresses]
        if sequence:
            live.sort(key=lambda each: hashlib.sha256(f"{each}\0{sequence}".encode()).digest())
        elif self._own in live:
            live.remove(self._own)
            live.insert(0, self._own)
        elif live:
            first = next(self._turn) % len(live)
            live = live[first:] + live[:first]
        return live
