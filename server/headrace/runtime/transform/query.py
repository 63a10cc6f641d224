"""Finds the layers of a network that a device runs, by their original names.

1. The query notes the original network's names. 2. The caller has applied the same transformations
as for a load. 3. The query asks the device about each layer of the result. The verdict applies to
every original layer that this layer stands for. 4. An original layer is supported if all layers
that it became are supported, or if it became none. 5. Constants, inputs, initialisers and outputs
do no work of their own. They are added if they adjoin a supported layer, and 6. dropped if they do
not. 7. The query returns the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from headrace.runtime.errors import UnsupportedLayer
from headrace.runtime.intake import naming
from headrace.runtime.intake.provenance import origins
from headrace.runtime.network.graph import Graph
from headrace.runtime.network.network import Network
from headrace.runtime.system.interruption import wanted

Support: TypeAlias = Callable[[ir.Node], str | None]
"""None if the device runs the node, otherwise the reason why it does not."""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A part of a network and the device that runs it. `step` is the step of a pipeline that it
    is; empty if it is none."""

    device: str
    layers: tuple[str, ...]
    step: str = ""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Each layer of the network is either in `supported_layers` or in `unsupported`.

    Attributes:
        supported_layers: layer to device.
        subgraphs: the subgraphs in execution order, if the device splits networks.
        housekeeping: the inputs, initialisers and outputs of supported layers, each with its
            device.
        graph: the network as it was given, if the caller asked for it.
        typed: the network with types that only a load finds out; None if there are none.
        notes: how the network or its place differ from what the caller asked about, and why.
    """

    supported_layers: dict[str, str] = field(default_factory=dict)
    unsupported: list[UnsupportedLayer] = field(default_factory=list)
    subgraphs: list[Subgraph] = field(default_factory=list)
    housekeeping: dict[str, str] = field(default_factory=dict)
    graph: Graph | None = None
    typed: Network | None = None
    notes: tuple[str, ...] = ()


def query_network(
    original: Network, transformed: Network, support: Support, device: str
) -> QueryResult:
    """Returns what `device` runs of `original`, judged by the transformed network.

    A layer with bodies is supported if the device runs it and every layer in its bodies. The layers
    in its bodies are supported only if the layer itself is. A node that stands for no layer (for
    example preprocessing) is listed under its own name if the device does not run it.
    """
    result = QueryResult()
    reasons: dict[str, str] = {}
    for node, reason in _verdicts(transformed.model.graph, support, ""):
        names = origins(node)
        if reason and not names:
            op = UnsupportedLayer(node.name or "", node.op_type, reason, device)
            result.unsupported.append(op)
        elif reason:
            for name in names:
                reasons.setdefault(name, reason)
    nodes = list(original.nodes())
    for node in wanted(reversed(nodes)):  # a constant's readers come after it
        name = node.name or ""
        if name not in reasons and _is_constant(node) and not _is_read(node, reasons):
            reasons[name] = "a constant that only unsupported layers read"
    for node in nodes:
        name = node.name or ""
        if name in reasons:
            layer = UnsupportedLayer(name, node.op_type, reasons[name], device)
            result.unsupported.append(layer)
        else:
            result.supported_layers[name] = device
    for name in _housekeeping(original.model.graph, result.supported_layers):
        result.housekeeping[name] = device
    return result


def _verdicts(
    graph: ir.Graph, support: Support, outside: str
) -> Iterator[tuple[ir.Node, str | None]]:
    """Each node, with the reason why the device does not run it. `outside` is the reason why the
    device runs no node of this graph."""
    for node in wanted(graph):
        reason = support(node)
        inside: list[tuple[ir.Node, str | None]] = []
        for _, body in naming.bodies(node):
            inside += _verdicts(body, support, "")
        if reason is None:
            unsupported = next(((inner, why) for inner, why in inside if why), None)
            if unsupported is not None:
                inner, why = unsupported
                reason = f"its body holds {inner.name} ({inner.op_type}): {why}"
        if reason is not None:
            around = f"inside {node.name} ({node.op_type}), which is not run"
            inside = [(layer, why or (around if origins(layer) else None)) for layer, why in inside]
        yield node, reason or outside or None
        yield from inside


def _is_constant(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "Constant"


def _is_read(node: ir.Node, reasons: dict[str, str]) -> bool:
    """Whether a supported layer, or the network's or body's caller, reads the constant. A constant
    that nobody reads does no harm."""
    value = node.outputs[0]
    readers = [reader.name for reader, _ in value.uses()]
    return value.is_graph_output() or not readers or any(name not in reasons for name in readers)


def _housekeeping(graph: ir.Graph, supported: dict[str, str]) -> Iterator[str]:
    for value in dict.fromkeys((*graph.inputs, *graph.initializers.values())):
        if any(reader.name in supported for reader, _ in value.uses()):
            yield value.name or ""
    for value in graph.outputs:
        producer = value.producer()
        if producer is not None and producer.name in supported:
            yield value.name or ""
