"""Finds the layers of a network that each node of ONNX Runtime's rewritten graph stands for.

The runtime does not tell, and its blocked layouts rename every tensor in between. Only some names
remain. If an output of a node has the name of an original tensor, the layer that made that tensor
is the last layer that the node stands for. A convolution or pooling in blocked layout is named
after its output before later layers were fused onto it. From that tensor this module searches
backwards for the node's layers. A layer that no node claims was fused onto the node whose result it
takes.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import onnx_ir as ir

from headrace.runtime.intake.naming import bodies, walk

_BLOCKED_DOMAIN = "com.microsoft.nchwc"
_BLOCKED_NAME = re.compile(r"(.*)_nchwc(?:_token_\d+)?")

Nodes: TypeAlias = tuple[ir.Node, ...]


def trace(original: ir.Graph, rewritten: ir.Graph) -> dict[ir.Node, Nodes]:
    """The nodes of `original` that each node of `rewritten` stands for, bodies included.

    The first of them gives the rewritten node its name. A node that only moves data, for example a
    change of layout, stands for the same layers as the node that it serves. A node whose layers are
    not known is left out.
    """
    anchors = _anchors(original, rewritten)
    owner = {anchor: node for node, anchor in anchors.items()}
    order = {node: position for position, node in enumerate(original)}
    for node, anchor in anchors.items():
        for layer in _region(node, anchor, owner, order):
            owner[layer] = node
    position = {node: index for index, node in enumerate(rewritten)}
    for layer in original:
        if layer not in owner:
            before = [owner[producer] for producer in _producers(layer) if producer in owner]
            if before:
                owner[layer] = max(before, key=position.__getitem__)
    found: dict[ir.Node, Nodes] = {}
    for layer in original:
        if layer in owner:
            found[owner[layer]] = (*found.get(owner[layer], ()), layer)
    _serve(rewritten, found)
    for node in rewritten:
        below = dict(bodies(anchors[node])) if node in anchors else {}
        for branch, body in bodies(node):
            inside = trace(below[branch], body) if branch in below else {}
            if node in found:  # for example, a function that became a loop has no layers inside
                inside = {layer: inside.get(layer, found[node]) for layer in walk(body)}
            found |= inside
    return found


def _anchors(original: ir.Graph, rewritten: ir.Graph) -> dict[ir.Node, ir.Node]:
    """The last original node of each rewritten node, as far as names tell."""
    makers = {value.name: node for node in original for value in node.outputs if value.name}
    named = {node.name: node for node in original}
    anchors: dict[ir.Node, ir.Node] = {}
    taken: set[ir.Node] = set()
    for node in rewritten:
        anchor = _anchor(node, makers) or named.get(node.name)
        if anchor is not None and anchor not in taken:
            taken.add(anchor)
            anchors[node] = anchor
    return anchors


def _anchor(node: ir.Node, makers: dict[str, ir.Node]) -> ir.Node | None:
    if node.domain == _BLOCKED_DOMAIN:
        blocked = _BLOCKED_NAME.fullmatch(node.name or "")
        return makers.get(blocked[1]) if blocked is not None else None
    names = (value.name for value in node.outputs if value.name)
    return next((makers[name] for name in names if name in makers), None)


def _region(
    node: ir.Node, anchor: ir.Node, owner: dict[ir.Node, ir.Node], order: dict[ir.Node, int]
) -> list[ir.Node]:
    """The original nodes that `node` was made of: its anchor, and the unclaimed nodes before it. If
    one of them has the type of `node`, only that one and the nodes from there to the anchor."""
    cone = {anchor}
    stack = [anchor] if anchor.op_type != node.op_type else []
    while stack:
        for producer in _producers(stack.pop()):
            if producer in order and producer not in owner and producer not in cone:
                cone.add(producer)
                if producer.op_type != node.op_type:
                    stack.append(producer)
    between = {layer for layer in cone if layer.op_type == node.op_type}
    region = sorted(cone, key=order.__getitem__)
    if not between:
        return region
    for layer in region:
        if any(producer in between for producer in _producers(layer)):
            between.add(layer)
    return [layer for layer in region if layer in between]


def _producers(node: ir.Node) -> list[ir.Node]:
    makers = (value.producer() for value in node.inputs if value is not None)
    return [maker for maker in makers if maker is not None]


def _serve(rewritten: ir.Graph, found: dict[ir.Node, Nodes]) -> None:
    """Gives each node that the runtime added the layers of the node before it or after it."""
    for nodes, neighbours in (
        (rewritten, _producers),
        (reversed(rewritten), _users),
        (rewritten, _producers),
    ):
        for node in nodes:
            if node not in found:
                served = next(
                    (found[neighbour] for neighbour in neighbours(node) if neighbour in found), None
                )
                if served is not None:
                    found[node] = served


def _users(node: ir.Node) -> list[ir.Node]:
    return [user for value in node.outputs for user, _ in value.uses()]
