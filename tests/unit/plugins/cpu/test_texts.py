"""How many texts the layers of a network may keep in the server's process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from headrace.plugins import cpu
from headrace.runtime.device.load import Load
from headrace.runtime.device.services import Services
from headrace.runtime.errors import UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services

MOST = 100_000
INFO = helper.make_tensor_value_info
X, Y = INFO("x", onnx.TensorProto.STRING, ["n"]), INFO("y", onnx.TensorProto.INT64, None)


@pytest.fixture
def offered() -> Iterator[Services]:
    with services() as offered:
        yield offered


def words(count: int) -> list[str]:
    return [f"word {at}" for at in range(count)]


def encoder(count: int, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    """Keeps `count` texts."""
    given = attributes or {"keys_strings": words(count), "values_int64s": [*range(count)]}
    return helper.make_node("LabelEncoder", ["x"], [outputs], domain="ai.onnx.ml", **given)


def in_tensors(count: int) -> onnx.NodeProto:
    tensors = {
        "keys_tensor": numpy_helper.from_array(np.array(words(count), object)),
        "values_tensor": numpy_helper.from_array(np.arange(count)),
    }
    return encoder(count, **tensors)


def terms(pool: Sequence[Any], kind: str) -> onnx.NodeProto:
    return helper.make_node(
        "TfIdfVectorizer",
        ["x"],
        ["y"],
        **{f"pool_{kind}": pool},  # type: ignore[arg-type]
        mode="TF",
        max_skip_count=0,
        min_gram_length=1,
        max_gram_length=1,
        ngram_counts=[0],
        ngram_indexes=[*range(len(pool))],
    )


def model(*nodes: onnx.NodeProto, **others: Any) -> onnx.ModelProto:
    numbers = any(each.name == "pool_int64s" for node in nodes for each in node.attribute)
    x = INFO("x", onnx.TensorProto.INT64, ["n"]) if numbers else X
    kind = onnx.TensorProto.FLOAT if nodes[-1].op_type == "TfIdfVectorizer" else Y
    y = Y if kind is Y else INFO("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "texts", [x], [y])
    opsets = [helper.make_opsetid(*each) for each in (("", 18), ("ai.onnx.ml", 4), ("own", 1))]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets, **others)


def several(count: int) -> onnx.ModelProto:
    last = helper.make_node("Add", ["a", "b"], ["y"])
    return model(encoder(count // 2, "a"), encoder(count - count // 2, "b"), last)


def called(count: int) -> onnx.ModelProto:
    """A function that keeps a fifth of the texts, and five calls of it."""
    names = words(count // 10)
    layer = encoder(0, keys_strings=names, values_strings=names)
    opsets = [helper.make_opsetid("ai.onnx.ml", 4)]
    function = helper.make_function("own", "Encode", ["x"], ["y"], [layer], opsets)
    values = ["x", "a", "b", "c", "d", "e"]
    calls = [helper.make_node("Encode", [i], [o], domain="own") for i, o in pairwise(values)]
    lengths = helper.make_node("Shape", ["e"], ["y"])
    return model(*calls, lengths, functions=[function])


MODELS = {
    "lists": lambda count: model(encoder(count)),
    "tensors": lambda count: model(in_tensors(count)),
    "terms": lambda count: model(terms(words(count), "strings")),
    "terms of numbers": lambda count: model(terms([*range(count)], "int64s")),
    "several layers": several,
    "calls of a function": called,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_network_keeps_no_more_texts_than_are_freed_at_once(offered: Services, name: str) -> None:
    plugin = cpu.create_plugin("CPU", offered, {})
    most = Network.from_bytes(MODELS[name](MOST).SerializeToString())
    assert not plugin.query_network(most, {}).unsupported
    more = Network.from_bytes(MODELS[name](MOST + 10).SerializeToString())
    unsupported = plugin.query_network(more, {}).unsupported
    assert {layer.reason for layer in unsupported} == {
        "the network's layers keep 100,010 texts and n-grams, and freeing them would stop the "
        "server's other threads; at most 100,000 are allowed, unless the server is started with "
        "--isolate-devices"
    }
    with pytest.raises(UnsupportedLayers, match="100,010 texts"):
        plugin.load_network(Load(more))


def test_in_a_process_of_its_own_the_device_keeps_any_number(offered: Services) -> None:
    plugin = cpu.create_plugin("CPU", replace(offered, isolated=True), {})
    network = plugin.load_network(
        Load(Network.from_bytes(MODELS["lists"](MOST + 1).SerializeToString()))
    )
    found = InferRequest(network).infer({"x": np.array([f"word {MOST}"], object)})
    assert found["y"].tolist() == [MOST]
    network.close()


def test_the_nodes_of_a_tree_are_no_texts(offered: Services) -> None:
    """Their kinds are texts, which are kept as numbers."""
    count = MOST + 1
    leaves = [2 * at + 2 >= count for at in range(count)]
    own = [at for at, leaf in enumerate(leaves) if leaf]
    tree = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[0] * count,
        nodes_nodeids=[*range(count)],
        nodes_featureids=[0] * count,
        nodes_modes=["LEAF" if leaf else "BRANCH_LEQ" for leaf in leaves],
        nodes_values=[0.0] * count,
        nodes_truenodeids=[0 if leaf else 2 * at + 1 for at, leaf in enumerate(leaves)],
        nodes_falsenodeids=[0 if leaf else 2 * at + 2 for at, leaf in enumerate(leaves)],
        target_treeids=[0] * len(own),
        target_nodeids=own,
        target_ids=[0] * len(own),
        target_weights=[1.0] * len(own),
    )
    x, y = (INFO(name, onnx.TensorProto.FLOAT, ["n", 1]) for name in "xy")
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([tree], "tree", [x], [y])
    proto = helper.make_model(graph, ir_version=10, opset_imports=opsets)
    plugin = cpu.create_plugin("CPU", offered, {})
    network = Network.from_bytes(proto.SerializeToString())
    assert not plugin.query_network(network, {}).unsupported
