"""What the server says of networks and devices, as frozen dataclasses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, SupportsIndex, TypeAlias, overload

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
        classes: what the columns of a classifier's scores stand for, where known.
    """

    name: str
    dtype: str
    shape: Shape | None
    kind: Literal["tensor", "sequence"] = "tensor"
    optional: bool = False
    layout: str = ""
    classes: tuple[str, ...] | tuple[int, ...] = ()


def size_bytes(port: Port) -> int | None:
    """The bytes of a tensor in memory; None if its type, or a size in its shape, is not fixed."""
    shape = port.shape
    if port.kind != "tensor" or port.dtype in ("string", "unknown") or shape is None:
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) < len(shape):
        return None
    return math.prod(sizes) * dtypes.numpy_type(dtypes.parse_name(port.dtype)).itemsize


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
        state: LOADING, READY, DRAINING or FAILED, then `reason` says why. KNOWN or EVICTED if its
            next request loads it.
        config: the effective configuration.
        from_cache: whether compilation was skipped. On a virtual device, whether it was skipped
            for at least one of its devices.
        notes: what the server did that the caller did not ask for, and last, what each stage of the
            load took.
        execution_devices: the physical devices that run it.
        origin: ``client``, ``repository`` or ``import``.
        states: inputs that the server keeps between the requests of a session, each with the
            output that gives its next value. Neither is among `inputs` and `outputs`.
        replicas: the replicas of a cluster that are to have it. Empty if all have it, and on a
            server alone.
        memory_bytes: what it takes in memory, as its last load has shown; 0 if it counts for no
            memory budget.
        idle_seconds: for how long nobody has used it; None before its first load, and for who may
            not manage it.
        metadata: what the model says of itself, ONNX's metadata_props, as far as they fit into
            64 KiB together. Empty if it comes from a list of networks.
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
    replicas: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int = 0
    idle_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RepositoryVersion:
    """A version of a network that the model repository holds or that the server has loaded.

    Attributes:
        version: empty if the network has a fault, and no version.
        state: as `NetworkInfo.state`; empty if it is not loaded.
        reason: why it is not loaded. If it is loaded, why its newest files are not.
        share: its share of the requests that name no version, in per cent.
        memory_bytes: as `NetworkInfo.memory_bytes`.
        idle_seconds: as `NetworkInfo.idle_seconds`.
    """

    name: str
    version: str
    state: str
    reason: str
    share: int
    memory_bytes: int = 0
    idle_seconds: float | None = None


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
    """Layers that run together on one device. `step` is the step of a pipeline that they are;
    empty if they are none."""

    device: str
    layers: list[str]
    step: str = ""


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
        notes: why a layer is not where the list of devices would have it, and other things that a
            load would note before it compiles.
    """

    supported_layers: dict[str, str]
    unsupported: list[UnsupportedLayer]
    subgraphs: list[Subgraph]
    graph: Graph | None = None
    notes: tuple[str, ...] = ()
