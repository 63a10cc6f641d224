"""What one client may ask for: requests a second, and requests at a time.

A client is an identity. Callers without one are told apart by their address.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import unquote

from headrace.runtime.errors import ResourceExhausted
from headrace.server.access.identity import ANONYMOUS, STRANGER, Identity

MAX_CLIENTS: Final = 10_000
"""The most clients that are remembered besides those with requests in flight."""

_IPV6_PREFIX = 64
"""A provider gives a customer a whole network of this prefix, so it counts as one address."""

_BUSY_SECONDS = 0.1
"""When a client with too many requests in flight may try again."""


class QuotaExceeded(ResourceExhausted):
    reason = "QUOTA_EXCEEDED"

    def __init__(self, message: str, retry_delay_seconds: float) -> None:
        super().__init__(message)
        self.retry_delay_seconds = retry_delay_seconds


class _Client:
    """
    Attributes:
        credit: the requests that the client may send at once, at the time `at`.
    """

    __slots__ = ("at", "credit", "in_flight")

    def __init__(self, credit: float, at: float) -> None:
        self.credit = credit
        self.at = at
        self.in_flight = 0


class Quotas:
    """Counts the requests of each client. Thread-safe: gRPC and HTTP have an event loop each.
    `_lock` guards the table of clients.

    The rate is a token bucket: a client that was idle for a second may send a second's requests at
    once. So a client that was idle for a second needs no memory. If there are more clients than
    `MAX_CLIENTS`, those that have been idle the longest are forgotten.

    Args:
        rate: the most requests of a client in a second. 0 means no limit.
        in_flight: the most requests of a client at a time. 0 means no limit.
        clock: returns seconds that only grow.
    """

    def __init__(
        self, rate: int, in_flight: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._in_flight = in_flight
        self._clock = clock
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, _Client] = OrderedDict()  # the longest idle one first

    def __len__(self) -> int:
        return len(self._clients)

    def enter(self, caller: Identity, peer: str, *, stays: bool = True) -> None:
        """Counts a request that begins.

        Args:
            peer: the caller's address in gRPC's form.
            stays: whether the request counts as in flight until `leave`.

        Raises:
            QuotaExceeded: the client has sent too many in the last second, or has too many in
                flight.
        """
        name = client_name(caller, peer)
        with self._lock:
            client = self._client(name)
            if self._in_flight and stays and client.in_flight >= self._in_flight:
                raise QuotaExceeded(
                    f"you have {client.in_flight} requests in flight, as many as one client may "
                    "have (--max-in-flight-per-client); wait for their replies",
                    _BUSY_SECONDS,
                )
            if self._rate:
                if client.credit < 1:
                    raise QuotaExceeded(
                        f"you send more than {self._rate} requests a second (--rate-limit); send "
                        "fewer",
                        (1 - client.credit) / self._rate,
                    )
                client.credit -= 1
            client.in_flight += stays

    def leave(self, caller: Identity, peer: str) -> None:
        """Counts the end of a request that stayed."""
        name = client_name(caller, peer)
        with self._lock:
            client = self._clients.get(name)
            if client is not None:
                client.in_flight -= 1

    def _client(self, name: str) -> _Client:
        """The client with its present credit. The caller holds the lock."""
        now, clients = self._clock(), self._clients
        client = clients.get(name)
        if client is None:
            client = clients[name] = _Client(self._rate, now)
            self._forget_idle()
        else:
            client.credit = min(self._rate, client.credit + (now - client.at) * self._rate)
            client.at = now
            clients.move_to_end(name)
        return client

    def _forget_idle(self) -> None:
        """Forgets the client that has been idle the longest, if there are too many."""
        if len(self._clients) <= MAX_CLIENTS:
            return
        for name, client in self._clients.items():
            if not client.in_flight:
                del self._clients[name]
                return


class Meter(NamedTuple):
    """Counts the messages of one stream, each as a request of its client."""

    quotas: Quotas
    caller: Identity
    peer: str

    def enter(self) -> None:
        """Raises as `Quotas.enter`."""
        self.quotas.enter(self.caller, self.peer)

    def leave(self) -> None:
        self.quotas.leave(self.caller, self.peer)


def client_name(caller: Identity, peer: str) -> str:
    """Whom a request counts for: its identity, or without one its address.

    Args:
        peer: the caller's address in gRPC's form, for example ``ipv4:127.0.0.1:5000``.
    """
    if caller is not ANONYMOUS and caller is not STRANGER:
        return caller.name
    return f"address:{address_of(peer)}"


def address_of(peer: str) -> str:
    """What counts as one address of a caller, without the port."""
    family, _, rest = peer.partition(":")
    if family == "ipv4":
        return rest.rpartition(":")[0]
    if family == "ipv6":
        host = unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
        try:
            return str(ipaddress.ip_network(f"{host}/{_IPV6_PREFIX}", strict=False))
        except ValueError:
            return host
    return peer
