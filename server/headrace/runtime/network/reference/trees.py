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


def of_trees(base: Any) -> Any:
    """The evaluator's class for an ensemble, which refuses links that do not make trees. If a
    function hands the links on, they are known in a run alone."""

    class OfTrees(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            names = (*_LINKS, _ROOTS) if base.__name__ == "TreeEnsemble" else _BY_NODE
            given = {name: getattr(self, name, None) for name in names}
            self._is_checked = all(isinstance(value, list) for value in given.values())
            if self._is_checked:
                _check(given)

        def _run(self, *inputs: Any, **options: Any) -> tuple[Any, ...]:
            if not self._is_checked:
                _check(options)
            return (*super()._run(*inputs, **options),)

    OfTrees.__name__ = base.__name__  # the evaluator finds it by this name
    return OfTrees


def _check(lists: Mapping[str, Any]) -> None:
    """Raises a ValueError if the links do not make trees."""
    if _ROOTS in lists:
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
