"""The asyncio client for several servers, all on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self, TypeVar

from headrace.client.aio import Client
from headrace.client.balancing import connections
from headrace.client.balancing.addresses import Targets, resolve
from headrace.client.balancing.aio.network import BalancedNetwork
from headrace.client.balancing.aio.watch import Watch
from headrace.client.balancing.attempts import At, RequestAttempts, routed
from headrace.client.balancing.connections import Servers
from headrace.client.balancing.fleet import Server
from headrace.client.errors import Error
from headrace.client.info import NetworkInfo, QueryResult
from headrace.client.plans import client_plans, plan
from headrace.client.plans.plan import Budget, CallMethod, Plan, Step

T = TypeVar("T")


def _on_all(make: Callable[..., Plan[Any]]) -> Any:
    """The method of `BalancedClient` that runs a plan on every server."""

    async def method(self: BalancedClient, /, *args: Any, **kwargs: Any) -> Any:
        return (await self.on_all(make, *args, **kwargs))[0]

    return plan.present(method, make, bound=False)


def _loading_on_all(make: Callable[..., Plan[NetworkInfo]]) -> Any:
    async def method(self: BalancedClient, /, *args: Any, **kwargs: Any) -> BalancedNetwork:
        return BalancedNetwork(self, (await self.on_all(make, *args, **kwargs))[0])

    return plan.present(method, make, bound=False)


class BalancedClient(Client):
    """A client of several servers; `Client` makes it.

    One task of the client's own asks silent servers for their health and looks names up. It runs
    while the client has work.
    """

    def __init__(self, target: Targets, **options: Any) -> None:
        self.pool = None
        self._background = set()
        self._watch = Watch(self)
        self.group: Servers[Client] = Servers(Client, self._watch.wake, target, **options)
        self.timeout_seconds = self.group.timeout_seconds
        self.fleet = self.group.fleet
        self.endpoint = self.group.endpoint
        self.target = self.endpoint.address
        self._resolved = self.group.name is None

    load_network = _loading_on_all(client_plans.load_network)
    load_pipeline = _loading_on_all(client_plans.load_pipeline)
    import_network = _loading_on_all(client_plans.import_network)
    set_config = _on_all(client_plans.set_config)
    set_shadow = _on_all(client_plans.set_shadow)
    add_extension = _on_all(client_plans.add_extension)

    async def query_network(self, *args: Any, **kwargs: Any) -> QueryResult:
        await self._know()
        return await self.run(self.group.on_one(client_plans.query_network, *args, **kwargs))

    async def network(
        self, name: str, version: str = "", *, timeout: float | None = None
    ) -> BalancedNetwork:
        version = str(version)
        found = await self.run(self.group.network(name, version, timeout))
        return BalancedNetwork(self, found, pinned=version)

    # -- servers --

    @property
    def servers(self) -> list[str]:
        """The addresses of the servers. Those of a name in DNS are known after the first call."""
        return self.group.addresses

    def server(self, address: str) -> Client:
        """A client of one of the servers. It is closed with this client.

        Raises:
            InvalidArgument: the client does not have this server.
        """
        return self.group.at(address)

    def a_server(self) -> Client:
        """A client of the server that would get the next request."""
        return self.group.chosen()

    async def _know(self) -> None:
        """Looks the name up, before the first call."""
        self.group.check_open()
        if not self._resolved:
            await self.resolve()

    async def resolve(self) -> None:
        """Looks the name up, and takes the servers that DNS tells.

        Raises:
            Unavailable: DNS does not tell any, and no server is known yet.
        """
        assert self.group.name is not None
        try:
            found = await asyncio.to_thread(resolve, *self.group.name)
        except OSError as error:
            if self._resolved:
                return
            raise connections.unresolved(self.target, error) from None
        if found and not self.group.closed:
            self.group.take(found)
            self._resolved = True

    async def close(self) -> None:
        self._watch.stop()
        for client in self.group.close():
            await client.close()

    async def __aenter__(self) -> Self:
        return self

    # -- calls --

    def check_open(self) -> None:
        self.group.check_open()

    def attempts(self, request: Any, tried: tuple[Server, ...] = ()) -> RequestAttempts:
        return RequestAttempts(self.fleet, request, tried)

    async def on_all(self, make: Callable[..., Plan[T]], *args: Any, **kwargs: Any) -> list[T]:
        """Runs a plan on every server at the same time.

        Raises:
            Error: it failed on some.
        """
        await self._know()
        pinned = [self.group.pinned(server) for server in self.fleet.servers]

        async def run(client: Client) -> Any:
            try:
                return await client.run(make(*args, **kwargs))
            except Error as error:
                return error

        results = await asyncio.gather(*map(run, pinned))
        addresses = [network.target for network in pinned]
        return connections.agreed(list(zip(addresses, results, strict=True)))

    async def do(self, step: Step) -> Any:
        if isinstance(step, At):
            return await step.client.do(step)
        if not isinstance(step, CallMethod):
            return await super().do(step)
        connections.check_routed(step.method, self.fleet, once=step.once)
        await self._know()
        seconds = plan.seconds(step.timeout_seconds, self.timeout_seconds)
        budget = Budget(float("inf") if seconds is None else seconds)
        if step.method == "Infer" and self.fleet.options.hedge_after_seconds is not None:
            return await self._hedged(step, budget)
        return await self.run(routed(self.group, step, budget, self.attempts(step.request)))

    async def _hedged(self, step: CallMethod, budget: Budget) -> Any:
        """The first answer to a request that goes to a second server if the first one is slow."""
        attempts = self.attempts(step.request)
        first = asyncio.ensure_future(self.run(routed(self.group, step, budget, attempts)))
        both = {first}
        try:
            await asyncio.wait(both, timeout=self.fleet.options.hedge_after_seconds)
            slow = attempts.last
            if not first.done() and slow is not None and self.fleet.may_hedge(slow):
                other = self.attempts(step.request, (slow,))
                steps = routed(self.group, step, budget, other)
                both.add(asyncio.ensure_future(self.run(steps)))
            waiting = set(both)
            while True:
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    if not waiting or task.exception() is None:
                        return task.result()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
