"""Ensembles of trees whose links do not make trees are refused before a run."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.runtime.network.reference.evaluator import CorrectedEvaluator

_NODES: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
_VOTES: dict[str, dict[str, Any]] = {
    "TreeEnsembleRegressor": {
        "n_targets": 1,
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
    },
    "TreeEnsembleClassifier": {
        "classlabels_int64s": [0, 1, 2],
        "class_treeids": [0, 0],
        "class_nodeids": [1, 2],
        "class_ids": [0, 1],
        "class_weights": [1.0, 2.0],
    },
}


def ensemble(operator: str, attributes: dict[str, Any], version: int = 3) -> onnx.ModelProto:
    outputs = ["label", "y"] if operator == "TreeEnsembleClassifier" else ["y"]
    layer = helper.make_node(operator, ["x"], outputs, domain="ai.onnx.ml", **attributes)
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 1])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", version)]
    graph = helper.make_graph([layer], "g", ports, made)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def linked(**changes: Any) -> onnx.ModelProto:
    """A TreeEnsemble. Its root leads to a leaf, and to a second node with two leaves."""
    attributes = {
        "n_targets": 1,
        "tree_roots": [0],
        "nodes_featureids": [0, 0],
        "nodes_splits": numpy_helper.from_array(np.array([0.5, 1.5], np.float32)),
        "nodes_modes": numpy_helper.from_array(np.zeros(2, np.uint8)),
        "nodes_truenodeids": [0, 1],
        "nodes_falsenodeids": [1, 2],
        "nodes_trueleafs": [1, 1],
        "nodes_falseleafs": [0, 1],
        "leaf_targetids": [0, 0, 0],
        "leaf_weights": numpy_helper.from_array(np.array([1, 2, 3], np.float32)),
    }
    return ensemble("TreeEnsemble", {**attributes, **changes}, 5)


def evaluate(model: onnx.ModelProto) -> Any:
    x = np.array([[0], [1], [2]], np.float32)
    found: Any = CorrectedEvaluator(model).run(None, {"x": x})
    return np.asarray(found[-1]).tolist()


def test_trees_are_evaluated() -> None:
    regressor, classifier = (ensemble(each, {**_NODES, **_VOTES[each]}) for each in _VOTES)
    assert evaluate(regressor) == [[1], [2], [2]]
    assert evaluate(classifier) == [[1, 0, 0], [0, 2, 0], [0, 2, 0]]
    assert evaluate(linked()) == [[1], [2], [3]]
    assert evaluate(linked(tree_roots=[0, 0])) == [[2], [4], [6]]


@pytest.mark.parametrize("operator", _VOTES)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nodes_falsenodeids": [0, 0, 0]}, "leads back to a node"),
        (
            {
                "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"],
                "nodes_falsenodeids": [2, 2, 0],
            },
            "leads back to a node",
        ),
        ({"nodes_falsenodeids": [0, 0]}, "nodes_falsenodeids has 2 elements for 3 nodes"),
        ({"nodes_truenodeids": [99, 0, 0]}, "tree 0 has no node 99"),
    ],
)
def test_nodes_whose_links_make_no_tree_are_refused(
    operator: str, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        CorrectedEvaluator(ensemble(operator, {**_NODES, **_VOTES[operator], **changes}))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nodes_trueleafs": [0, 1]}, "leads back to a node"),
        ({"nodes_truenodeids": [1, 1], "nodes_trueleafs": [0, 1]}, "lead to the same node"),
        ({"nodes_falsenodeids": [2, 2]}, "2 nodes, but a root or branch is at 2"),
        ({"tree_roots": [-1]}, "2 nodes, but a root or branch is at -1"),
        ({"nodes_falseleafs": [0]}, "nodes_falseleafs has 1 elements for 2 nodes"),
        ({"tree_roots": [0] * 5_000_000}, "10,000,000 steps are too many"),
    ],
    ids=reprlib.repr,
)
def test_links_that_make_no_trees_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Exception, match=why):
        CorrectedEvaluator(linked(**changes))


def test_links_that_a_function_hands_on_are_checked_in_a_run() -> None:
    given = {**_NODES, **_VOTES["TreeEnsembleRegressor"]}
    layer = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **given)
    for each in layer.attribute:
        if each.name == "nodes_falsenodeids":
            each.Clear()
            each.name = each.ref_attr_name = "nodes_falsenodeids"
            each.type = onnx.AttributeProto.INTS
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    function = helper.make_function(
        "test", "f", ["x"], ["y"], [layer], opsets, ["nodes_falsenodeids"]
    )
    for links, is_tree in (([2, 0, 0], True), ([0, 0, 0], False)):
        call = helper.make_node("f", ["x"], ["y"], domain="test", nodes_falsenodeids=links)
        model = ensemble("TreeEnsembleRegressor", given)
        model.graph.node[0].CopyFrom(call)
        model.opset_import.append(helper.make_opsetid("test", 1))
        model.functions.append(function)
        if is_tree:
            assert evaluate(model) == [[1], [2], [2]]
        else:
            with pytest.raises(ValueError, match="leads back"):
                evaluate(model)
