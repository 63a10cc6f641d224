"""The asyncio client for several servers, all on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from headrace.client import errors, transport
from headrace.client.aio import Client
from headrace.client.balancing import messages
from headrace.client.balancing.addresses import Targets, resolve
from headrace.client.balancing.aio.network import BalancedNetwork
from headrace.client.balancing.aio.watch import Watch
from headrace.client.balancing.attempts import ROUTED, Attempts
from headrace.client.balancing.connections import Servers
from headrace.client.balancing.options import Balancing
from headrace.client.balancing.server import Server
from headrace.client.errors import Error, Unavailable
from headrace.client.info import NetworkInfo, QueryResult
from headrace.client.plans import client_plans, plan
from headrace.client.plans.plan import Budget, Call, Plan, Step

T = TypeVar("T")


def _on_all(make: Callable[..., Plan[Any]]) -> Any:
    """The method of `BalancedClient` that runs a plan on every server."""

    async def method(self: BalancedClient, /, *args: Any, **kwargs: Any) -> Any:
        return (await self.on_all(make, *args, **kwargs))[0]

    plan.present(method, make, bound=False)
    return method


def _loading_on_all(make: Callable[..., Plan[NetworkInfo]]) -> Any:
    async def method(self: BalancedClient, /, *args: Any, **kwargs: Any) -> BalancedNetwork:
        return BalancedNetwork(self, (await self.on_all(make, *args, **kwargs))[0])

    plan.present(method, make, bound=False)
    return method


class BalancedClient(Client):
    """A client of several servers; `Client` makes it.

    One task of the client's own asks silent servers for their health and looks names up. It runs
    while the client has work.
    """

    def __init__(
        self,
        target: Targets,
        *,
        balance: Balancing | bool = True,
        timeout: float = transport.DEFAULT_TIMEOUT_SECONDS,
        credentials: grpc.ChannelCredentials | None = None,
        tls_ca: Any = None,
        tls_cert: Any = None,
        tls_key: Any = None,
        token: str | Callable[[], str] | None = None,
        allow_insecure: bool = False,
        max_message_bytes: int = transport.DEFAULT_MESSAGE_BYTES,
        shared_memory: bool | None = None,
    ) -> None:
        self.timeout_seconds = plan.checked_seconds(timeout)
        self.pool = None
        self._background = set()

        def connect(endpoint: Any) -> Client:
            return Client(endpoint, timeout=timeout, max_message_bytes=max_message_bytes)

        self._watch = Watch(self)
        security = credentials, tls_ca, tls_cert, tls_key, token
        self.group: Servers[Client] = Servers(
            target,
            *security,
            balance=balance,
            shared_memory=shared_memory,
            insecure=allow_insecure,
            connect=connect,
            wake=self._watch.wake,
        )
        self.fleet = self.group.fleet
        self.endpoint = self.group.endpoint
        self.target = self.endpoint.address
        self._resolved = self.group.name is None

    load_network = _loading_on_all(client_plans.load_network)
    import_network = _loading_on_all(client_plans.import_network)
    set_config = _on_all(client_plans.set_config)
    add_extension = _on_all(client_plans.add_extension)

    async def query_network(self, *args: Any, **kwargs: Any) -> QueryResult:
        return await self.on_one(client_plans.query_network, *args, **kwargs)

    async def network(
        self, name: str, version: str = "", *, timeout: float | None = None
    ) -> BalancedNetwork:
        version = str(version)
        found = await self.run(client_plans.network(name, version, timeout=timeout))
        if found.state == "LOADING":  # there, and perhaps ready elsewhere
            found = await self._ready(name, version, timeout) or found
        return BalancedNetwork(self, found, pinned=version)

    async def _ready(self, name: str, version: str, timeout: float | None) -> NetworkInfo | None:
        for server in self.fleet.servers:
            with suppress(Error):
                steps = client_plans.network(name, version, timeout=timeout)
                found = await self.group.pinned(server).run(steps)
                if found.state == "READY":
                    return found
        return None

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
            raise messages.unresolved(self.target, error) from None
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

    def callable(self, method: str, *, once: bool = False) -> Any:
        """Says now whether the client can make this call. `run` makes it.

        Raises:
            FailedPrecondition: the client is closed, or the method is about one server.
        """
        self.group.check_open()
        if method not in ROUTED or once:
            messages.refuse(method, self.fleet.servers)

    def attempts(self, request: Any, tried: tuple[Server, ...] = ()) -> Attempts:
        return Attempts(self.fleet, request, tried)

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
        addresses = [each.target for each in pinned]
        return messages.agreed(list(zip(addresses, results, strict=True)))

    async def on_one(self, make: Callable[..., Plan[T]], *args: Any, **kwargs: Any) -> T:
        """Runs a plan on one server, and on the next one if it cannot be reached."""
        await self._know()
        for left in range(len(self.servers) - 1, -1, -1):
            try:
                return await self.a_server().run(make(*args, **kwargs))
            except Unavailable:
                if not left:
                    raise
        raise AssertionError("no server was tried")

    async def _do(self, step: Step) -> Any:
        if not isinstance(step, Call):
            return await super()._do(step)
        if step.method not in ROUTED or step.once:
            messages.refuse(step.method, self.fleet.servers)
        await self._know()
        seconds = plan.seconds(step.timeout_seconds, self.timeout_seconds)
        budget = Budget(float("inf") if seconds is None else seconds)
        if step.method == "Infer" and self.fleet.options.hedge_after_seconds is not None:
            return await self._first(step, budget)
        return await self._routed(step, budget, self.attempts(step.request), [])

    async def _routed(
        self, step: Call, budget: Budget, attempts: Attempts, at: list[Server]
    ) -> Any:
        """Args:
        at: gets each server that is tried.
        """
        while True:
            server = attempts.server()
            at.append(server)
            route = server.route
            try:
                reply = await route._do(
                    Call(step.method, step.request, budget.left_seconds, once=True)
                )
            except Error as error:
                given_up = server.gave_up(route)
                pause = attempts.failed(server, error, given_up=given_up and not self.group.closed)
                if pause is None or pause >= budget.left_seconds:
                    raise await self._explained(error, server) from None
                await asyncio.sleep(pause)
            except grpc.aio.UsageError:  # the route was closed before the call began
                attempts.released(server)
                if not server.gave_up(route) or self.group.closed:
                    raise errors.client_closed() from None
            except BaseException:
                attempts.released(server)
                raise
            else:
                attempts.answered(server, reply)
                return reply

    async def _first(self, step: Call, budget: Budget) -> Any:
        """The first answer to a request that goes to a second server if the first one is slow."""
        at: list[Server] = []
        first = asyncio.ensure_future(self._routed(step, budget, self.attempts(step.request), at))
        both = {first}
        try:
            await asyncio.wait(both, timeout=self.fleet.options.hedge_after_seconds)
            if not first.done() and at and self.fleet.may_hedge(at[-1]):
                attempts = self.attempts(step.request, (at[-1],))
                both.add(asyncio.ensure_future(self._routed(step, budget, attempts, [])))
            waiting = set(both)
            while True:
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in ended:
                    if not waiting or each.exception() is None:
                        return each.result()
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _explained(self, error: Error, server: Server) -> Error:
        """The error of the last attempt, for the user."""
        if not isinstance(error, Unavailable):
            return error
        endpoint = self.group.endpoint_of(server)
        return await asyncio.to_thread(messages.explained, error, endpoint)
