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
    """The backend's label of two classes is the second wherever its score is positive. Of more, it
    is one of those that have votes, though a class without votes has a score of 0. If one of two
    classes has all votes, ONNX leaves open what the other's score is; so this is left alone."""
    labels = _labels(node, "classlabels_int64s")
    voted = {*node.attributes.get_ints("class_ids", ())}
    if labels == 2 and len(voted) == 2:
        return _TOP
    if labels == 2 and voted == {0} and _is_transformed(node):
        return _SECOND
    weights = node.attributes.get_floats("class_weights", ())
    wide = node.attributes.get_tensor("class_weights_as_tensor", None)
    if wide is not None:
        weights = wide.numpy().tolist()
    if labels > 2 and any(each < 0 for each in weights) and not _always_voted(node, labels):
        return "the backend does not choose a class without votes, even if the others are negative"
    return None


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
