"""The synchronous client: runs plans on a blocking channel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import grpc

from headrace.client import errors, transport
from headrace.client.balancing.addresses import Choosing, Targets
from headrace.client.balancing.options import Balancing
from headrace.client.channel.channel import Call, CallFailed, CallOptions
from headrace.client.channel.connecting.names import DEFAULT_TARGET
from headrace.client.channel.grpcio import GrpcChannel
from headrace.client.channel.threads.channel import SocketChannel
from headrace.client.conversation import Conversation
from headrace.client.errors import Error
from headrace.client.exits import close_at_exit
from headrace.client.infer_many import InferMany
from headrace.client.info import NetworkInfo
from headrace.client.plans import client_plans, network_plans, plan
from headrace.client.plans.network_plans import AnyNetwork, LoadedNetwork
from headrace.client.plans.plan import CallBlocking, Pause, Plan, Step
from headrace.client.request import InferRequest
from headrace.client.security import File, endpoint_of
from headrace.client.sessions.progress import SessionProgress
from headrace.client.sessions.session import Session
from headrace.client.shared_memory.call import started
from headrace.client.shared_memory.loan import Packed
from headrace.client.steps import run

P = ParamSpec("P")
T = TypeVar("T")


def _method(make: Callable[P, Plan[T]]) -> Callable[Concatenate[Client, P], T]:
    """The method of `Client` that runs a plan."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(make(*args, **kwargs))

    return plan.present(method, make, bound=False)


def _loading_method(
    make: Callable[P, Plan[NetworkInfo]],
) -> Callable[Concatenate[Client, P], Network]:
    """The method of `Client` that runs a plan and returns a network."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Network:
        return Network(self, self.run(make(*args, **kwargs)))

    return plan.present(method, make, bound=False)


def _network_method(
    make: Callable[Concatenate[AnyNetwork, P], Plan[T]],
) -> Callable[Concatenate[Network, P], T]:
    """The method of `Network` that runs a plan."""

    def method(self: Network, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(make(self, *args, **kwargs), self.client.do)

    return plan.present(method, make, bound=True)


class Client(Choosing, balanced="headrace.client.balancing.sync.client"):
    """A connection to a server. Thread-safe; use one for all threads.

    The first call connects.

    Args:
        target: the server's address, as ``host:port``; the default port is 9000. Names of gRPC's
            other schemes, as ``unix:path``, are passed on unchanged. A list is several servers.
        balance: whether, or how, to balance. True is for a name, as ``dns:///name:9000``.
        timeout: the timeout of a call without one of its own, in seconds; loads have none.
        credentials: for TLS, as grpc.ssl_channel_credentials() makes them, instead of the files.
        tls_ca: a PEM file with the authorities that may have signed the server's certificate.
        tls_cert, tls_key: PEM files with the client's own certificate and key, if the server asks
            for one. Without `tls_ca`, the server's certificate must be from a public authority.
        token: the token that is sent with each call, or a function that returns it.
        allow_insecure: send the token in plain text to another machine, too.
        max_message_bytes: the largest message that is sent or received.
        shared_memory: pass large tensors through shared memory, if the server is on this machine
            and allows it. The default is to do so if the target is a Unix socket.
        channel: a channel of gRPC's that carries the calls, for xDS, interceptors or other things
            of gRPC. The target is then its name in errors. It is yours to close.

    Raises:
        InvalidArgument: the target is no address, the timeout is no number, a file of TLS cannot be
            used, or the token would travel to another machine in plain text.
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
        channel: grpc.Channel | None = None,
    ) -> None:
        self.timeout_seconds = plan.checked_seconds(timeout)
        files = tls_ca, tls_cert, tls_key
        insecure = allow_insecure or channel is not None
        self.endpoint = endpoint_of(target, credentials, *files, token, insecure=insecure)
        self.target = self.endpoint.address
        self.calls: transport.ThreadCalls = self.endpoint.calls(
            transport.ThreadCalls, SocketChannel, GrpcChannel, grpc, max_message_bytes, channel
        )
        self.pool = self.endpoint.pool(shared_memory)
        close_at_exit(self)

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

    def network(self, name: str, version: str = "", *, timeout: float | None = None) -> Network:
        """A network that is already loaded.

        Args:
            version: the version that all requests go to. By default each request goes to the
                version that serves when it comes, or whose turn it is.

        Raises:
            NotFound: no network has this name or this version.
        """
        version = str(version)
        found = self.run(client_plans.network(name, version, timeout=timeout))
        return Network(self, found, pinned=version)

    def networks(self, *, timeout: float | None = None) -> list[Network]:
        """All versions of all networks of the server, including loading and failed ones."""
        plans = client_plans.networks(timeout=timeout)
        return [Network(self, info, pinned=info.version) for info in self.run(plans)]

    def close(self) -> None:
        """Cancels what is in flight, and closes the connection. Idempotent."""
        names = self.pool.close() if self.pool is not None else []
        if names and not self.calls.is_closed:
            forget = partial(
                self.calls.start, "UnregisterSharedMemory", timeout=transport.FORGET_SECONDS
            )
            for call in list(map(forget, transport.unregistrations(names))):
                call.exception()  # the server forgets removed files by itself, only later
        self.calls.is_closed = True
        self.calls.channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def probe(self, seconds: float) -> Call:
        """Asks the server for its health."""
        self.check_open()
        return self.calls.channel.start(transport.CHECK, b"", CallOptions(seconds))

    def run(self, steps: Plan[T]) -> T:
        """Runs a plan to its end."""
        return run(steps, self.do)

    def run_in_background(self, steps: Plan[None]) -> None:
        """Runs a plan on a thread of its own."""
        threading.Thread(target=self.run, args=(steps,), daemon=True).start()

    def do(self, step: Step) -> Any:
        """Does one step of a plan."""
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        if isinstance(step, CallBlocking):
            return step.function()
        limit = plan.seconds(step.timeout_seconds, self.timeout_seconds)
        try:
            reply, trailing = self.calls.ask(step.method, step.request, limit, once=step.once)
        except CallFailed as failure:
            raise errors.from_call(failure, self.endpoint) from None
        if trailing and transport.logs_requests():
            transport.log_request(step.method, trailing)
        return reply


class Network(LoadedNetwork[InferRequest, InferMany, Session]):
    """A loaded network. Thread-safe."""

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
        start, endpoint = (
            partial(self.client.calls.start, "Infer", timeout=seconds),
            self.client.endpoint,
        )
        return InferRequest(started(start, packed, endpoint), endpoint, self.failed)

    def pack(self, inputs: Mapping[str, Any], **options: Any) -> Packed:
        """Does the same as `LoadedNetwork.pack`. If the inputs do not fit, it looks up whether the
        network is another one by now."""
        try:
            return super().pack(inputs, **options)
        except Error as error:
            seconds = self.timeout_seconds
            if not self.doubts(error) or not self.client.run(self.renew(seconds)):
                raise
        return super().pack(inputs, **options)

    def _session(self, identifier: str | None) -> Session:
        if not self.encoder.has_states:
            self.client.run(self.renew(self.timeout_seconds))
        progress = SessionProgress(self.name, self.encoder, identifier)
        return Session(self.client, progress, self.timeout_seconds, self.sharing)

    def _many(self, conversation: Conversation, inputs: Any) -> InferMany:
        return InferMany(conversation, inputs)
