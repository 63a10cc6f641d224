"""Which replicas have a network that asks for some of them.

The choice is a part of the desired state, under a key of its own. A network stays where it is while
its replicas live. A replica that is about to leave keeps its networks until others have them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from headrace.cluster import networks
from headrace.cluster.desired import Value, VersionedValue

PREFIX: Final = "place/"

_EACH_BYTES: Final = 1 << 20
"""What a network weighs besides its model, so that small networks are spread by their number."""


def key_of(name: str) -> str:
    """The key under which the replicas of the network with this full name are kept."""
    return f"{PREFIX}{name}"


def holders_of(place: Value | None) -> tuple[str, ...]:
    """The names of the replicas in the value of such a key."""
    return tuple(place["holders"]) if place is not None else ()


class Placement:
    """Chooses the replicas. Belongs to one thread.

    Args:
        entries: the desired state to begin with.
    """

    def __init__(self, entries: Mapping[str, VersionedValue]) -> None:
        self._asked: dict[str, tuple[int, int]] = {}  # replicas and weight, by network
        self._holders: dict[str, tuple[str, ...]] = {}
        self._weights: Counter[str] = Counter()  # what each replica has
        for key, entry in entries.items():
            self.note(key, entry.value)

    def note(self, key: str, value: Value | None) -> None:
        """Takes over a change of the desired state."""
        kind, _, name = key.partition("/")
        if f"{kind}/" not in (networks.PREFIX, PREFIX):
            return
        self._weigh(name, -1)
        if kind == "place":
            self._holders[name] = holders_of(value)
        elif value is not None and (asked := networks.replicas(value)):
            self._asked[name] = asked, networks.bytes_of(value) + _EACH_BYTES
        else:
            self._asked.pop(name, None)
        self._weigh(name, 1)
        if not self._holders.get(name):
            self._holders.pop(name, None)

    def of(self, name: str) -> tuple[str, ...]:
        """The replicas that have a network."""
        return self._holders.get(name, ())

    def placed_on(self, replica: str) -> list[str]:
        """The networks that a replica has because it was chosen for them."""
        return [name for name, holders in self._holders.items() if replica in holders]

    def chosen(
        self, name: str, replicas: int, staying: Collection[str], leaving: Collection[str]
    ) -> Value:
        """The value of the key of a network's replicas.

        Args:
            replicas: how many there shall be.
            staying, leaving: the live replicas. Those that leave keep the network, but do not
                count.
        """
        before = self.of(name)
        kept = [holder for holder in before if holder in staying][:replicas]
        free = (holder for holder in staying if holder not in kept)
        more = heapq.nsmallest(
            replicas - len(kept), free, key=lambda each: (self._weights[each], each)
        )
        return {"holders": [*kept, *more, *(holder for holder in before if holder in leaving)]}

    def moves(
        self, staying: Collection[str], leaving: Collection[str]
    ) -> Iterator[tuple[str, Value]]:
        """The keys that have to change after replicas have come or gone, with their new values.

        The caller notes each change before it asks for the next one, which counts it.
        """
        for name, (replicas, _) in self._asked.items():
            there = self.of(name)
            lasting = sum(holder in staying for holder in there)
            gone = any(holder not in staying and holder not in leaving for holder in there)
            if gone or lasting < min(replicas, len(staying)):
                yield key_of(name), self.chosen(name, replicas, staying, leaving)

    def _weigh(self, name: str, sign: int) -> None:
        weight = sign * self._asked.get(name, (0, 0))[1]
        for holder in self._holders.get(name, ()):
            self._weights[holder] += weight
            if not self._weights[holder]:
                del self._weights[holder]
