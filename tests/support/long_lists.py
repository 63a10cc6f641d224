"""Networks of one layer with long lists in its attributes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

_OPSETS = (("", 18), ("ai.onnx.ml", 4), ("own", 1))


def words(count: int) -> list[str]:
    """Texts that each take memory of their own."""
    return [f"word number {at} of a vocabulary" for at in range(count)]


def network(
    nodes: Sequence[onnx.NodeProto],
    given: int,
    answered: int,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """The network of the nodes, from x to y.

    Args:
        given: the type of x's elements.
        answered: the type of y's elements.
    """
    x = helper.make_tensor_value_info("x", given, None)
    y = helper.make_tensor_value_info("y", answered, None)
    opsets = [helper.make_opsetid(*each) for each in _OPSETS]
    graph = helper.make_graph(nodes, "lists", [x], [y])
    return helper.make_model(graph, ir_version=10, opset_imports=opsets, functions=functions)


def encoder(count: int, output: str = "y") -> onnx.NodeProto:
    """Keeps `count` texts."""
    return helper.make_node(
        "LabelEncoder",
        ["x"],
        [output],
        domain="ai.onnx.ml",
        keys_strings=words(count),
        values_int64s=[*range(count)],
    )


def labels(count: int) -> onnx.ModelProto:
    return network([encoder(count)], TensorProto.STRING, TensorProto.INT64)


def terms(count: int, *, numbers: bool = False) -> onnx.ModelProto:
    """Counts which of `count` words or numbers occur."""
    layer = helper.make_node(
        "TfIdfVectorizer",
        ["x"],
        ["y"],
        **{"pool_int64s": [*range(count)]} if numbers else {"pool_strings": words(count)},
        mode="TF",
        max_skip_count=0,
        min_gram_length=1,
        max_gram_length=1,
        ngram_counts=[0],
        ngram_indexes=[*range(count)],
    )
    given = TensorProto.INT64 if numbers else TensorProto.STRING
    return network([layer], given, TensorProto.FLOAT)


def tree(count: int) -> onnx.ModelProto:
    """A decision tree of `count` nodes, which has to be odd: each is a leaf or has two children."""
    leaves = [*range(count // 2, count)]
    branches = [*range(count // 2)]
    nothing = [0] * len(leaves)
    layer = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[0] * count,
        nodes_nodeids=[*range(count)],
        nodes_featureids=[0] * count,
        nodes_modes=["BRANCH_LEQ"] * len(branches) + ["LEAF"] * len(leaves),
        nodes_values=[0.0] * count,
        nodes_truenodeids=[2 * at + 1 for at in branches] + nothing,
        nodes_falsenodeids=[2 * at + 2 for at in branches] + nothing,
        target_treeids=nothing,
        target_nodeids=leaves,
        target_ids=nothing,
        target_weights=[1.0] * len(leaves),
    )
    return network([layer], TensorProto.FLOAT, TensorProto.FLOAT)
