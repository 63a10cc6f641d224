"""How many texts the layers of a network may keep in the server's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

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
from tests.support.long_lists import encoder, labels, network, terms, tree, words

MOST = 100_000
STRING, INT64 = onnx.TensorProto.STRING, onnx.TensorProto.INT64


@pytest.fixture
def offered() -> Iterator[Services]:
    with services() as offered:
        yield offered


def in_tensors(count: int) -> onnx.ModelProto:
    layer = helper.make_node(
        "LabelEncoder",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        keys_tensor=numpy_helper.from_array(np.array(words(count), object)),
        values_tensor=numpy_helper.from_array(np.arange(count)),
    )
    return network([layer], STRING, INT64)


def several(count: int) -> onnx.ModelProto:
    last = helper.make_node("Add", ["a", "b"], ["y"])
    layers = [encoder(count // 2, "a"), encoder(count - count // 2, "b"), last]
    return network(layers, STRING, INT64)


def called(count: int) -> onnx.ModelProto:
    """A function that keeps a fifth of the texts, and five calls of it."""
    names = words(count // 10)
    layer = helper.make_node(
        "LabelEncoder",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        keys_strings=names,
        values_strings=names,
    )
    opsets = [helper.make_opsetid("ai.onnx.ml", 4)]
    function = helper.make_function("own", "Encode", ["x"], ["y"], [layer], opsets)
    values = ["x", "a", "b", "c", "d", "e"]
    calls = [helper.make_node("Encode", [i], [o], domain="own") for i, o in pairwise(values)]
    lengths = helper.make_node("Shape", ["e"], ["y"])
    return network([*calls, lengths], STRING, INT64, [function])


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "lists": labels,
    "tensors": in_tensors,
    "terms": terms,
    "terms of numbers": lambda count: terms(count, numbers=True),
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
    given = Network.from_bytes(labels(MOST + 1).SerializeToString())
    compiled = plugin.load_network(Load(given))
    found = InferRequest(compiled).infer({"x": np.array(words(MOST + 1)[-1:], object)})
    compiled.close()
    assert np.asarray(found["y"]).tolist() == [MOST]


def test_the_nodes_of_a_tree_are_no_texts(offered: Services) -> None:
    """Their kinds are texts, which are kept as numbers."""
    plugin = cpu.create_plugin("CPU", offered, {})
    given = Network.from_bytes(tree(MOST + 1).SerializeToString())
    assert not plugin.query_network(given, {}).unsupported
