"""What the server says in the protocol's messages, as the dataclasses of `headrace.client.info`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

from headrace.client.errors import bad_reply
from headrace.client.info import (
    Device,
    ExecutableLayer,
    Graph,
    LayerProfile,
    NetworkInfo,
    Port,
    Ports,
    QueryResult,
    RepositoryVersion,
    Subgraph,
    UnsupportedLayer,
)
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import dtypes

T = TypeVar("T")


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
        classes=tuple(message.class_names) or tuple(message.class_numbers),
    )


def network_info(message: pb.NetworkInfo) -> NetworkInfo:
    return _copied(
        NetworkInfo,
        message,
        state=_enum_name(pb.NetworkState, message.state).removeprefix("NETWORK_"),
        inputs=Ports(map(port, message.inputs)),
        outputs=Ports(map(port, message.outputs)),
        config=dict(message.config),
        states=dict(message.states),
        version=message.version or "1",  # an older server does not send it
        metadata=dict(message.metadata),
        idle_seconds=_idle_seconds(message),
    )


def repository_version(message: pb.RepositoryVersion) -> RepositoryVersion:
    state = _enum_name(pb.NetworkState, message.state).removeprefix("NETWORK_")
    state = "" if state == "STATE_UNSPECIFIED" else state
    return _copied(RepositoryVersion, message, state=state, idle_seconds=_idle_seconds(message))


def _idle_seconds(message: pb.NetworkInfo | pb.RepositoryVersion) -> float | None:
    return message.idle_seconds if message.HasField("idle_seconds") else None


def executable_layer(message: pb.ExecutableLayer) -> ExecutableLayer:
    return _copied(ExecutableLayer, message)


def layer_profiles(messages: Iterable[pb.LayerProfile]) -> list[LayerProfile]:
    return [_copied(LayerProfile, message) for message in messages]


def device(message: pb.DeviceInfo) -> Device:
    return _copied(Device, message, state=_enum_name(pb.DeviceState, message.state))


def _copied(kind: type[T], message: Any, **others: Any) -> T:
    """A dataclass with the fields of a message that have the same names, and with `others`."""
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name not in others:
            value = getattr(message, each.name)
            others[each.name] = value if isinstance(value, str | int | float) else tuple(value)
    return kind(**others)


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
        subgraphs=[
            Subgraph(part.device, list(part.layers), part.step) for part in message.subgraphs
        ],
        graph=_graph(message.graph) if message.HasField("graph") else None,
        notes=tuple(message.notes),
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


def status(message: pb.GetStatusReply) -> dict[str, Any]:
    try:
        found = json.loads(message.document)
    except ValueError as error:
        raise bad_reply(f"the status is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise bad_reply("the status is not a JSON object")
    return found
