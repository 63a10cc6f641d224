"""The graph of a network for drawing: its layers and the tensors between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import onnx_ir as ir

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.intake import naming
from headrace.runtime.network.network import Layer, Network, Port, port_of
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.system.interruption import wanted

MAX_CHARACTERS: Final = 64 * 2**20
"""The limit for all names in a graph. 100,000 layers with names of a hundred characters use half of
it."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A network as it was given, without weights.

    Attributes:
        layers: the nodes in order, without the nodes of bodies. The outer values that a body reads
            are among the inputs of the layer that has the body.
        tensors: the results of the layers, with types and shapes as far as ONNX can infer them.
    """

    layers: tuple[Layer, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    tensors: tuple[Port, ...]


class RunningSubgraph(NamedTuple):
    """A part of a loaded network that is split over devices, or a step of a pipeline.

    Attributes:
        number: from 1, in execution order.
        device: as the metrics of subgraphs name it.
        layers: the names of its layers; of a step, what it runs.
        reads: how many tensors it reads from each earlier subgraph, by number. 0 stands for the
            request.
        step: the step's name; empty if it is none.
    """

    number: int
    device: str
    layers: tuple[str, ...]
    reads: Mapping[int, int]
    step: str = ""


class RunningShape(NamedTuple):
    """Requests of one tuple of input shapes to a loaded network, if its device tells these apart.

    Attributes:
        shape: as ``1x3x224x224, 1``.
        device: what runs them.
        reason: why.
        memory_bytes: what the device has made for them takes so much.
    """

    shape: str
    device: str
    reason: str
    memory_bytes: int


def graph_of(network: Network, devices: Mapping[str, str]) -> Graph:
    """The graph of `network`.

    Args:
        devices: layer to the device that it is marked with. Layers may be missing.

    Raises:
        InvalidArgument: the graph's names have more than `MAX_CHARACTERS`.
    """
    model = network.clone().model
    infer_types(model)
    inner = model.graph
    outer = {*inner.inputs, *(value for node in inner for value in node.outputs)}
    layers, tensors, characters = [], [], 0
    for node in wanted(inner):
        layer = _layer(node, outer, devices)
        made = [port_of(value) for value in node.outputs if value.name]
        names = (layer.name, *layer.inputs, *layer.outputs, *layer.outputs)  # again as tensors
        characters += sum(map(len, names))
        if characters > MAX_CHARACTERS:
            raise InvalidArgument(
                f"the names in the network's graph have more than the {MAX_CHARACTERS} characters "
                "that an answer may have; query without the graph",
                field="graph",
            )
        layers.append(layer)
        tensors += made
    return Graph(tuple(layers), network.inputs, network.outputs, tuple(tensors))


def _layer(node: ir.Node, outer: set[ir.Value], devices: Mapping[str, str]) -> Layer:
    name = node.name or ""
    read = ["" if value is None else value.name or "" for value in node.inputs]
    captured = dict.fromkeys(value.name or "" for value in _captured(node, outer))
    return Layer(
        name=name,
        op_type=node.op_type,
        domain=node.domain,
        device=devices.get(name, ""),
        inputs=(*read, *(each for each in captured if each not in read)),
        outputs=tuple(value.name or "" for value in node.outputs),
    )


def _captured(node: ir.Node, outer: set[ir.Value]) -> Iterator[ir.Value]:
    """The values that the bodies of `node` read from the graph around it."""
    for _, body in naming.bodies(node):
        read = [value for inner in naming.walk(body) for value in inner.inputs]
        yield from (value for value in (*read, *body.outputs) if value in outer)
