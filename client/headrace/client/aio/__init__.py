"""The asyncio client: runs the same plans on an asyncio channel, all on one event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import grpc
import grpc.aio

from headrace.client import errors, transport
from headrace.client.aio.infer_many import InferMany
from headrace.client.aio.request import InferRequest
from headrace.client.aio.session import Session
from headrace.client.balancing.addresses import Choosing, Targets
from headrace.client.balancing.options import Balancing
from headrace.client.channel.channel import CallFailed, CallOptions, Reply
from headrace.client.channel.connecting.names import DEFAULT_TARGET
from headrace.client.channel.grpcio import AsyncGrpcChannel
from headrace.client.channel.tasks.channel import LoopChannel
from headrace.client.conversation import Conversation
from headrace.client.errors import Error
from headrace.client.info import NetworkInfo
from headrace.client.outputs import Outputs
from headrace.client.plans import client_plans, infer_plans, network_plans, plan
from headrace.client.plans.network_plans import AnyNetwork, LoadedNetwork
from headrace.client.plans.plan import Budget, CallBlocking, Pause, Plan, Step
from headrace.client.security import File, endpoint_of
from headrace.client.sessions.progress import SessionProgress
from headrace.client.shared_memory.loan import Loan, Packed
from headrace.client.steps import run_on_loop

__all__ = ["Client", "InferMany", "InferRequest", "Network", "Session"]

P = ParamSpec("P")
T = TypeVar("T")


def _method(
    make: Callable[P, Plan[T]],
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, T]]:
    """The method of `Client` that runs a plan."""

    async def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(make(*args, **kwargs))

    return plan.present(method, make, bound=False)


def _loading_method(
    make: Callable[P, Plan[NetworkInfo]],
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, Network]]:
    """The method of `Client` that runs a plan and returns a network."""

    async def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Network:
        return Network(self, await self.run(make(*args, **kwargs)))

    return plan.present(method, make, bound=False)


def _network_method(
    make: Callable[Concatenate[AnyNetwork, P], Plan[T]],
) -> Callable[Concatenate[Network, P], Coroutine[Any, Any, T]]:
    """The method of `Network` that runs a plan."""

    async def method(self: Network, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run_on_loop(make(self, *args, **kwargs), self.client.do)

    return plan.present(method, make, bound=True)


class Client(Choosing, balanced="headrace.client.balancing.aio.client"):
    """A connection to a server for each event loop that it is used on.

    The first call connects. The client may be made before there is a loop. The arguments are those
    of `headrace.client.Client`; `channel` is a `grpc.aio.Channel`.
    """

    def __init__(
        self,
        target: Targets = DEFAULT_TARGET,
        *,
        balance: Balancing | bool = False,  # noqa: ARG002 - `Choosing` takes it
        timeout: float = transport.DEFAULT_TIMEOUT_SECONDS,
        credentials: grpc.ChannelCredentials | None = None,
        tls_ca: File | None = None,
        tls_cert: File | None = None,
        tls_key: File | None = None,
        token: str | Callable[[], str] | None = None,
        allow_insecure: bool = False,
        max_message_bytes: int = transport.DEFAULT_MESSAGE_BYTES,
        shared_memory: bool | None = None,
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        self.timeout_seconds = plan.checked_seconds(timeout)
        files = tls_ca, tls_cert, tls_key
        insecure = allow_insecure or channel is not None
        self.endpoint = endpoint_of(target, credentials, *files, token, insecure=insecure)
        self.target = self.endpoint.address
        self.calls: transport.TaskCalls = self.endpoint.calls(
            transport.TaskCalls, LoopChannel, AsyncGrpcChannel, grpc.aio, max_message_bytes, channel
        )
        self.pool = self.endpoint.pool(shared_memory)
        self._background: set[asyncio.Task[None]] = set()

    load_network = _loading_method(client_plans.load_network)
    load_pipeline = _loading_method(client_plans.load_pipeline)
    import_network = _loading_method(client_plans.import_network)
    query_network = _method(client_plans.query_network)
    devices = _method(client_plans.devices)
    repository = _method(client_plans.repository)
    status = _method(client_plans.status)
    get_metric = _method(client_plans.get_metric)
    get_config = _method(client_plans.get_config)
    set_config = _method(client_plans.set_config)
    set_shadow = _method(client_plans.set_shadow)
    add_extension = _method(client_plans.add_extension)

    async def network(
        self, name: str, version: str = "", *, timeout: float | None = None
    ) -> Network:
        """A network that is already loaded.

        Args:
            version: the version that all requests go to. By default each request goes to the
                version that serves when it comes, or whose turn it is.

        Raises:
            NotFound: no network has this name or this version.
        """
        version = str(version)
        found = await self.run(client_plans.network(name, version, timeout=timeout))
        return Network(self, found, pinned=version)

    async def networks(self, *, timeout: float | None = None) -> list[Network]:
        """All versions of all networks of the server, including loading and failed ones."""
        found = await self.run(client_plans.networks(timeout=timeout))
        return [Network(self, network, pinned=network.version) for network in found]

    async def close(self) -> None:
        """Closes the connections and cancels what is in flight. Idempotent."""
        names = self.pool.close() if self.pool is not None else []
        if names and not self.calls.is_closed:
            forget = partial(self.calls.ask, "UnregisterSharedMemory")
            requests = transport.unregistrations(names)
            calls = [forget(request, transport.FORGET_SECONDS) for request in requests]
            # An error does no harm: the server forgets removed files by itself later.
            await asyncio.gather(*calls, return_exceptions=True)
        self.calls.is_closed = True
        await self.calls.channel.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def probe(self, seconds: float) -> Reply:
        """Asks the server for its health.

        Raises:
            CallFailed: it does not tell.
        """
        self.check_open()
        return await self.calls.channel.unary(transport.CHECK, b"", CallOptions(seconds))

    async def run(self, steps: Plan[T]) -> T:
        """Runs a plan to its end."""
        return await run_on_loop(steps, self.do)

    def run_in_background(self, steps: Plan[None]) -> None:
        """Runs a plan in the background; nobody waits for its end."""
        task = asyncio.ensure_future(self.run(steps))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def do(self, step: Step) -> Any:
        """Does one step of a plan."""
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        if isinstance(step, CallBlocking):
            return await asyncio.to_thread(step.function)
        limit = plan.seconds(step.timeout_seconds, self.timeout_seconds)
        try:
            reply, trailing = await self.calls.ask(step.method, step.request, limit, once=step.once)
        except CallFailed as failure:
            raise errors.from_call(failure, self.endpoint) from None
        if trailing and transport.logs_requests():
            transport.log_request(step.method, trailing)
        return reply


class Network(LoadedNetwork[InferRequest, InferMany, Session]):
    """A loaded network."""

    client: Client

    infer = _network_method(network_plans.infer)
    get_metric = _network_method(network_plans.get_metric)
    get_config = _network_method(network_plans.get_config)
    set_config = _network_method(network_plans.set_config)
    performance_counts = _network_method(network_plans.performance_counts)
    layers = _network_method(network_plans.layers)
    export = _network_method(network_plans.export)
    unload = _network_method(network_plans.unload)
    set_traffic = _network_method(network_plans.set_traffic)

    def _start(self, packed: Packed, seconds: float | None) -> InferRequest:
        budget = Budget(math.inf if seconds is None else seconds)
        task = asyncio.ensure_future(self._sent(packed, budget))
        if isinstance(packed, Loan):  # the task may be cancelled before it begins
            task.add_done_callback(lambda _: packed.not_sent())
        return InferRequest(task)

    def pack(self, inputs: Mapping[str, Any], **options: Any) -> Packed:
        """Does the same as `LoadedNetwork.pack`. If the inputs do not fit, it looks up in the
        background whether the network is another one by now, for the next request."""
        try:
            return super().pack(inputs, **options)
        except Error as error:
            self.failed(error)
            raise

    async def _sent(self, packed: Packed, budget: Budget) -> Outputs:
        try:
            return await self.client.run(infer_plans.infer_packed(packed, budget))
        except Error as error:
            self.failed(error)
            raise

    def _session(self, identifier: str | None) -> Session:
        try:
            progress = SessionProgress(self.name, self.encoder, identifier)
        except Error as error:
            self.failed(error)
            raise
        return Session(self.client, progress, self.timeout_seconds, self.sharing)

    def _many(self, conversation: Conversation, inputs: Any) -> InferMany:
        return InferMany(conversation, inputs)
