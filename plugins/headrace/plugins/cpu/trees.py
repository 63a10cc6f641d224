"""Ensembles of decision trees whose answers the backend gets wrong."""

from __future__ import annotations

import onnx_ir as ir


def classifier(node: ir.Node) -> str | None:
    """The backend's label of two classes is the second wherever its score is positive. Of more, it
    is one of those that have votes, though a class without votes has a score of 0. If one of two
    classes has all votes, ONNX leaves open what the other's score is; so this is left alone."""
    get = node.attributes.get_ints
    texts = node.attributes.get_strings("classlabels_strings", ())
    labels = len(get("classlabels_int64s", ()) or texts)
    if labels == 2 and len({*get("class_ids", ())}) == 2:
        return "of two classes with votes, the backend does not choose the one with more"
    weights = node.attributes.get_floats("class_weights", ())
    wide = node.attributes.get_tensor("class_weights_as_tensor", None)
    if wide is not None:
        weights = wide.numpy().tolist()
    if labels > 2 and any(each < 0 for each in weights) and not _always_voted(node, labels):
        return "the backend does not choose a class without votes, even if the others are negative"
    return None


def _always_voted(node: ir.Node, labels: int) -> bool:
    """Whether each class has a score of its own, or a tree whose leaves all vote for it."""
    get = node.attributes.get_ints
    if "base_values" in node.attributes or "base_values_as_tensor" in node.attributes:
        return True  # the backend wants one for each class
    leaves: dict[int, set[int]] = {}
    modes = node.attributes.get_strings("nodes_modes", ())
    nodes = zip(get("nodes_treeids", ()), get("nodes_nodeids", ()), modes, strict=False)
    for tree, leaf, mode in nodes:
        if mode == "LEAF":
            leaves.setdefault(tree, set()).add(leaf)
    votes: dict[tuple[int, int], set[int]] = {}
    places = zip(
        get("class_treeids", ()), get("class_nodeids", ()), get("class_ids", ()), strict=False
    )
    for tree, leaf, number in places:
        votes.setdefault((tree, number), set()).add(leaf)
    complete = {
        number for (tree, number), found in votes.items() if found >= leaves.get(tree, {-1})
    }
    return len(complete) == labels
