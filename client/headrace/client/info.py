"""What the server says of networks and devices, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, SupportsIndex, TypeAlias, overload

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import dtypes

Shape: TypeAlias = "tuple[int | str | None, ...]"


@dataclass(frozen=True, slots=True)
class Port:
    """An input or an output of a network.

    Attributes:
        dtype: NumPy's name of the elements' type, as ``float32``; ``string`` for text.
        shape: for each axis a number if its size is fixed, its symbol if it has one, otherwise
            None. The whole shape is None if the rank is unknown.
        kind: whether one tensor or a list of them is expected.
        optional: whether it may be left out, or be None.
        layout: as ``NHWC``, where known.
    """

    name: str
    dtype: str
    shape: Shape | None
    kind: Literal["tensor", "sequence"] = "tensor"
    optional: bool = False
    layout: str = ""


class Ports(tuple[Port, ...]):
    """A network's inputs or outputs in order; found by position or by name."""

    __slots__ = ()

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> Port: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Port, ...]: ...
    def __getitem__(self, key: SupportsIndex | str | slice) -> Port | tuple[Port, ...]:
        if not isinstance(key, str):
            return super().__getitem__(key)
        for port in self:
            if port.name == key:
                return port
        raise KeyError(key)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(port.name for port in self)


@dataclass(frozen=True, slots=True)
class NetworkInfo:
    """A version of a loaded network.

    Attributes:
        version: a number, as text; "1" by default.
        generation: grows when a network of this name is replaced.
        state: LOADING, READY, DRAINING or FAILED, then `reason` says why.
        config: the effective configuration.
        from_cache: whether compilation was skipped. On a virtual device, whether it was skipped
            for at least one of its devices.
        notes: what the server did that the caller did not ask for.
        execution_devices: the physical devices that run it.
        origin: ``client``, ``repository`` or ``import``.
        states: inputs that the server keeps between the requests of a session, each with the
            output that gives its next value. Neither is among `inputs` and `outputs`.
    """

    name: str
    device: str
    generation: int
    state: str
    reason: str
    inputs: Ports
    outputs: Ports
    config: Mapping[str, str]
    load_seconds: float
    from_cache: bool
    notes: tuple[str, ...]
    execution_devices: tuple[str, ...]
    origin: str
    states: Mapping[str, str]
    version: str = "1"


@dataclass(frozen=True, slots=True)
class RepositoryVersion:
    """A version of a network that the model repository holds or that the server has loaded.

    Attributes:
        version: empty if the network has a fault, and no version.
        state: as `NetworkInfo.state`; empty if it is not loaded.
        reason: why it is not loaded. If it is loaded, why its newest files are not.
        share: its share of the requests that name no version, in per cent.
    """

    name: str
    version: str
    state: str
    reason: str
    share: int


@dataclass(frozen=True, slots=True)
class ExecutableLayer:
    """A layer of the graph that the device runs, and the layers of the network it came from."""

    name: str
    op_type: str
    domain: str
    device: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    original_layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """How long one layer took in one request; `execution_type` is the kernel's name."""

    layer: str
    op_type: str
    device: str
    execution_type: str
    seconds: float
    original_layers: tuple[str, ...]
    subgraph: int


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the server; `state` is UP, DOWN or RESTARTING, `reason` why it is not up."""

    name: str
    state: str
    reason: str
    full_name: str
    device_ids: tuple[str, ...]
    backend_version: str


class UnsupportedLayer(NamedTuple):
    """A layer that would not run, and why."""

    layer: str
    op_type: str
    reason: str


class Subgraph(NamedTuple):
    """Layers that run together on one device."""

    device: str
    layers: list[str]


@dataclass(frozen=True, slots=True)
class Graph:
    """A network as it was given, without weights.

    Attributes:
        layers: in order, without those in bodies. Tensors that a body reads from outside are among
            the inputs of the layer that holds the body.
        tensors: the outputs of layers, with types and shapes as far as the server knows them.
    """

    layers: tuple[ExecutableLayer, ...]
    inputs: Ports
    outputs: Ports
    tensors: Ports


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Which layers a device would run.

    Attributes:
        supported_layers: layer → device, in the order of names.
        unsupported: all other layers, with reasons.
        subgraphs: those of a network that is split over devices, in execution order.
        graph: the network that was asked about, if you asked for its graph.
    """

    supported_layers: dict[str, str]
    unsupported: list[UnsupportedLayer]
    subgraphs: list[Subgraph]
    graph: Graph | None = None


# ---- from the protocol's messages ----


def port(message: pb.PortInfo) -> Port:
    shape = (
        tuple(size.size if size.size >= 0 else size.symbol or None for size in message.shape)
        if message.has_rank
        else None
    )
    is_sequence = message.kind == pb.ValueKind.VALUE_KIND_SEQUENCE
    return Port(
        name=message.name,
        dtype=dtypes.name_of(message.dtype) if message.dtype in dtypes.NUMPY_TYPES else "unknown",
        shape=shape,
        kind="sequence" if is_sequence else "tensor",
        optional=message.optional,
        layout=message.layout,
    )


def network_info(message: pb.NetworkInfo) -> NetworkInfo:
    state = _enum_name(pb.NetworkState, message.state)
    return NetworkInfo(
        name=message.name,
        device=message.device,
        generation=message.generation,
        state=state.removeprefix("NETWORK_"),
        reason=message.reason,
        inputs=Ports(map(port, message.inputs)),
        outputs=Ports(map(port, message.outputs)),
        config=dict(message.config),
        load_seconds=message.load_seconds,
        from_cache=message.from_cache,
        notes=tuple(message.notes),
        states=dict(message.states),
        execution_devices=tuple(message.execution_devices),
        origin=message.origin,
        version=message.version or "1",  # an older server does not send it
    )


def repository_version(message: pb.RepositoryVersion) -> RepositoryVersion:
    state = _enum_name(pb.NetworkState, message.state).removeprefix("NETWORK_")
    return RepositoryVersion(
        name=message.name,
        version=message.version,
        state="" if state == "STATE_UNSPECIFIED" else state,
        reason=message.reason,
        share=message.share,
    )


def executable_layer(message: pb.ExecutableLayer) -> ExecutableLayer:
    return ExecutableLayer(
        name=message.name,
        op_type=message.op_type,
        domain=message.domain,
        device=message.device,
        inputs=tuple(message.inputs),
        outputs=tuple(message.outputs),
        original_layers=tuple(message.original_layers),
    )


def layer_profiles(messages: Iterable[pb.LayerProfile]) -> list[LayerProfile]:
    return [
        LayerProfile(
            layer=message.layer,
            op_type=message.op_type,
            device=message.device,
            execution_type=message.execution_type,
            seconds=message.seconds,
            original_layers=tuple(message.original_layers),
            subgraph=message.subgraph,
        )
        for message in messages
    ]


def device(message: pb.DeviceInfo) -> Device:
    return Device(
        name=message.name,
        state=_enum_name(pb.DeviceState, message.state),
        reason=message.reason,
        full_name=message.full_name,
        device_ids=tuple(message.device_ids),
        backend_version=message.backend_version,
    )


def query_result(message: pb.QueryNetworkReply) -> QueryResult:
    return QueryResult(
        supported_layers=dict(sorted(message.supported_layers.items())),
        unsupported=[
            UnsupportedLayer(
                layer.layer,
                layer.op_type,
                f"{layer.device}: {layer.reason}" if layer.device else layer.reason,
            )
            for layer in message.unsupported
        ],
        subgraphs=[Subgraph(part.device, list(part.layers)) for part in message.subgraphs],
        graph=_graph(message.graph) if message.HasField("graph") else None,
    )


def _graph(message: pb.Graph) -> Graph:
    return Graph(
        layers=tuple(map(executable_layer, message.layers)),
        inputs=Ports(map(port, message.inputs)),
        outputs=Ports(map(port, message.outputs)),
        tensors=Ports(map(port, message.tensors)),
    )


def _enum_name(enum: type[pb.NetworkState] | type[pb.DeviceState], number: int) -> str:
    """The state's name, or its number if only a newer server knows it."""
    return enum.Name(number) if number in enum.values() else str(number)
