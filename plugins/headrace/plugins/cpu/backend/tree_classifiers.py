"""Repairs a TreeEnsembleClassifier that ONNX Runtime computes otherwise than ONNX says.

https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsembleClassifier.html
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.backend.inserter import LayerInserter
from headrace.plugins.cpu.claims.predictors import has_wrong_label, lacks_votes, tree_labels

_LEAF: Final[dict[str, Any]] = {
    "nodes_nodeids": 0,
    "nodes_featureids": 0,
    "nodes_values": 0.0,
    "nodes_hitrates": 1.0,
    "nodes_modes": "LEAF",
    "nodes_truenodeids": 0,
    "nodes_falsenodeids": 0,
    "nodes_missing_value_tracks_true": 0,
}
"""What the lists of nodes say of a tree that is a leaf alone, besides the tree's number."""


def repair_tree_classifier(node: ir.Node, before: LayerInserter) -> None:
    """Gives every class a vote, and takes the label of the highest score."""
    if lacks_votes(node):
        _add_votes(node, tree_labels(node))
    if has_wrong_label(node) and node.attributes.get_string("post_transform", "") != "PROBIT":
        _take_highest(node, before)  # PROBIT makes NaN of some scores


def _add_votes(node: ir.Node, classes: int) -> None:
    """Adds a tree of one leaf that votes for all classes, with their base values or with 0."""
    count = len(node.attributes.get_ints("nodes_treeids", ()))
    tree = 1 + max(node.attributes.get_ints("nodes_treeids", ()), default=0)
    votes = np.zeros(classes)
    for name in ("base_values", "base_values_as_tensor"):
        if name in node.attributes:
            votes = votes + _numbers(node.attributes.pop(name))
    for name, said in {"nodes_treeids": tree, **_LEAF}.items():
        _extend(node, name, [said], least=count)
    _extend(node, "class_treeids", [tree] * classes)
    _extend(node, "class_nodeids", [0] * classes)
    _extend(node, "class_ids", [*range(classes)])
    _extend(node, "class_weights", votes.tolist())


def _extend(node: ir.Node, name: str, more: list[Any], least: int = 1) -> None:
    """Appends to the list, or to the tensor in its place. A list that is not given stays so."""
    for attribute_name in (name, f"{name}_as_tensor"):
        given = node.attributes.get(attribute_name)
        if given is None:
            continue
        if given.type == ir.AttributeType.TENSOR:
            longer = np.append(_numbers(given), more).astype(given.as_tensor().dtype.numpy())
            node.attributes[attribute_name] = ir.AttrTensor(attribute_name, ir.tensor(longer))
        elif len(given.value) >= least:
            node.attributes[attribute_name] = ir.Attr(
                attribute_name, given.type, (*given.value, *more)
            )


def _numbers(attribute: ir.Attr) -> Any:
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().numpy().ravel()
    return np.array(attribute.value)


def _take_highest(node: ir.Node, before: LayerInserter) -> None:
    numbers = node.attributes.get_ints("classlabels_int64s", ())
    texts = [each.encode() for each in node.attributes.get_strings("classlabels_strings", ())]
    label = ir.TensorType(ir.DataType.INT64 if numbers else ir.DataType.STRING)
    classes = (
        before.constant(np.array(numbers, np.int64))
        if numbers
        else before.layer(
            "Constant", value=ir.StringTensor(texts, shape=ir.Shape([len(texts)])), type=label
        )
    )
    outputs = [
        ir.Value(name=before.names.fresh(f"{node.name}{before.suffix}"), type=kind)
        for kind in (label, ir.TensorType(ir.DataType.FLOAT))
    ]
    before.place(
        ir.node(
            node.op_type,
            node.inputs,
            node.attributes,
            domain=node.domain,
            outputs=outputs,
            name=outputs[0].name,
        )
    )
    place = ir.TensorType(ir.DataType.INT64)
    best = before.layer("ArgMax", outputs[1], axis=1, keepdims=0, type=place)
    results = [before.layer("Gather", classes, best, type=label), outputs[1]][: len(node.outputs)]
    assert node.graph is not None
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], [], node.outputs, results)
