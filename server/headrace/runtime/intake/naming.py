"""One unique name for each layer of a network.

Most ONNX nodes in the wild have no name, names may repeat, and ONNX Runtime refuses repeats. A
node keeps its own name if no other node has it. Otherwise it takes the name of its first non-empty
output, with ``#2``, ``#3``, … added if that name is taken too. Nodes in control-flow bodies are
called ``outer/branch/inner``; the branch is the attribute that holds the body. Naming a network
again changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import onnx_ir as ir

from headrace.runtime.system.interruption import wanted

_GRAPH: Final = ir.AttributeType.GRAPH
_GRAPHS: Final = ir.AttributeType.GRAPHS


def bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """The graphs that `node` holds, each with its branch. The branch is the attribute's name, or
    ``name.0``, … if one attribute holds several graphs."""
    # Most layers have no body, and all steps of a load ask: `values` takes five times as long.
    for attribute in node.attributes.data.values():
        kind = attribute.type
        if kind == _GRAPH and not attribute.is_ref():
            yield attribute.name, attribute.as_graph()
        elif kind == _GRAPHS and not attribute.is_ref():
            for index, body in enumerate(attribute.as_graphs()):
                yield f"{attribute.name}.{index}", body


def walk(graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """Every node of `graph`, each followed by the nodes in its bodies. It ends the work if nobody
    wants its result any more."""
    for node in wanted(graph):
        yield node
        if node.attributes.data:
            for _, body in bodies(node):
                yield from walk(body)


def graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The graph, and the bodies in it."""
    yield model.graph
    for node in walk(model.graph):
        for _, body in bodies(node):
            yield body


class Names:
    """The names given so far. `fresh` takes linear time even if the same name comes many times."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)
        self._next: Counter[str] = Counter()

    def fresh(self, base: str) -> str:
        name = base
        while name in self.taken:
            self._next[base] += 1
            name = f"{base}#{self._next[base] + 1}"
        self.taken.add(name)
        return name


def value_names(model: ir.Model) -> Names:
    """The names of all values of `model`, to make new names that differ from them."""
    names = Names()
    for graph in graphs(model):
        names.taken.update(value.name or "" for value in graph.inputs)
        names.taken.update(graph.initializers)
        for node in graph:
            names.taken.update(value.name or "" for value in node.outputs)
    return names


def name_layers(graph: ir.Graph | ir.Function) -> None:
    """Gives each node of `graph`, bodies included, its unique name."""
    _name(graph, "", Names())


def _name(graph: ir.Graph | ir.Function, prefix: str, names: Names) -> None:
    nodes = list(wanted(graph))
    own = [_own_name(node, prefix) for node in nodes]
    counts = Counter(own)
    kept = {name for name in counts if name and counts[name] == 1} - names.taken
    names.taken |= kept
    for node, name in wanted(zip(nodes, own, strict=True)):
        if name not in kept:
            output = next((value.name for value in node.outputs if value.name), "")
            name = names.fresh(prefix + output if output else name or prefix + node.op_type)
        if node.name != name:
            node.name = name
    for node in nodes:
        for branch, body in bodies(node):
            _name(body, f"{node.name}/{branch}/", names)


def _own_name(node: ir.Node, prefix: str) -> str:
    if not node.name:
        return ""
    return node.name if node.name.startswith(prefix) else prefix + node.name
