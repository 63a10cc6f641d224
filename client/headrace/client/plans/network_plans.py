"""The plans behind the methods of `Network`. All raise the classes of `headrace.client.errors`.

`timeout` is in seconds and covers the whole method. None means the client's own timeout.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

from headrace.client import replies
from headrace.client.conversation import Conversation, ConversationPlace
from headrace.client.errors import Error, InvalidArgument, invalid
from headrace.client.info import ExecutableLayer, LayerProfile, NetworkInfo, Ports
from headrace.client.inputs import RequestEncoder
from headrace.client.options import ConfigValue
from headrace.client.outputs import Outputs
from headrace.client.plans import client_plans, plan, targets
from headrace.client.plans.infer_plans import infer_packed, pack
from headrace.client.plans.plan import Budget, CallMethod, Plan
from headrace.client.shared_memory.loan import Packed
from headrace.client.shared_memory.sharing import Sharing
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.message import serialize_request
from headrace.wire.parameters import ParameterValue

R = TypeVar("R")
M = TypeVar("M")
S = TypeVar("S")

_LOOK_SECONDS: Final = 1.0
_OF_PORTS: Final = ("inputs", "outputs", "session")
"""The fields of errors that may come from an old description."""


class LoadedNetwork(Generic[R, M, S]):
    """The part that both clients' networks share: the server's description of the network, and the
    methods that begin requests.

    If a request does not fit the description, or the network was not ready, the description is
    looked up again, at most once a second: the network may have been replaced by one with other
    inputs.

    Attributes:
        info: the description that was looked up last.
        pinned: the version that all requests go to; empty if they go to the one that serves, or to
            those that share the requests.
    """

    def __init__(self, client: Any, network: NetworkInfo, *, pinned: str = "") -> None:
        self.client = client
        self.timeout_seconds = client.timeout_seconds
        self.pinned = pinned
        self._pool, self._in_background = client.pool, client.run_in_background
        self._looked_up_at = -math.inf
        self._describe(network)

    def _describe(self, network: NetworkInfo) -> None:
        self.info = network
        self.encoder = RequestEncoder(network, self.pinned)
        pool = self._pool
        self.sharing = None if pool is None else Sharing(pool, network.outputs, self._in_background)

    def doubts(self, error: Error) -> bool:
        """Whether the description may be wrong, because a request failed with this error."""
        if self.info.state == "READY" and not (
            isinstance(error, InvalidArgument) and (error.details.field or "").startswith(_OF_PORTS)
        ):
            return False
        return time.monotonic() - self._looked_up_at >= _LOOK_SECONDS

    def look_up(self, timeout: float) -> Plan[NetworkInfo]:
        """The description as the server gives it now."""
        return client_plans.network(self.name, self.pinned, timeout=timeout)

    def renew(self, timeout: float) -> Plan[bool]:
        """Looks the description up. Returns whether it has changed."""
        self._looked_up_at = time.monotonic()
        try:
            found = yield from self.look_up(timeout)
        except Error:  # the caller has one that says more
            return False
        before = self.info
        if (found.generation, found.version, found.state) == (
            before.generation,
            before.version,
            before.state,
        ):
            return False
        self._describe(found)
        return True

    def failed(self, error: Error) -> None:
        """Notes why a request failed. The next one may fit a new description."""
        if self.doubts(error):
            self._looked_up_at = time.monotonic()
            self._in_background(self._renew_in_background())

    def _renew_in_background(self) -> Plan[None]:
        yield from self.renew(self.timeout_seconds)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def version(self) -> str:
        """The version that was described when the network was looked up or loaded."""
        return self.info.version

    @property
    def device(self) -> str:
        return self.info.device

    @property
    def target(self) -> pb.Target:
        """Names the network, for metrics and configuration."""
        return pb.Target(network=self.name, version=self.pinned)

    @property
    def inputs(self) -> Ports:
        """In order; found by position or name."""
        return self.info.inputs

    @property
    def outputs(self) -> Ports:
        """In order; found by position or name."""
        return self.info.outputs

    @property
    def config(self) -> Mapping[str, str]:
        """The effective configuration at load. `get_config` asks the server again."""
        return self.info.config

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the model says of itself: ONNX's metadata_props, of 64 KiB at most."""
        return self.info.metadata

    @property
    def notes(self) -> tuple[str, ...]:
        """What the server did that the caller did not ask for."""
        return self.info.notes

    def pack(self, inputs: Mapping[str, Any], **options: Any) -> Packed:
        """A request in shared memory or in a message; the arrays passed in may change afterwards.

        Raises:
            InvalidArgument: an input does not fit the network.
        """
        if self.sharing is None and not any(options.values()):
            small = self.encoder.encode_small(inputs)
            if small is not None:
                return small
        return pack(self.sharing, *self.encoder.encode(inputs, **options))

    def encode(self, inputs: Mapping[str, Any], **options: Any) -> Any:
        """The same as `RequestEncoder.encode`, with the description that was looked up last."""
        return self.encoder.encode(inputs, **options)

    # -- requests --

    def start_async(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Sequence[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        performance_counts: bool = False,
    ) -> R:
        """Starts a request and returns at once; the arrays passed in may change afterwards.

        The arguments are those of `infer`. In asyncio, await the request's result, not this method.

        Raises:
            InvalidArgument: an input does not fit the network. The result raises all other errors.
        """
        self.client.check_open()  # not only with the result
        seconds = plan.seconds(timeout, self.timeout_seconds)
        packed = self.pack(
            inputs, outputs=outputs, priority=priority, performance_counts=performance_counts
        )
        return self._start(packed, seconds)

    def infer_many(
        self,
        inputs: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        *,
        in_flight: int = 32,
        outputs: Sequence[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        performance_counts: bool = False,
    ) -> M:
        """Runs the network once for each of many inputs, over one stream.

        This is much cheaper than one call for each input. Inputs are drawn when there is room for
        them: by the thread that iterates, or in asyncio by a task, so that results arrive while an
        asynchronous source waits.

        Args:
            inputs: an iterable; in asyncio also an asynchronous one.
            in_flight: how many requests may be unanswered at a time.
            timeout: the time limit of each request.

        Returns:
            An iterator over (index, outputs or error) in the order in which requests finish. A
            request that fails does not end the others. Iterating raises `Error` if the stream
            fails.
        """
        conversation = Conversation(
            self.encode,
            self.place(),
            sharing=self.sharing,
            failed=self.failed,
            in_flight=in_flight,
            outputs=outputs,
            priority=priority,
            timeout=timeout,
            performance_counts=performance_counts,
        )
        return self._many(conversation, inputs)

    def session(self, id: str | None = None) -> S:
        """A session of a network that was loaded with STATES, for a ``with`` block, or in asyncio
        an ``async with`` block.

        Args:
            id: 1 to 128 characters. Others may use the same id. The default is a random one.

        Raises:
            InvalidArgument: the network keeps no states, or the id is too long.
        """
        return self._session(id)

    def _start(self, packed: Packed, seconds: float | None) -> R:
        raise NotImplementedError

    def _many(self, conversation: Conversation, inputs: Any) -> M:
        raise NotImplementedError

    def _session(self, identifier: str | None) -> S:
        raise NotImplementedError

    def place(self) -> ConversationPlace:
        """Where a stream of requests goes."""
        return ConversationPlace(self.client)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} on {self.device}, {self.info.state}>"


AnyNetwork: TypeAlias = LoadedNetwork[Any, Any, Any]


def infer(
    network: AnyNetwork,
    inputs: Mapping[str, Any],
    *,
    outputs: Sequence[str] | None = None,
    priority: int = 0,
    timeout: float | None = None,
    performance_counts: bool = False,
    retry_when_full: bool = False,
) -> Plan[Outputs]:
    """Runs the network once.

    Args:
        inputs: name → array of the input's type, or Python numbers; a list of them for a sequence,
            None for an absent optional.
        outputs: the names of the outputs to return; all by default.
        priority: -10 to 10, higher first.
        performance_counts: measure each layer; see `Outputs.performance_counts`.
        retry_when_full: if the queue is full, wait as long as the server asks and try again,
            within the timeout.

    Raises:
        InvalidArgument: an input does not fit the network.
        ResourceExhausted: the device's queue is full.
        DeadlineExceeded: the timeout passed. A request that had not started is not computed.
        NotFound: the network is no longer loaded.
        FailedPrecondition: it is still loading, or has failed to load.
    """
    budget = Budget(network.timeout_seconds if timeout is None else timeout)
    is_plain = not (outputs or priority or performance_counts)
    is_renewed = False
    while True:
        sharing, encoder = network.sharing, network.encoder
        try:
            small = encoder.encode_small(inputs) if is_plain and sharing is None else None
            if small is not None:
                return (yield from infer_packed(small, budget, retry_when_full=retry_when_full))
            request, attachments = encoder.encode(
                inputs, outputs=outputs, priority=priority, performance_counts=performance_counts
            )
            loan = None if sharing is None else (yield from sharing.borrow(request, attachments))
            data = loan or serialize_request(request, attachments)
            found = yield from infer_packed(data, budget, retry_when_full=retry_when_full)
            if sharing is not None and loan is None:
                sharing.learn(request, found)
            return found
        except Error as error:
            if is_renewed or not network.doubts(error):
                raise
            if not (yield from network.renew(budget.left_seconds)):
                raise
            is_renewed = True


def get_metric(
    network: AnyNetwork,
    name: str,
    *,
    options: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Plan[ParameterValue]:
    """A metric of the network, with its own type.

    Raises:
        NotFound: no such metric.
    """
    return (yield from targets.get_metric(network.target, name, options, timeout))


def get_config(
    network: AnyNetwork,
    name: str,
    *,
    options: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Plan[ParameterValue]:
    """The value of the network's configuration key.

    Raises:
        NotFound: no such key.
    """
    return (yield from targets.get_config(network.target, name, options, timeout))


def set_config(
    network: AnyNetwork,
    config: Mapping[str, ConfigValue],
    *,
    timeout: float | None = None,
) -> Plan[None]:
    """Sets keys that may change while a network is loaded, all or none.

    Raises:
        NotFound: no such key.
        InvalidArgument: a key does not take its value.
    """
    yield from targets.set_config(network.target, config, timeout)


def performance_counts(
    network: AnyNetwork, *, timeout: float | None = None
) -> Plan[list[LayerProfile]]:
    """How long each layer took in the last request that asked for it."""
    reply = yield from _describe(network, timeout)
    return replies.layer_profiles(reply.performance_counts)


def layers(network: AnyNetwork, *, timeout: float | None = None) -> Plan[list[ExecutableLayer]]:
    """The graph that the device runs, with the device's own names."""
    reply = yield from _describe(network, timeout)
    return [replies.executable_layer(layer) for layer in reply.layers]


def export(network: AnyNetwork, *, timeout: float | None = None) -> Plan[bytes]:
    """The network as a blob, for `Client.import_network`.

    Raises:
        Unimplemented: the device does not export.
    """
    request = pb.ExportNetworkRequest(name=network.name, version=network.pinned)
    seconds = math.inf if timeout is None else timeout
    pieces: list[pb.ExportNetworkReply] = yield CallMethod("ExportNetwork", request, seconds)
    return b"".join(piece.chunk for piece in pieces)


def unload(network: AnyNetwork, *, timeout: float | None = None) -> Plan[None]:
    """Unloads the network: all its versions, or the one that it was looked up with. Returns when
    their requests have finished and their memory is free."""
    seconds = math.inf if timeout is None else timeout
    request = pb.UnloadNetworkRequest(name=network.name, version=network.pinned)
    yield CallMethod("UnloadNetwork", request, seconds)


def set_traffic(
    network: AnyNetwork,
    shares: Mapping[str, int],
    *,
    timeout: float | None = None,
) -> Plan[None]:
    """Has versions of the network share the requests that name none, from the next one on.

    Args:
        shares: version → per cent. The highest version that is not named gets the rest. An empty
            mapping goes back to the shares of the model repository, or to the highest version if
            the repository names none.

    Raises:
        InvalidArgument: a share is no percentage, or the sum is above 100.
        NotFound: a version is not loaded.
        FailedPrecondition: the shares leave a rest, and there is no version to get it.
    """
    if not all(isinstance(share, int) and abs(share) < 2**31 for share in shares.values()):
        raise invalid("shares", f"shares is {dict(shares)!r}; pass whole numbers, per cent")
    request = pb.SetTrafficRequest(
        network=network.name, shares={str(version): share for version, share in shares.items()}
    )
    yield CallMethod("SetTraffic", request, timeout)


def _describe(network: AnyNetwork, timeout: float | None) -> Plan[pb.GetNetworkReply]:
    reply: pb.GetNetworkReply = yield CallMethod(
        "GetNetwork", pb.GetNetworkRequest(name=network.name, version=network.pinned), timeout
    )
    return reply
