"""Cuts a network into networks that together compute the same.

A tensor that one part makes and another reads becomes an output of the first and an input of the
second. It keeps its name, and has the type and shape that inference found. Three things are never
cut. Initialisers belong to every part that reads them, and share their data. A Constant is repeated
in every part that reads it, because devices fold constants but not inputs. A layer with bodies
stays whole. The outer tensors that its bodies read become inputs of its part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from headrace.plugins.hetero.planning.partition import Part
from headrace.runtime.intake import naming
from headrace.runtime.intake.inlining import calls
from headrace.runtime.network.network import Network
from headrace.runtime.system.interruption import wanted


@dataclass(frozen=True, slots=True)
class Piece:
    """A part as a network of its own.

    Attributes:
        affinity: the device that it is for.
        network: with the layers' own names; its ports have the names of the tensors. It is the one
            that was cut if the part is all of it.
        layers: the names of its nodes in the graph that was cut. They include only constants that
            are outputs.
    """

    affinity: str
    network: Network
    layers: tuple[str, ...]


def cut(network: Network, parts: Iterable[Part]) -> tuple[Piece, ...]:
    """The networks of `parts`, in their order. A part whose results are not read has no network.

    Args:
        network: as for `Cutter`.
        parts: each node is in one of them, except constants, which can be in any part, and nodes
            whose results are not read.
    """
    cutter = Cutter(network)
    pieces = (cutter.piece(part) for part in parts)
    return tuple(piece for piece in pieces if piece is not None)


def is_constant(node: ir.Node) -> bool:
    """Whether the node makes a tensor without inputs, so that it can be in any part."""
    return node.op_type == "Constant" and node.domain == ""


def walk(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """The nodes, each followed by the nodes in its bodies."""
    for node in wanted(nodes):
        yield node
        for _, body in naming.bodies(node):
            yield from naming.walk(body)


def outer_reads(nodes: Iterable[ir.Node]) -> Iterator[ir.Value]:
    """The values that nodes and their bodies read from outside of those bodies. A value that is
    read several times may come several times."""
    for node in wanted(nodes):
        if not node.attributes:
            yield from (value for value in node.inputs if value is not None)
            continue
        inner: set[ir.Value] = set()
        for each in walk([node]):
            yield from (value for value in each.inputs if value is not None and value not in inner)
            for _, body in naming.bodies(each):
                inner.update(body.inputs, body.initializers.values())
            if each is not node:
                inner.update(each.outputs)


class Cutter:
    """Cuts parts out of one network.

    Args:
        network: with types inferred; it is not changed.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._model = network.model
        self._nodes = list(network.model.graph)
        self._owners = {inner: node for node in self._nodes for inner in walk([node])}

    def piece(self, part: Part) -> Piece | None:
        """The part as a network, in time linear in its own size; None if its results are not read.
        Cut once out of a network that is kept.

        Args:
            part: its nodes are positions in the network's graph.
        """
        return self._network.derived(("piece", part), lambda: self._piece(part))

    def _piece(self, part: Part) -> Piece | None:
        members = {self._nodes[index] for index in part.nodes}
        ours = [
            node
            for index in wanted(part.nodes)
            if not is_constant(node := self._nodes[index]) or node.outputs[0].is_graph_output()
        ]
        layers = tuple(node.name or "" for node in ours)
        if len(members) == len(self._nodes) and _makes_its_outputs(self._model.graph):
            return Piece(part.affinity, self._network, layers)
        outputs = [
            value for node in wanted(ours) for value in node.outputs if self._leaves(value, members)
        ]
        if not outputs:
            return None
        reads = list(dict.fromkeys(outer_reads(ours)))
        own = set(ours)
        constants = [
            made
            for value in reads
            if (made := value.producer()) is not None and is_constant(made) and made not in own
        ]
        graph = self._model.graph
        view = ir.GraphView(
            [value for value in reads if _enters(value, own)],
            outputs,
            nodes=[*constants, *ours],
            initializers=[value for value in reads if value.is_initializer()],
            opset_imports=graph.opset_imports.copy(),
            name=graph.name,
        )
        model = ir.Model(
            view.clone(), ir_version=self._model.ir_version, functions=self._functions(ours)
        )
        network = self._network.derived(("network", part), lambda: Network(model))
        return Piece(part.affinity, network, layers)

    def _leaves(self, value: ir.Value, members: set[ir.Node]) -> bool:
        """Whether the value is a graph output, or a node outside of `members` reads it."""
        if value.is_graph_output():
            return True
        return any(self._owners[reader] not in members for reader, _ in value.uses())

    def _functions(self, nodes: Iterable[ir.Node]) -> list[ir.Function]:
        """The functions that the nodes call, directly or through other functions, in the model's
        order."""
        known = self._model.functions
        needed = {node.op_identifier() for node in walk(nodes)} & known.keys()
        fresh = needed
        while fresh:
            called = {key for each in fresh for key in calls(known[each])}
            fresh = (called & known.keys()) - needed
            needed |= fresh
        return [function.clone() for key, function in known.items() if key in needed]


def _makes_its_outputs(graph: ir.Graph) -> bool:
    return all(value.producer() is not None for value in graph.outputs)


def _enters(value: ir.Value, own: set[ir.Node]) -> bool:
    """Whether a part of the nodes `own` takes the value as an input. An initialiser is an input
    too if the network declares it as an input, which its IR version may require."""
    producer = value.producer()
    if producer is None:
        return value.is_graph_input() or not value.is_initializer()
    return not is_constant(producer) and producer not in own
