"""The servers of one client: what is known of each, and which one gets a request."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import grpc

from headrace.client.balancing.health import Health, Mark, ProbeResult, Verdict
from headrace.client.balancing.options import Balancing
from headrace.client.channel.budget import RetryBudget
from headrace.client.errors import Unavailable
from headrace.wire.errors import ErrorDetails

_REPORT_SECONDS: Final = 0.01  # between two looks at a server's load
_STALE_SECONDS: Final = 1.0
_LACKING_SECONDS: Final = 1.0
_MAX_LACKING: Final = 256


@dataclass(slots=True, eq=False, repr=False)
class Server:
    """One server. The fleet's lock guards it.

    Attributes:
        route: the connection that requests to be balanced take. The client makes it, and makes it
            anew to give up what is in flight.
        in_flight: how many requests and streams of this client the server has.
    """

    address: str
    health: Health
    route: Any = None
    in_flight: int = 0
    full_until: float = 0.0
    retired: bool = False
    _others: int = 0
    _reported_at: float = -_STALE_SECONDS
    _lacking: dict[str, float] = field(default_factory=dict)

    def gave_up(self, route: Any) -> bool:
        """Whether this route, which the server had, was closed because the server was silent."""
        return route is not self.route

    def load(self, now: float) -> int:
        """How many requests the server has, as far as is known: those of this client, and those
        that others had there a moment ago."""
        others = self._others if now - self._reported_at < _STALE_SECONDS else 0
        return self.in_flight + others

    def wants_report(self, now: float) -> bool:
        return now - self._reported_at >= _REPORT_SECONDS

    def reported(self, in_flight: int, now: float) -> None:
        """Notes how many other requests a reply says that the server has."""
        self._others = max(in_flight - self.in_flight, 0)
        self._reported_at = now

    def lacks(self, network: str, now: float) -> bool:
        """Whether the server said a moment ago that it does not have the network."""
        return self._lacking.get(network, now) > now

    def note_lacking(self, network: str, now: float) -> None:
        if len(self._lacking) >= _MAX_LACKING:
            self._lacking.clear()
        self._lacking[network] = now + _LACKING_SECONDS


class PickableServer(Protocol):
    """A server to choose from."""

    def load(self, now: float) -> int: ...


S = TypeVar("S", bound=PickableServer)


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
        last = next(
            (n for n, server in enumerate(servers) if server is self._last), self._turn % count
        )
        one, other = servers[last], servers[(last + 1 + self._below(count - 1)) % count]
        chosen = other if other.load(now) < one.load(now) else one
        self._last = chosen
        return chosen


TICK_SECONDS: Final = 0.1
"""How often `Fleet.due` is asked while the client has work."""

_OWN_PAUSE_SECONDS: Final = 5 * TICK_SECONDS
_RESOLVE_SOON_SECONDS: Final = 1.0
_FULL_SECONDS: Final = 0.05


class Fleet:
    """All servers. Thread-safe: `_lock` guards the servers and the budget, and is held for
    microseconds.

    Args:
        options: as the user gave them.
        wake: called when there is work after a time without any, so that somebody asks `due`.
    """

    def __init__(
        self,
        options: Balancing,
        wake: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        below: Callable[[int], int] = random.randrange,
    ) -> None:
        self.options = options
        self.clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._servers: list[Server] = []
        self._retired: list[Server] = []
        self._reports = options.policy == "least_loaded"
        self._picker = Picker(round_robin=not self._reports, below=below)
        self._budget = RetryBudget(options.retry_ratio, clock())
        self._asleep = True
        self._ticked_at = clock()

    def inherit(self) -> None:
        """Forgets what is in flight of the process that this one was forked from."""
        self._lock = threading.Lock()
        self._asleep = True
        self._retired = []
        for server in self._servers:
            server.in_flight = 0
            server.health.unasked()

    @property
    def servers(self) -> list[Server]:
        with self._lock:
            return list(self._servers)

    def known(self) -> list[Server]:
        """The servers, and those that are gone and still have something of this client."""
        with self._lock:
            return [*self._servers, *self._retired]

    def update(self, addresses: Iterable[str]) -> list[Server]:
        """Takes these servers from now on. Returns the new ones, which need a route before they are
        `add`ed. Servers that are gone finish what they have."""
        with self._lock:
            wanted = dict.fromkeys(addresses)
            known = {server.address for server in self._servers}
            gone = [server for server in self._servers if server.address not in wanted]
            for server in gone:
                server.retired = True
            self._retired += gone
            self._servers = [server for server in self._servers if not server.retired]
            new = [address for address in wanted if address not in known]
            return [Server(address, Health(self.options)) for address in new]

    def add(self, servers: Iterable[Server]) -> None:
        with self._lock:
            self._servers += servers

    def forget_retired(self) -> list[Server]:
        """The servers that are gone and have nothing of this client any more, each once."""
        with self._lock:
            idle = [server for server in self._retired if not server.in_flight]
            self._retired = [server for server in self._retired if server.in_flight]
            return idle

    # -- requests --

    def pick(self, tried: Collection[Server], network: str = "", *, first: bool = True) -> Server:
        """The server that gets a request, which then counts as in flight there.

        Args:
            tried: servers that have refused the request. They get it only if there is no other.
            network: the name of the network that it is for.
            first: whether the request is sent for the first time, and pays for repeats.

        Raises:
            Unavailable: no server is known.
        """
        now = self.clock()
        with self._lock:
            servers = self._servers
            if not servers:
                raise _nobody()
            best = [
                server
                for server in servers
                if server.health.up
                and now >= server.full_until
                and not server.health.is_ejected(now)
                and server not in tried
                and not server.lacks(network, now)
            ]
            if not best:
                rest = [server for server in servers if server not in tried] or servers
                best = [server for server in rest if server.health.up]
                best = best or [server for server in rest if server.health.silent] or rest
            server = self._picker.pick(best, now)
            if not server.in_flight:
                server.health.heard(now)  # its silence begins now
            server.in_flight += 1
            if first:
                self._budget.deposit()
            woken, self._asleep = self._asleep, False
            if woken:
                self._ticked_at = now
        if woken:
            self._wake()
        return server

    def has_other(self, tried: Collection[Server]) -> bool:
        """Whether there is a server that has not been tried and is not known to be down."""
        with self._lock:
            return any(server.health.up and server not in tried for server in self._servers)

    def may_repeat(self) -> bool:
        """Whether the budget allows one more repeat, which then counts."""
        with self._lock:
            return self._budget.withdraw(self.clock())

    def may_hedge(self, server: Server) -> bool:
        """Whether a request that this server is slow to answer goes to a second one, too, which
        then counts as a repeat."""
        return self.has_other((server,)) and self.may_repeat()

    def answered(self, server: Server) -> bool:
        """Notes that a request succeeded. Whether the load in its reply is wanted."""
        now = self.clock()
        with self._lock:
            server.in_flight -= 1
            server.health.succeeded(now)
            return self._reports and server.wants_report(now)

    def reported(self, server: Server, in_flight: int) -> None:
        """Notes the load that a reply tells."""
        with self._lock:
            server.reported(in_flight, self.clock())

    def heard(self, server: Server) -> None:
        """Notes a message of a stream."""
        with self._lock:
            server.health.heard(self.clock())

    def released(self, server: Server) -> None:
        """Notes that a request has ended in a way that says nothing of the server."""
        with self._lock:
            server.in_flight -= 1

    def failed(self, server: Server, verdict: Verdict, network: str = "") -> None:
        """Notes that a request failed."""
        now = self.clock()
        with self._lock:
            server.in_flight -= 1
            self._mark(server, verdict.mark, network, now)

    def marked(self, server: Server, mark: Mark) -> None:
        """Notes what a result on a stream says of the server."""
        with self._lock:
            self._mark(server, mark, "", self.clock())

    def _mark(self, server: Server, mark: Mark, network: str, now: float) -> None:
        health = server.health
        if mark in (Mark.UNREACHABLE, Mark.DRAINS):
            health.went_down(now)
        elif mark is Mark.FAULT:
            ejected = sum(each.health.is_ejected(now) for each in self._servers)
            health.failed(now, may_eject=2 * (ejected + 1) <= len(self._servers))
        else:
            health.heard(now)
            if mark is Mark.LACKS:
                server.note_lacking(network, now)
            elif mark is Mark.FULL:
                server.full_until = now + _FULL_SECONDS

    # -- health --

    def due(self) -> list[Server]:
        """The servers whose health is to be asked now."""
        now = self.clock()
        with self._lock:
            self._forgive_own_pause(now)
            self._ticked_at = now
            return [
                server
                for server in (*self._servers, *self._retired)
                if server.health.wants_probe(now, server.in_flight)
            ]

    def probed(self, server: Server, answer: ProbeResult) -> bool:
        """Notes an answer. Whether the requests in flight there are to be given up."""
        now = self.clock()
        with self._lock:
            self._forgive_own_pause(now)
            return server.health.probed(now, answer)

    def _forgive_own_pause(self, now: float) -> None:
        """Blames no server for its silence if this client itself has not run for a while."""
        if now - self._ticked_at >= _OWN_PAUSE_SECONDS:
            for server in self._servers:
                server.health.heard(now)

    def unasked(self, server: Server) -> None:
        """Notes that a probe could not be sent."""
        with self._lock:
            server.health.unasked()

    def may_sleep(self) -> bool:
        """Whether nothing is due before the next request. Then `wake` tells of it."""
        with self._lock:
            servers = (*self._servers, *self._retired)
            busy = any(server.in_flight or not server.health.up for server in servers)
            self._asleep = not busy
            return self._asleep

    def must_resolve(self, age: float) -> bool:
        """Whether a name that was looked up so many seconds ago is to be looked up again. If a
        server is down, others may be there already."""
        every = self.options.resolve_seconds
        with self._lock:
            all_up = all(server.health.up for server in self._servers)
        return age >= every or (age >= min(_RESOLVE_SOON_SECONDS, every) and not all_up)


def _nobody() -> Unavailable:
    message = "no server is known: DNS gives no address for the name"
    return Unavailable(ErrorDetails(grpc.StatusCode.UNAVAILABLE, message, reason="NO_SERVERS"))
