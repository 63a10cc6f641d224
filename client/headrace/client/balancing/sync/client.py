"""The synchronous client for several servers."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent import futures
from typing import Any, Final, Self, TypeVar

from headrace.client.balancing import connections
from headrace.client.balancing.addresses import Targets, resolve
from headrace.client.balancing.attempts import At, RequestAttempts, routed
from headrace.client.balancing.connections import Servers
from headrace.client.balancing.fleet import Server
from headrace.client.balancing.sync.hedge import HedgedFuture
from headrace.client.balancing.sync.network import BalancedNetwork
from headrace.client.balancing.sync.request import BalancedFuture
from headrace.client.balancing.sync.watch import Watch
from headrace.client.errors import Error
from headrace.client.exits import close_at_exit
from headrace.client.forks import tell_of_forks
from headrace.client.info import NetworkInfo, QueryResult
from headrace.client.plans import client_plans, plan
from headrace.client.plans.plan import Budget, CallMethod, Plan, Step
from headrace.client.sync import Client

T = TypeVar("T")
_MAX_THREADS: Final = 16


def _on_all(make: Callable[..., Plan[Any]]) -> Any:
    """The method of `BalancedClient` that runs a plan on every server."""

    def method(self: BalancedClient, /, *args: Any, **kwargs: Any) -> Any:
        return self.on_all(make, *args, **kwargs)[0]

    return plan.present(method, make, bound=False)


def _loading_on_all(make: Callable[..., Plan[NetworkInfo]]) -> Any:
    def method(self: BalancedClient, /, *args: Any, **kwargs: Any) -> BalancedNetwork:
        return BalancedNetwork(self, self.on_all(make, *args, **kwargs)[0])

    return plan.present(method, make, bound=False)


class _StartedCalls:
    """The part of `ThreadCalls` that starts calls, of those that any server answers."""

    def __init__(self, client: BalancedClient) -> None:
        self._client = client

    def start(
        self, method: str, request: Any, timeout: float | None, *, once: bool = False
    ) -> BalancedFuture | HedgedFuture:
        client = self._client
        client.group.check_open()
        connections.check_routed(method, client.fleet, once=once)
        after = client.fleet.options.hedge_after_seconds
        if method != "Infer" or after is None:
            return BalancedFuture(client, method, request, timeout)
        hedged = HedgedFuture(client, request, timeout)
        client.watch.hedge(hedged, time.monotonic() + after)
        return hedged


class BalancedClient(Client):
    """A client of several servers; `Client` makes it. Thread-safe.

    Calls run on the caller's thread. One thread of the client's own, `Watch`, asks silent servers
    for their health and looks names up. `_lock` guards the routes and the pinned clients.
    """

    def __init__(self, target: Targets, **options: Any) -> None:
        self.pool = None
        self.watch = Watch(weakref.proxy(self))
        weakref.finalize(self, self.watch.stop).atexit = False  # `close_at_exit` is for that
        self.group: Servers[Client] = Servers(Client, self.watch.wake, target, **options)
        self.timeout_seconds = self.group.timeout_seconds
        self.fleet = self.group.fleet
        self.endpoint = self.group.endpoint
        self.target = self.endpoint.address
        self._resolving = threading.Lock()  # one look-up at a time
        self._resolved = self.group.name is None
        close_at_exit(self)
        tell_of_forks(self)

    def inherit(self) -> None:
        self._resolving = threading.Lock()

    load_network = _loading_on_all(client_plans.load_network)
    load_pipeline = _loading_on_all(client_plans.load_pipeline)
    import_network = _loading_on_all(client_plans.import_network)
    set_config = _on_all(client_plans.set_config)
    set_shadow = _on_all(client_plans.set_shadow)
    add_extension = _on_all(client_plans.add_extension)

    def query_network(self, *args: Any, **kwargs: Any) -> QueryResult:
        self._know()
        return self.run(self.group.on_one(client_plans.query_network, *args, **kwargs))

    def network(
        self, name: str, version: str = "", *, timeout: float | None = None
    ) -> BalancedNetwork:
        version = str(version)
        found = self.run(self.group.network(name, version, timeout))
        return BalancedNetwork(self, found, pinned=version)

    # -- servers --

    @property
    def servers(self) -> list[str]:
        """The addresses of the servers."""
        self._know()
        return self.group.addresses

    def server(self, address: str) -> Client:
        """A client of one of the servers. It is closed with this client.

        Raises:
            InvalidArgument: the client does not have this server.
        """
        self._know()
        return self.group.at(address)

    def a_server(self) -> Client:
        """A client of the server that would get the next request."""
        self._know()
        return self.group.chosen()

    def _know(self) -> None:
        """Looks the name up, before the first call."""
        self.group.check_open()
        if not self._resolved:
            self.resolve()

    def resolve(self) -> None:
        """Looks the name up, and takes the servers that DNS tells.

        Raises:
            Unavailable: DNS does not tell any, and no server is known yet.
        """
        assert self.group.name is not None
        with self._resolving:
            try:
                found = resolve(*self.group.name)
            except OSError as error:
                if self._resolved:
                    return
                raise connections.unresolved(self.target, error) from None
            if found and not self.group.closed:
                self.group.take(found)
                self._resolved = True

    def give_up(self, server: Server) -> None:
        """Cancels what is in flight at a server that is silent. Who waits for it goes elsewhere."""
        old = self.group.give_up(server)
        if old is not None:
            old.close()

    def close(self) -> None:
        self.watch.stop()
        self.watch.wait()
        for client in self.group.close():
            client.close()

    def __enter__(self) -> Self:
        return self

    # -- calls --

    def check_open(self) -> None:
        self.group.check_open()

    @property
    def calls(self) -> Any:  # type: ignore[override]
        return _StartedCalls(self)

    def attempts(self, request: Any, tried: tuple[Server, ...] = ()) -> RequestAttempts:
        self._know()
        return RequestAttempts(self.fleet, request, tried)

    def on_all(self, make: Callable[..., Plan[T]], *args: Any, **kwargs: Any) -> list[T]:
        """Runs a plan on every server at the same time.

        Raises:
            Error: it failed on some.
        """
        self._know()
        pinned = [self.group.pinned(server) for server in self.fleet.servers]

        def run(client: Client) -> Any:
            try:
                return client.run(make(*args, **kwargs))
            except Error as error:
                return error

        with futures.ThreadPoolExecutor(min(len(pinned), _MAX_THREADS)) as threads:
            results = list(threads.map(run, pinned))
        addresses = [network.target for network in pinned]
        return connections.agreed(list(zip(addresses, results, strict=True)))

    def do(self, step: Step) -> Any:
        if isinstance(step, At):
            return step.client.do(step)
        if not isinstance(step, CallMethod):
            return super().do(step)
        connections.check_routed(step.method, self.fleet, once=step.once)
        seconds = plan.seconds(step.timeout_seconds, self.timeout_seconds)
        if step.method == "Infer" and self.fleet.options.hedge_after_seconds is not None:
            return self._hedged(step.request, seconds)
        budget = Budget(float("inf") if seconds is None else seconds)
        return self.run(routed(self.group, step, budget, self.attempts(step.request)))

    def _hedged(self, request: Any, seconds: float | None) -> Any:
        started = self.calls.start("Infer", request, seconds)
        try:
            return started.result().message
        finally:  # an interrupt
            started.cancel()
