"""Which server gets the next request. Decisions only: chance and what is known are arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar


class Loaded(Protocol):
    """A server to choose from."""

    def load(self, now: float) -> int: ...


S = TypeVar("S", bound=Loaded)


class Picker:
    """Chooses among servers. Not thread-safe.

    Args:
        round_robin: take one after another; otherwise the less loaded of two random ones. Looking
            at two instead of all keeps many clients from choosing the same idle server at once.
        below: ``below(n)`` is a random number from 0 to n - 1.
    """

    def __init__(self, *, round_robin: bool, below: Callable[[int], int]) -> None:
        self._round_robin = round_robin
        self._below = below
        self._turn = below(1 << 16)  # clients that start together begin at different servers

    def pick(self, servers: Sequence[S], now: float) -> S:
        """One of the servers, of which there is at least one."""
        count = len(servers)
        if count == 1:
            return servers[0]
        if self._round_robin:
            self._turn += 1
            return servers[self._turn % count]
        first = self._below(count)
        second = (first + 1 + self._below(count - 1)) % count
        one, other = servers[first], servers[second]
        return other if other.load(now) < one.load(now) else one
