"""Operators of ai.onnx.ml, most of them predictors, whose answers the backend gets wrong.

Of two classes it often has one score, and makes the other class's score of it. It then does not
transform them, except by a logistic function, and leaves some of them to foreign memory. Of one
target, it transforms the value for PROBIT alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

_TOP: Final = "of two classes, the backend does not choose the one with the higher score"
_LACKING: Final = "the backend does not take the score of a class without votes for 0"
_LEFT: Final = "the backend leaves out post_transform"
_NUMBERED: Final = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")  # in TreeEnsemble
_SECOND: Final = "the backend makes a score of another one, and does not transform it"


def _linear_classifier(node: ir.Node) -> str | None:
    alone = len(node.attributes.get_floats("intercepts", ())) == 1
    return _SECOND if alone and _is_transformed(node) else None


def _vector_machine(node: ir.Node) -> str | None:
    get, labels = node.attributes.get_ints, _labels(node, "classlabels_ints")
    if not get("vectors_per_class", ()):
        return _TOP if labels == 2 else None
    if labels < 2:
        return "there is one class, and the backend has no score for it"
    alone = labels == 2 and not node.attributes.get_floats("prob_a", ())
    return _SECOND if alone and _is_transformed(node) else None


def _tree_classifier(node: ir.Node) -> str | None:
    """If the first of two classes has all votes, ONNX leaves open what the other's score is; so
    this is left alone."""
    if tree_labels(node) == 2 and _voted(node) == {0}:
        if _is_transformed(node):
            return _SECOND
        if _base_values(node) == 2:
            return "the backend adds base values to one score alone"
    if lacks_votes(node):
        return _LACKING
    return _TOP if has_wrong_label(node) else None


def has_wrong_label(node: ir.Node) -> bool:
    """Whether the label of a TreeEnsembleClassifier is read, and the backend does not choose the
    one with the highest score. Of two classes it takes the second wherever the score of one of them
    is positive, or above a half if no weight is negative; so it is right about the votes for the
    first class alone, unless they are transformed. Of more classes, it takes the one that was
    highest before SOFTMAX_ZERO left zeros as they were."""
    label = node.outputs[0]
    if not label.name or not (label.uses() or label.is_graph_output()):
        return False
    if tree_labels(node) != 2:
        return tree_labels(node) > 2 and _transform(node) == "SOFTMAX_ZERO"
    return _voted(node) != {0} or (_transform(node) != "NONE" and not _has_negative(node))


def lacks_votes(node: ir.Node) -> bool:
    """Whether the backend may find a class of a TreeEnsembleClassifier without votes, and takes
    something else than 0 for its score. Of two classes it then makes one score of the other, and
    adds base values to some scores alone. Of more, it does not choose such a class, even if the
    others are negative."""
    labels, has_base = tree_labels(node), _base_values(node) > 0
    if labels == 2:
        if len(_voted(node)) < 2:
            return _voted(node) == {1} and has_base
        return has_base or not _always_voted(node, labels)
    if labels < 2 or has_base:  # of which the backend wants one for each class
        return False
    return _has_negative(node) and not _always_voted(node, labels)


def _has_negative(node: ir.Node) -> bool:
    weights = node.attributes.get_floats("class_weights", ())
    wide = node.attributes.get_tensor("class_weights_as_tensor", None)
    return any(weight < 0 for weight in (wide.numpy().ravel().tolist() if wide else weights))


def _voted(node: ir.Node) -> set[int]:
    return {*node.attributes.get_ints("class_ids", ())}


def _base_values(node: ir.Node) -> int:
    wide = node.attributes.get_tensor("base_values_as_tensor", None)
    return len(node.attributes.get_floats("base_values", ())) if wide is None else int(wide.size)


def tree_labels(node: ir.Node) -> int:
    """How many classes a TreeEnsembleClassifier has."""
    return _labels(node, "classlabels_int64s")


def _linear_regressor(node: ir.Node) -> str | None:
    targets = node.attributes.get_int("targets", 1)
    intercepts = len(node.attributes.get_floats("intercepts", ()))
    if intercepts not in (0, targets):
        return f"there are {intercepts} intercepts for {targets} targets"
    return _regressor(targets, _transform(node))


def _tree_regressor(node: ir.Node) -> str | None:
    return _regressor(node.attributes.get_int("n_targets", 1), _transform(node))


def _normalizer(node: ir.Node) -> str | None:
    integers = node.inputs[0] is not None and node.inputs[0].dtype in (
        ir.DataType.INT32,
        ir.DataType.INT64,
    )
    if integers and node.attributes.get_string("norm", "MAX") == "L2":
        return "the backend squares integers in their own type, which overflows"
    return None


def _features(node: ir.Node) -> str | None:
    """The backend writes outside the output if a later length than the first is negative."""
    lengths = node.attributes.get_ints("inputdimensions", ())
    return "a length in inputdimensions is negative" if min(lengths, default=0) < 0 else None


def _trees(node: ir.Node) -> str | None:
    number = node.attributes.get_int("post_transform", 0)
    known = 0 <= number < len(_NUMBERED)  # otherwise the backend refuses the layer
    targets = node.attributes.get_int("n_targets", 1)
    return _regressor(targets, _NUMBERED[number]) if known else None


def _regressor(targets: int, transform: str) -> str | None:
    return _LEFT if targets == 1 and transform not in ("NONE", "PROBIT") else None


def _vector_regressor(node: ir.Node) -> str | None:
    return _LEFT if _transform(node) != "NONE" else None


def _labels(node: ir.Node, numbers: str) -> int:
    texts = node.attributes.get_strings("classlabels_strings", ())
    return len(node.attributes.get_ints(numbers, ()) or texts)


def _transform(node: ir.Node) -> str:
    return node.attributes.get_string("post_transform", "NONE")


def _is_transformed(node: ir.Node) -> bool:
    return _transform(node) not in ("NONE", "LOGISTIC")


def _always_voted(node: ir.Node, labels: int) -> bool:
    """Whether each class has a tree whose leaves all vote for it."""
    get = node.attributes.get_ints
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


RULES: Final[Mapping[str, Callable[[ir.Node], str | None]]] = MappingProxyType(
    {
        "ai.onnx.ml.FeatureVectorizer": _features,
        "ai.onnx.ml.LinearClassifier": _linear_classifier,
        "ai.onnx.ml.LinearRegressor": _linear_regressor,
        "ai.onnx.ml.Normalizer": _normalizer,
        "ai.onnx.ml.SVMClassifier": _vector_machine,
        "ai.onnx.ml.SVMRegressor": _vector_regressor,
        "ai.onnx.ml.TreeEnsemble": _trees,
        "ai.onnx.ml.TreeEnsembleClassifier": _tree_classifier,
        "ai.onnx.ml.TreeEnsembleRegressor": _tree_regressor,
    }
)
