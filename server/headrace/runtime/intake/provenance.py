"""Tracks which layers of the network, as it was loaded, each node stands for.

Before the first transformation each node is stamped with its own name. The nodes that replace it
get its stamp. The stamp is a JSON list under one metadata key, so that it survives every clone and
every trip through a serialised model.

A transformation does not know about stamps. `tracked` compares the graph before and after it. A
removed layer is replaced by the nodes that produce values with the names of its results. If there
are none, it is replaced by these nodes:

- the nodes from which its surviving readers read now,
- its readers that were altered,
- the nodes that replace its removed readers.

A new node that replaces no removed layer stands for what its readers stand for. Examples are the
first half of a decomposed layer and a cast between two layers. A layer that no node replaces has
vanished: it was folded into a constant, or its results were not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import onnx_ir as ir

from headrace.runtime.intake.naming import bodies, walk
from headrace.runtime.system.graph_memory import watch_removed
from headrace.runtime.system.interruption import wanted

METADATA_PREFIX = "headrace."
ORIGINS = METADATA_PREFIX + "origins"

Transformation: TypeAlias = Callable[[ir.Model], bool]
"""Changes a model in place and says whether it did."""


def origins(node: ir.Node) -> tuple[str, ...]:
    """The names of the original layers that `node` stands for. There are none if headrace added the
    node itself, or if the network was never transformed."""
    stamped = node.metadata_props.get(ORIGINS)
    return tuple(json.loads(stamped)) if stamped else ()


def stamp(node: ir.Node, names: Iterable[str]) -> None:
    """Stamps `node` with the layers `names` that it stands for, each once, in the order given."""
    node.metadata_props[ORIGINS] = json.dumps(list(dict.fromkeys(names)))


def tracked(model: ir.Model, *transformations: Transformation) -> bool:
    """Runs the transformations in order and stamps the new nodes.

    Returns:
        Whether one of them changed the model.
    """
    before: dict[ir.Node, _Before] = {}
    changed = False
    for transformation in transformations:
        # What was known before a transformation that changed nothing is known after it.
        before = before or {
            node: _Before(node, owner) for node, owner in _readers_first(model.graph, None)
        }
        try:
            modified = bool(transformation(model))
        finally:
            after = dict.fromkeys(walk(model.graph))
            if removed := before.keys() - after.keys():
                watch_removed(model, removed)
        if modified or before.keys() != after.keys():
            _stamp_new(before, after)
            before, changed = {}, changed or modified
    return changed


def _stamp_new(before: dict[ir.Node, _Before], after: dict[ir.Node, None]) -> None:
    extra = _heirs(before, after)
    for node in wanted(before.keys() & after.keys()):
        before[node].restore(node)
    for node, inherited in extra.items():
        stamp(node, (*origins(node), *inherited))
    unstamped = [node for node in after if ORIGINS not in node.metadata_props]
    for node in wanted(reversed(unstamped)):
        readers = (reader for value in node.outputs for reader, _ in value.uses())
        names = [name for reader in readers for name in origins(reader)]
        if names:
            stamp(node, names)
    for node in unstamped:  # only the network's outputs read these
        if ORIGINS not in node.metadata_props:
            sources = (value.producer() for value in node.inputs if value is not None)
            stamp(node, [name for source in sources if source for name in origins(source)])


class _Before:
    """What `tracked` must know about a node if a transformation removes it."""

    __slots__ = ("attributes", "names", "origins", "outlets", "readers", "signature")

    def __init__(self, node: ir.Node, owner: ir.Node | None) -> None:
        outputs = node.outputs
        self.origins = node.metadata_props.get(ORIGINS)
        self.signature = _signature(node)
        self.attributes = [*node.attributes.data.values()]  # alive, so that ids stay theirs
        self.names = [value.name for value in outputs if value.name]
        self.readers = [use for value in outputs for use in value.uses()]
        self.outlets: list[tuple[ir.Graph, int, ir.Node | None]] = []
        for value in outputs:
            if value.is_graph_output() and (graph := value.graph) is not None:
                places = (at for at, output in enumerate(graph.outputs) if output is value)
                self.outlets += [(graph, at, owner) for at in places]

    def restore(self, node: ir.Node) -> None:
        """Restores the stamp of a node that a transformation kept but may have changed."""
        if self.origins is not None and ORIGINS not in node.metadata_props:
            node.metadata_props[ORIGINS] = self.origins


def _signature(node: ir.Node) -> tuple[object, ...]:
    attributes = tuple(map(id, node.attributes.data.values()))
    return node.domain, node.op_type, node.overload, attributes, len(node.inputs), len(node.outputs)


def _readers_first(
    graph: ir.Graph, owner: ir.Node | None
) -> Iterator[tuple[ir.Node, ir.Node | None]]:
    """All nodes, each with the node whose body contains it. Each node comes after all nodes that
    read its results."""
    for node in wanted(reversed(list(graph))):
        yield node, owner
        for _, body in bodies(node):
            yield from _readers_first(body, node)


def _heirs(
    before: dict[ir.Node, _Before], after: dict[ir.Node, None]
) -> dict[ir.Node, dict[str, None]]:
    """The nodes that stand for removed nodes, each with the names of its original layers."""
    producers: dict[str, ir.Node] = {}
    for node in after:
        for value in node.outputs:
            if value.name:
                producers[value.name] = node
    heirs: dict[ir.Node, dict[ir.Node, None]] = {}
    for node, record in wanted(before.items()):
        if node in after:
            continue
        stand_ins = heirs[node] = {}
        if all(name in producers for name in record.names):
            stand_ins.update((producers[name], None) for name in record.names)
        else:
            for reader, at in record.readers:
                stand_ins.update(_in_place(reader, at, before, after, heirs))
            for graph, at, owner in record.outlets:
                if owner is not None and owner not in after:
                    stand_ins.update(heirs[owner])
                elif at < len(graph.outputs):
                    stand_ins.update(_if_alive(graph.outputs[at].producer(), after))
    extra: dict[ir.Node, dict[str, None]] = {}
    for node, stand_ins in reversed(heirs.items()):  # in the network's own order
        names = dict.fromkeys(json.loads(before[node].origins or "[]"))
        for heir in stand_ins:
            extra.setdefault(heir, {}).update(names)
    return extra


def _in_place(
    reader: ir.Node,
    at: int,
    before: dict[ir.Node, _Before],
    after: dict[ir.Node, None],
    heirs: dict[ir.Node, dict[ir.Node, None]],
) -> dict[ir.Node, None]:
    """The nodes that now produce what `reader` read as its input `at`."""
    if reader not in after:
        return heirs.get(reader, {})
    value = reader.inputs[at] if at < len(reader.inputs) else None
    found = _if_alive(value.producer() if value is not None else None, after)
    if _signature(reader) != before[reader].signature:
        found[reader] = None
    return found


def _if_alive(node: ir.Node | None, after: dict[ir.Node, None]) -> dict[ir.Node, None]:
    return {node: None} if node is not None and node in after else {}
