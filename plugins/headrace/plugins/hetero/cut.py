"""Cutting a network into networks that together compute the same.

A tensor that one part makes and another reads becomes an output of the one and an input of the
other, under its own name and with the type and shape that inference found. Three things are never
cut. Initialisers belong to every part that reads them, and share their data. A Constant is repeated
in every part that reads it, for devices fold constants and would not fold an input. A layer with
bodies stays whole, and what its bodies read from around it becomes an input of its part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from headrace.plugins.hetero.partition import Part
from headrace.runtime import naming
from headrace.runtime.inlining import calls
from headrace.runtime.network import Network


@dataclass(frozen=True, slots=True)
class Piece:
    """A part as a network of its own.

    Attributes:
        affinity: the device that it is for.
        network: with the layers' own names; its ports carry the names of the tensors.
        nodes: of the network that was cut; of its constants only those that are outputs.
    """

    affinity: str
    network: Network
    nodes: tuple[ir.Node, ...]


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor between two parts; `source` and `target` are their numbers."""

    value: ir.Value
    source: int
    target: int


def cut(network: Network, parts: Sequence[Part]) -> tuple[Piece, ...]:
    """The networks of `parts`, in their order.

    A part whose results nobody reads has none. Takes time linear in the size of the network.

    Args:
        network: with types inferred; it is read and stays as it is.
        parts: their nodes are positions in the network's graph. Every node but constants and those
            that nobody reads is in exactly one.

    Raises:
        ValueError: a part reads a node that is in none.
    """
    return _Cut(network, parts).pieces()


def crossings(network: Network, parts: Sequence[Part]) -> Iterator[Crossing]:
    """Every tensor that passes from one part to another, once for each part that reads it."""
    return _Cut(network, parts).crossings()


def is_constant(node: ir.Node) -> bool:
    """Whether the node makes a tensor from nothing, so that it can be anywhere."""
    return node.op_type == "Constant" and node.domain == ""


class _Cut:
    def __init__(self, network: Network, parts: Sequence[Part]) -> None:
        self._model = network.model
        self._parts = parts
        nodes = list(network.model.graph)
        self._nodes = [[nodes[index] for index in part.nodes] for part in parts]
        self._places = {
            node: number for number, members in enumerate(self._nodes) for node in members
        }
        self._reads = [list(dict.fromkeys(_outer_reads(members))) for members in self._nodes]

    def pieces(self) -> tuple[Piece, ...]:
        crossing = {each.value for each in self.crossings()}
        pieces = (self._piece(number, crossing) for number in range(len(self._parts)))
        return tuple(piece for piece in pieces if piece is not None)

    def crossings(self) -> Iterator[Crossing]:
        for target, reads in enumerate(self._reads):
            for value in reads:
                producer = value.producer()
                if producer is None or is_constant(producer):
                    continue
                source = self._places.get(producer)
                if source is None:
                    raise ValueError(f"{producer.name} is in no part, but is read by part {target}")
                if source != target:
                    yield Crossing(value, source, target)

    def _piece(self, number: int, crossing: set[ir.Value]) -> Piece | None:
        reads = self._reads[number]
        ours = [
            node
            for node in self._nodes[number]
            if not is_constant(node) or node.outputs[0].is_graph_output()
        ]
        outputs = [
            value
            for node in ours
            for value in node.outputs
            if value in crossing or value.is_graph_output()
        ]
        if not outputs:
            return None
        own = set(ours)
        constants = [
            node
            for value in reads
            if (node := value.producer()) is not None and is_constant(node) and node not in own
        ]
        initializers = [value for value in reads if value.is_initializer()]
        inputs = [value for value in reads if self._enters(value, number)]
        graph = self._model.graph
        view = ir.GraphView(
            inputs,
            outputs,
            nodes=[*constants, *ours],
            initializers=initializers,
            opset_imports=graph.opset_imports.copy(),
            name=f"{graph.name or 'network'}.{number}",
        )
        model = ir.Model(
            view.clone(), ir_version=self._model.ir_version, functions=self._functions(ours)
        )
        return Piece(self._parts[number].affinity, Network(model), tuple(ours))

    def _enters(self, value: ir.Value, number: int) -> bool:
        """Whether the part takes the value as an input. An initialiser is one too if the network
        declares it so, which its IR version may demand."""
        producer = value.producer()
        if producer is None:
            return value.is_graph_input() or not value.is_initializer()
        return not is_constant(producer) and self._places[producer] != number

    def _functions(self, nodes: Iterable[ir.Node]) -> list[ir.Function]:
        """Those that the nodes call, and those that they call in turn, in the model's order."""
        known = self._model.functions
        wanted = {node.op_identifier() for node in _walk(nodes)} & known.keys()
        fresh = wanted
        while fresh:
            called = {key for each in fresh for key in calls(known[each])}
            fresh = (called & known.keys()) - wanted
            wanted |= fresh
        return [function.clone() for key, function in known.items() if key in wanted]


def _walk(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    for node in nodes:
        yield node
        for _, body in naming.bodies(node):
            yield from naming.walk(body)


def _outer_reads(nodes: Iterable[ir.Node]) -> Iterator[ir.Value]:
    """What `nodes` and their bodies read and do not hold themselves, repeats included."""
    for node in nodes:
        if not node.attributes:
            yield from (value for value in node.inputs if value is not None)
            continue
        inner: set[ir.Value] = set()
        for each in _walk([node]):
            yield from (value for value in each.inputs if value is not None and value not in inner)
            for _, body in naming.bodies(each):
                inner.update(body.inputs, body.initializers.values())
            if each is not node:
                inner.update(each.outputs)
