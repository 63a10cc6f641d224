"""Converts messages to the runtime's types and back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import onnx_ir as ir

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.execution.job import LayerProfile
from headrace.runtime.loading.registry import NetworkEntry, NetworkState
from headrace.runtime.network.graph import Graph
from headrace.runtime.network.network import Layer, Port
from headrace.runtime.system.load_stages import told
from headrace.runtime.transform.options import InputOptions, NetworkOptions, OutputOptions
from headrace.runtime.transform.query import QueryResult
from headrace.server.repository.repository import RepositoryVersion
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.framing import MAX_FIELDS

_STATES = {
    NetworkState.KNOWN: pb.KNOWN,
    NetworkState.EVICTED: pb.EVICTED,
    NetworkState.LOADING: pb.LOADING,
    NetworkState.READY: pb.READY,
    NetworkState.DRAINING: pb.DRAINING,
    NetworkState.FAILED: pb.NETWORK_FAILED,
}


def network_options(request: pb.LoadNetworkRequest | pb.QueryNetworkRequest) -> NetworkOptions:
    """
    Raises:
        InvalidArgument: an option is invalid. The error names it.
    """
    for field, options in (("inputs", request.inputs), ("outputs", request.outputs)):
        if len(options) > MAX_FIELDS:
            raise InvalidArgument(
                f"there are options for {len(options)}, but a request holds at most {MAX_FIELDS}; "
                "give options only where the defaults do not fit",
                field=field,
            )
    return NetworkOptions(
        inputs={
            name: InputOptions(
                dtype=_dtype(option.dtype, f"inputs[{name!r}].dtype"),
                layout=option.layout,
                network_layout=option.network_layout,
                resize=option.resize,
                mean=_finite(option.mean, f"inputs[{name!r}].mean"),
                scale=_finite(option.scale, f"inputs[{name!r}].scale"),
            )
            for name, option in request.inputs.items()
        },
        outputs={
            name: OutputOptions(
                dtype=_dtype(output.dtype, f"outputs[{name!r}].dtype"),
                layout=output.layout,
                network_layout=output.network_layout,
            )
            for name, output in request.outputs.items()
        },
        affinities=dict(request.affinities),
    )


_METADATA_BYTES: Final = 64 << 10
"""The most bytes of a model's metadata that its description has."""


def network_info(entry: NetworkEntry, name: str, *, listed: bool = False) -> pb.NetworkInfo:
    """The message that describes a network, in any state.

    Args:
        name: the name under which the caller sees the network.
        listed: whether it is one of many, which leave out what may be long.
    """
    info = pb.NetworkInfo(
        name=name,
        version=entry.key.version,
        device=entry.device,
        generation=entry.key.generation,
        state=_STATES[entry.state],
        reason=entry.reason,
        load_seconds=entry.load_seconds,
        memory_bytes=entry.memory_bytes,
    )
    executable, record = entry.executable, entry.record
    if record is not None:
        info.origin = record.request.origin
        if record.network is not None and not listed:
            info.metadata.update(record.network.metadata(_METADATA_BYTES))
    if executable is not None:
        info.inputs.extend(_port(port) for port in executable.inputs)
        info.inputs.extend(_port(replace(port, optional=True)) for port in executable.defaults)
        info.outputs.extend(_port(port) for port in executable.outputs)
        info.states.update(executable.states)
        info.config.update(executable.config.shown_strings())
        info.from_cache = executable.loaded_from_cache
        info.notes.extend(executable.notes)
        if entry.stage_seconds:
            info.notes.append(f"loaded by stage: {told(entry.stage_seconds)}")
        devices = executable.get_metric("EXECUTION_DEVICES")
        if isinstance(devices, list):
            info.execution_devices.extend(devices)
    return info


def repository_version(row: RepositoryVersion) -> pb.RepositoryVersion:
    state = pb.NETWORK_STATE_UNSPECIFIED if row.state is None else _STATES[row.state]
    return pb.RepositoryVersion(
        name=row.name,
        version=row.version,
        state=state,
        reason=row.reason,
        share=row.share,
        memory_bytes=row.memory_bytes,
        idle_seconds=row.idle_seconds,
    )


def query_reply(result: QueryResult) -> pb.QueryNetworkReply:
    return pb.QueryNetworkReply(
        supported_layers=result.supported_layers,
        unsupported=[
            pb.UnsupportedLayer(
                layer=layer.layer, op_type=layer.op_type, reason=layer.reason, device=layer.device
            )
            for layer in result.unsupported
        ],
        subgraphs=[
            pb.Subgraph(device=subgraph.device, layers=subgraph.layers, step=subgraph.step)
            for subgraph in result.subgraphs
        ],
        graph=None if result.graph is None else _graph(result.graph),
        notes=result.notes,
    )


def executable_layers(layers: Iterable[Layer]) -> list[pb.ExecutableLayer]:
    return [
        pb.ExecutableLayer(
            name=layer.name,
            op_type=layer.op_type,
            domain=layer.domain,
            device=layer.device,
            inputs=layer.inputs,
            outputs=layer.outputs,
            original_layers=layer.origins,
        )
        for layer in layers
    ]


def layer_profiles(layers: Iterable[LayerProfile]) -> list[pb.LayerProfile]:
    return [
        pb.LayerProfile(
            layer=layer.layer,
            op_type=layer.op_type,
            device=layer.device,
            execution_type=layer.execution_type,
            seconds=layer.seconds,
            original_layers=layer.origins,
            subgraph=layer.subgraph,
        )
        for layer in layers
    ]


def _graph(graph: Graph) -> pb.Graph:
    return pb.Graph(
        layers=executable_layers(graph.layers),
        inputs=map(_port, graph.inputs),
        outputs=map(_port, graph.outputs),
        tensors=map(_port, graph.tensors),
    )


def _port(port: Port) -> pb.PortInfo:
    return pb.PortInfo(
        name=port.name,
        dtype=int(port.dtype),  # type: ignore[arg-type]
        has_rank=port.shape is not None,
        shape=[_dimension(size) for size in port.shape or ()],
        kind=pb.VALUE_KIND_SEQUENCE if port.kind == "sequence" else pb.VALUE_KIND_TENSOR,
        optional=port.optional,
        layout=port.layout,
        class_names=[label for label in port.classes if isinstance(label, str)],
        class_numbers=[label for label in port.classes if isinstance(label, int)],
    )


def _dimension(size: int | str | None) -> pb.Dimension:
    if isinstance(size, int):
        return pb.Dimension(size=size)
    return pb.Dimension(size=-1, symbol=size or "")


def _dtype(number: int, field: str) -> ir.DataType | None:
    if not number:
        return None
    try:
        return ir.DataType(number)
    except ValueError:
        raise InvalidArgument(f"{number} is not a data type", field=field) from None


def _finite(values: Any, field: str) -> tuple[float, ...]:
    if not all(math.isfinite(value) for value in values):
        raise InvalidArgument("every value has to be a finite number", field=field)
    return tuple(values)
