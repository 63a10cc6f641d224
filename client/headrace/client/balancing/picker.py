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

    The less loaded server is that of the last request, or a random other one if that has less.
    Looking at two instead of all keeps many clients from choosing the same idle server at once.
    Staying where it is no worse costs less: a server and a connection that have just worked are
    quicker than those that have slept. (This is M. Mitzenmacher, B. Prabhakar and D. Shah, "Load
    Balancing with Memory", 2002: such a choice balances at least as well as that between two random
    servers.)

    Args:
        round_robin: take one after another; otherwise the less loaded one.
        below: ``below(n)`` is a random number from 0 to n - 1.
    """

    def __init__(self, *, round_robin: bool, below: Callable[[int], int]) -> None:
        self._round_robin = round_robin
        self._below = below
        self._turn = below(1 << 16)  # clients that start together begin at different servers
        self._last: object = None

    def pick(self, servers: Sequence[S], now: float) -> S:
        """One of the servers, of which there is at least one."""
        count = len(servers)
        if count == 1:
            return servers[0]
        if self._round_robin:
            self._turn += 1
            return servers[self._turn % count]
        last = next((n for n, each in enumerate(servers) if each is self._last), self._turn % count)
        one, other = servers[last], servers[(last + 1 + self._below(count - 1)) % count]
        chosen = other if other.load(now) < one.load(now) else one
        self._last = chosen
        return chosen
