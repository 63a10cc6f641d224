"""Operators of ai.onnx.ml: each behaviour is one that onnx's own evaluator gets wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

from headrace.runtime.network.reference.evaluator import CorrectedEvaluator

_TREE = """y, z = ai.onnx.ml.TreeEnsembleClassifier<
    nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0],
    nodes_values = [0.5, 0.0, 0.0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"],
    nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0], class_treeids = [0, 0],
    class_nodeids = [1, 2], class_ids = {}, class_weights = [0.75, 0.25],
    classlabels_int64s = {}, post_transform = "{}">(x)"""
_LEFT_AND_RIGHT = [[0.0], [1.0]]


def run(node: str, x: Any, kind: str = "float") -> list[Any]:
    outputs = node.partition("=")[0].strip().split(", ")
    kinds = {"c": "int64", "s": "string"}
    ports = ", ".join(f"{kinds.get(each, 'float')} {each}" for each in outputs)
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>'
        f"g ({kind} x) => ({ports}) {{ {node} }}"
    )
    value = np.array(x, {"float": np.float32, "int32": np.int32, "int64": np.int64}[kind])
    return [np.asarray(each).tolist() for each in CorrectedEvaluator(model).run(None, {"x": value})]


@pytest.mark.parametrize(
    ("voted", "labels", "scores"),
    [
        ([1, 1], [0, 1], [[0.0, 0.75], [0.0, 0.25]]),
        ([0, 0], [0, 1, 2], [[0.75, 0.0, 0.0], [0.25, 0.0, 0.0]]),
        ([0, 0], [0, 1], [[0.25, 0.75], [0.75, 0.25]]),  # for the second class
    ],
)
def test_votes_for_one_class_are_its_score(
    voted: list[int], labels: list[int], scores: list[list[float]]
) -> None:
    found, given = run(_TREE.format(voted, labels, "NONE"), _LEFT_AND_RIGHT)
    assert given == scores
    assert found == [int(np.argmax(each)) for each in scores]


def test_the_probability_of_one_of_two_classes_is_the_second_ones() -> None:
    found, given = run(_TREE.format([0, 0], [4, 5], "LOGISTIC"), _LEFT_AND_RIGHT)
    second = 1 / (1 + np.exp([-0.75, -0.25]))
    np.testing.assert_allclose(given, np.stack([1 - second, second], axis=1), rtol=1e-6)
    assert found == [5, 5]


def test_the_other_score_is_the_negative_where_a_weight_is_negative() -> None:
    tree = _TREE.replace("0.75, 0.25", "-0.75, 0.25")
    found, given = run(tree.format([0, 0], [4, 5], "NONE"), _LEFT_AND_RIGHT)
    assert given == [[0.75, -0.75], [-0.25, 0.25]]
    assert found == [4, 5]


def test_another_transform_of_one_of_two_classes_is_refused() -> None:
    with pytest.raises(NotImplementedError):
        run(_TREE.format([0, 0], [0, 1], "SOFTMAX"), _LEFT_AND_RIGHT)
