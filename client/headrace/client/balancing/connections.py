"""A client's connections to its servers, what goes to which of them, and what their results mean
together. The synchronous and the asyncio client share it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, NoReturn, TypeVar

import grpc

from headrace.client import errors
from headrace.client.balancing.addresses import Targets, listed, name_of
from headrace.client.balancing.attempts import at
from headrace.client.balancing.fleet import Fleet, Server
from headrace.client.balancing.options import Balancing
from headrace.client.channel.connecting.names import parse
from headrace.client.errors import Error, Unavailable, from_details, invalid
from headrace.client.forks import tell_of_forks
from headrace.client.info import NetworkInfo
from headrace.client.plans import client_plans
from headrace.client.plans.plan import Plan, checked_seconds
from headrace.client.security import Endpoint
from headrace.client.transport import DEFAULT_MESSAGE_BYTES, DEFAULT_TIMEOUT_SECONDS
from headrace.wire.errors import ErrorDetails

C = TypeVar("C")
T = TypeVar("T")

ROUTED: Final = frozenset({"Infer", "GetNetwork", "ExportNetwork"})
"""The methods that any server answers alike, and that may be repeated."""


class Servers(Generic[C]):
    """The connections: for each server a route, which balanced requests take, and a pinned client
    for all calls that are about this server. Thread-safe; `_lock` guards the connections.

    Args:
        kind: the class of a client of one server.
        wake: as for `Fleet`.
        target, balance, timeout, max_message_bytes, shared_memory: as the user gave them.
        security: the arguments of `Endpoint` after the target.

    Attributes:
        timeout_seconds: that of a call without one of its own.
        endpoint: what all servers have in common. str() of it names them all.
        name: host and port to look up in DNS; None if the target lists all servers.
        closed: whether the client is closed.

    Raises:
        InvalidArgument: the target names no server, or an option does not go with several.
    """

    def __init__(
        self,
        kind: Callable[..., C],
        wake: Callable[[], object],
        target: Targets,
        *,
        balance: Balancing | bool = True,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        max_message_bytes: int = DEFAULT_MESSAGE_BYTES,
        shared_memory: bool | None = None,
        **security: Any,
    ) -> None:
        self.timeout_seconds = checked_seconds(timeout)
        if not isinstance(balance, Balancing | bool):
            raise invalid(
                "balance",
                f"balance is {balance!r}; pass True, or Balancing(policy=...) for options",
            )
        if shared_memory:
            raise invalid("shared_memory", "shared memory goes with one server; pass one address")
        self.name = name_of(target)
        if self.name is None:
            addresses = listed(target)
            # The token must not travel in plain text to any of them.
            strictest = next(
                (address for address in addresses if not parse(address).is_local), addresses[0]
            )
            self.endpoint = Endpoint(strictest, **security)
            self.endpoint.address = ",".join(addresses)
        else:
            addresses = []
            self.endpoint = Endpoint(str(target), **security)
        self._connect = partial(kind, timeout=timeout, max_message_bytes=max_message_bytes)
        self._lock = threading.Lock()
        self._pinned: dict[str, C] = {}
        self.closed = False
        options = balance if isinstance(balance, Balancing) else Balancing()
        self.fleet = Fleet(options, wake)
        self.take(addresses)
        tell_of_forks(self)

    def inherit(self) -> None:
        self._lock = threading.Lock()
        self.fleet.inherit()

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.fleet.servers]

    def take(self, addresses: Iterable[str]) -> None:
        """Takes these servers from now on."""
        new = self.fleet.update(addresses)
        for server in new:
            server.route = self._connect(self.endpoint_of(server, repeats=False))
        self.fleet.add(new)

    def endpoint_of(self, server: Server, *, repeats: bool = True) -> Endpoint:
        """The endpoint of one server. Its certificate is for the name that DNS was asked for."""
        authority = "" if self.name is None else f"{self.name[0]}:{self.name[1]}"
        return self.endpoint.at(server.address, authority, repeats=repeats)

    def at(self, address: str) -> C:
        """The pinned client of a server.

        Raises:
            InvalidArgument: the client does not have this server.
        """
        wanted = parse(address).text
        for server in self.fleet.servers:
            if server.address == wanted:
                return self.pinned(server)
        known = ", ".join(self.addresses)
        raise invalid("address", f"{address!r} is not a server of this client: {known}")

    def chosen(self) -> C:
        """The pinned client of the server that would get the next request.

        Raises:
            Unavailable: no server is known.
        """
        server = self.fleet.pick(())
        self.fleet.released(server)
        return self.pinned(server)

    def pinned(self, server: Server) -> C:
        """The client for all calls that are about this server.

        Raises:
            FailedPrecondition: the client is closed.
        """
        with self._lock:
            self.check_open()
            if server.address not in self._pinned:
                self._pinned[server.address] = self._connect(self.endpoint_of(server))
            return self._pinned[server.address]

    # -- plans --

    def network(self, name: str, version: str, timeout: float | None) -> Plan[NetworkInfo]:
        """A network that is loaded, and ready if it is that on any server."""
        found = yield from client_plans.network(name, version, timeout=timeout)
        if found.state == "LOADING":
            for server in self.fleet.servers:
                with suppress(Error):
                    steps = client_plans.network(name, version, timeout=timeout)
                    other = yield from at(self.pinned(server), steps)
                    if other.state == "READY":
                        return other
        return found

    def on_one(self, make: Callable[..., Plan[T]], *args: Any, **kwargs: Any) -> Plan[T]:
        """Runs a plan on one server, and on the next one if it cannot be reached."""
        for _ in range(len(self.fleet.servers) - 1):
            with suppress(Unavailable):
                return (yield from at(self.chosen(), make(*args, **kwargs)))
        return (yield from at(self.chosen(), make(*args, **kwargs)))

    # -- the end --

    def check_open(self) -> None:
        """
        Raises:
            FailedPrecondition: the client is closed.
        """
        if self.closed:
            raise errors.client_closed()

    def give_up(self, server: Server) -> C | None:
        """Gives a silent server another route. Returns the old one for the caller to close, which
        ends what is in flight there."""
        with self._lock:
            if self.closed:
                return None
            old: C = server.route
            server.route = self._connect(self.endpoint_of(server, repeats=False))
            return old

    def forget_retired(self) -> list[C]:
        """The routes to servers that are gone, for the caller to close."""
        gone = self.fleet.forget_retired()
        if gone:
            with self._lock:
                for server in gone:
                    self._pinned.pop(server.address, None)  # sessions may still use it
        return [server.route for server in gone]

    def close(self) -> list[C]:
        """All connections, for the caller to close. Idempotent."""
        with self._lock:
            self.closed = True
            pinned, self._pinned = list(self._pinned.values()), {}
            routes = [server.route for server in self.fleet.known()]
            return [*pinned, *routes]


def unresolved(target: str, error: OSError) -> Error:
    """The error of a call on a client whose name DNS does not know."""
    message = f"DNS tells no address for {target}: {error.strerror or error}"
    details = ErrorDetails(grpc.StatusCode.UNAVAILABLE, message, reason="NO_SERVERS")
    return errors.from_details(details)


def check_routed(method: str, fleet: Fleet, *, once: bool) -> None:
    """
    Args:
        once: whether the call must not be repeated.

    Raises:
        FailedPrecondition: the method is about one server.
    """
    if method not in ROUTED or once:
        refuse(method, fleet.servers)


def refuse(method: str, servers: Sequence[Server]) -> NoReturn:
    """
    Raises:
        FailedPrecondition: the method is about one server.
    """
    example = servers[0].address if servers else "host:port"
    several = str(len(servers)) if servers else "all servers of a name"
    message = (
        f"{method} is about one server, and this client has {several}; "
        f"call it on client.server({example!r})"
    )
    raise errors.precondition(message, "SEVERAL_SERVERS")


def agreed(results: Sequence[tuple[str, Any]]) -> list[Any]:
    """The results of a call that was made on every server.

    Args:
        results: address and result, or the error.

    Raises:
        Error: it failed on some servers. It is of the first failure's class, and names all.
    """
    failed = [(address, result) for address, result in results if isinstance(result, Error)]
    if not failed:
        return [result for _, result in results]
    done = [address for address, result in results if not isinstance(result, Error)]
    first = failed[0][1].details
    told = "; ".join(f"{address}: {error}" for address, error in failed)
    where = f"done on {', '.join(done)}, but " if done else ""
    message = f"{where}failed on {len(failed)} of {len(results)} servers: {told}"
    raise from_details(
        ErrorDetails(
            first.code,
            message,
            reason=first.reason,
            field=first.field,
            metadata={"failed": ",".join(address for address, _ in failed)},
        )
    )
