"""The servers of one client: what is known of each, and which one gets a request."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

import grpc

from headrace.client.balancing.health import Answer
from headrace.client.balancing.options import Balancing
from headrace.client.balancing.picker import Picker
from headrace.client.balancing.server import Server
from headrace.client.balancing.verdict import Mark, Verdict
from headrace.client.channel.budget import RetryBudget
from headrace.client.errors import Unavailable
from headrace.wire.errors import ErrorDetails

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
            return [Server(each, self.options) for each in wanted if each not in known]

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
            return any(each.health.up and each not in tried for each in self._servers)

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

    def probed(self, server: Server, answer: Answer) -> bool:
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
