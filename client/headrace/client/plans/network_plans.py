"""The plans behind the methods of `Network`. All raise the classes of `headrace.client.errors`.

`timeout` is in seconds and covers the whole method. None means the client's own timeout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headrace.client import replies
from headrace.client.conversation import Conversation
from headrace.client.errors import invalid
from headrace.client.info import ExecutableLayer, LayerProfile, NetworkInfo, Ports
from headrace.client.inputs import RequestEncoder
from headrace.client.options import ConfigValue
from headrace.client.outputs import Outputs
from headrace.client.plans import targets
from headrace.client.plans.infer_plans import infer_encoded, infer_lent, pack
from headrace.client.plans.plan import Budget, Call, Plan
from headrace.client.shared_memory.loan import Packed
from headrace.client.shared_memory.pool import Pool
from headrace.client.shared_memory.sharing import Sharing
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.message import serialize
from headrace.wire.parameters import ParameterValue


class _Client(Protocol):
    timeout_seconds: float
    pool: Pool | None

    def run_in_background(self, steps: Plan[None]) -> None: ...


class LoadedNetwork:
    """The part that both clients' networks share: the server's description of the network.

    Attributes:
        pinned: the version that all requests go to; empty if they go to the one that serves, or to
            those that share the requests.
    """

    def __init__(
        self,
        network: NetworkInfo,
        client: _Client,
        pinned: str,
    ) -> None:
        self.info = network
        self.timeout_seconds = client.timeout_seconds
        self.pinned = pinned
        self.encoder = RequestEncoder(network, pinned)
        pool = client.pool
        self.sharing = (
            None if pool is None else Sharing(pool, network.outputs, client.run_in_background)
        )

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

    def conversation(self, **options: Any) -> Conversation:
        """The requests of one stream. The options are those of `Conversation`."""
        return Conversation(self.encoder.encode, sharing=self.sharing, **options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} on {self.device}, {self.info.state}>"


def infer(
    network: LoadedNetwork,
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
        FailedPrecondition: it was still loading when it was looked up; look it up again.
    """
    seconds = network.timeout_seconds if timeout is None else timeout
    sharing, encoder = network.sharing, network.encoder
    if sharing is None and not (outputs or priority or performance_counts):
        small = encoder.encode_small(inputs)
        if small is not None:
            return (yield from infer_encoded(small, seconds, retry_when_full=retry_when_full))
    request, attachments = encoder.encode(
        inputs, outputs=outputs, priority=priority, performance_counts=performance_counts
    )
    if sharing is not None:
        budget = Budget(seconds)
        loan = yield from sharing.borrow(request, attachments)
        seconds = budget.left_seconds
        if loan is not None:
            return (yield from infer_lent(loan, seconds, retry_when_full=retry_when_full))
    data = serialize(request, attachments)
    found = yield from infer_encoded(data, seconds, retry_when_full=retry_when_full)
    if sharing is not None:
        sharing.learn(request, found)
    return found


def get_metric(
    network: LoadedNetwork,
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
    network: LoadedNetwork,
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
    network: LoadedNetwork, config: Mapping[str, ConfigValue], *, timeout: float | None = None
) -> Plan[None]:
    """Sets keys that may change while a network is loaded, all or none.

    Raises:
        NotFound: no such key.
        InvalidArgument: a key does not take its value.
    """
    yield from targets.set_config(network.target, config, timeout)


def performance_counts(
    network: LoadedNetwork, *, timeout: float | None = None
) -> Plan[list[LayerProfile]]:
    """How long each layer took in the last request that asked for it."""
    reply = yield from _describe(network, timeout)
    return replies.layer_profiles(reply.performance_counts)


def layers(network: LoadedNetwork, *, timeout: float | None = None) -> Plan[list[ExecutableLayer]]:
    """The graph that the device runs, with the device's own names."""
    reply = yield from _describe(network, timeout)
    return [replies.executable_layer(layer) for layer in reply.layers]


def export(network: LoadedNetwork, *, timeout: float | None = None) -> Plan[bytes]:
    """The network as a blob, for `Client.import_network`.

    Raises:
        Unimplemented: the device does not export.
    """
    request = pb.ExportNetworkRequest(name=network.name, version=network.pinned)
    seconds = math.inf if timeout is None else timeout
    pieces: list[pb.ExportNetworkReply] = yield Call("ExportNetwork", request, seconds)
    return b"".join(piece.chunk for piece in pieces)


def unload(network: LoadedNetwork, *, timeout: float | None = None) -> Plan[None]:
    """Unloads the network: all its versions, or the one that it was looked up with. Returns when
    their requests have finished and their memory is free."""
    seconds = math.inf if timeout is None else timeout
    request = pb.UnloadNetworkRequest(name=network.name, version=network.pinned)
    yield Call("UnloadNetwork", request, seconds)


def set_traffic(
    network: LoadedNetwork, shares: Mapping[str, int], *, timeout: float | None = None
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
    yield Call("SetTraffic", request, timeout)


def _describe(network: LoadedNetwork, timeout: float | None) -> Plan[pb.GetNetworkReply]:
    reply: pb.GetNetworkReply = yield Call(
        "GetNetwork", pb.GetNetworkRequest(name=network.name, version=network.pinned), timeout
    )
    return reply
