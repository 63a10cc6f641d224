"""Refuses ensembles of trees whose evaluation would not end.

onnx's operators follow the links from node to node in a loop of Python, which no cancel ends. They
do not look whether the links make a tree.

https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsemble.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.runtime.network.reference.steps import refuse_steps

_BY_NODE: Final = (
    "nodes_treeids",
    "nodes_nodeids",
    "nodes_modes",
    "nodes_featureids",
    "nodes_truenodeids",
    "nodes_falsenodeids",
)
"""Lists of the older operators, with an element for each node."""

_LINKS: Final = ("nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs", "nodes_falseleafs")
_ROOTS: Final = "tree_roots"


def refuse_other_than_trees(lists: Mapping[str, Any]) -> None:
    """Raises a ValueError if the links of an ensemble's attributes do not make trees."""
    lists = {name: lists.get(name) or () for name in (*_BY_NODE, *_LINKS, _ROOTS)}
    if lists[_ROOTS]:
        children, roots = _linked(lists), lists[_ROOTS]
        _check_places(roots, len(children))
    else:
        children, roots = _named(lists), []
    parents = Counter(child for pair in children for child in pair)
    if roots and max(parents.values(), default=0) > 1:  # onnx copies what two nodes share
        raise ValueError("two branches of its trees lead to the same node")
    ready = [node for node in range(len(children)) if not parents[node]]
    for node in ready:  # grows
        for child in children[node]:
            parents[child] -= 1
            if not parents[child]:
                ready.append(child)
    if len(ready) < len(children):
        raise ValueError("a branch of its trees leads back to a node that it comes from")
    sizes = [1] * len(children)
    for node in reversed(ready):
        sizes[node] += sum(sizes[child] for child in children[node])
    refuse_steps(sum(sizes[root] for root in roots))


def _linked(lists: Mapping[str, Any]) -> list[list[int]]:
    """The nodes that each node of a TreeEnsemble leads to. Leaves are no nodes."""
    on_true, on_false, true_leaf, false_leaf = (lists[name] for name in _LINKS)
    count = len(on_true)
    _check_lengths(lists, _LINKS, count)
    children = [
        [child for child, leaf in ((one, one_ends), (other, other_ends)) if not leaf]
        for one, other, one_ends, other_ends in zip(
            on_true, on_false, true_leaf, false_leaf, strict=True
        )
    ]
    _check_places([child for pair in children for child in pair], count)
    return children


def _named(lists: Mapping[str, Any]) -> list[list[int]]:
    """The nodes that each node of one of the older operators leads to."""
    trees, nodes, modes, _, on_true, on_false = (lists[name] for name in _BY_NODE)
    _check_lengths(lists, _BY_NODE, len(trees))
    places = {name: at for at, name in enumerate(zip(trees, nodes, strict=True))}
    links = zip(trees, modes, on_true, on_false, strict=True)
    try:
        return [
            [] if mode == "LEAF" else [places[tree, one], places[tree, other]]
            for tree, mode, one, other in links
        ]
    except KeyError as error:
        tree, node = error.args[0]
        raise ValueError(f"its tree {tree} has no node {node}, but a branch leads there") from error


def _check_lengths(lists: Mapping[str, Any], names: Sequence[str], count: int) -> None:
    for name in names:
        if len(lists[name]) != count:
            raise ValueError(f"{name} has {len(lists[name])} elements for {count} nodes")


def _check_places(places: Sequence[int], count: int) -> None:
    wrong = next((place for place in places if not 0 <= place < count), None)
    if wrong is not None:
        raise ValueError(f"its trees have {count} nodes, but a root or branch is at {wrong}")
