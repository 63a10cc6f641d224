"""How many texts the layers of a network may keep in the server's process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from headrace.plugins import cpu
from headrace.plugins.cpu.backend.session import Provider, SessionSettings, open_model
from headrace.runtime.device.load import Load
from headrace.runtime.device.services import Services
from headrace.runtime.errors import UnsupportedLayers
from headrace.testing.case import network_of, parse
from headrace.testing.infer_request import InferRequest, infer_once
from tests.support.long_lists import encoder, labels, network, terms, tree, words

MOST = 100_000
STRING, INT64 = onnx.TensorProto.STRING, onnx.TensorProto.INT64


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
    return calling({"keys_strings": names, "values_strings": names}, 5)


def passed_on(count: int) -> onnx.ModelProto:
    """A function that keeps two lists that each call passes on, and calls of it."""
    names = words(2500)
    calls = count // 5000 - 1
    made = calling({"keys_strings": "list", "values_strings": "list"}, calls, names=names)
    left = count - 5000 * calls
    made.graph.node.append(encoder(left, "other"))
    made.graph.output.append(helper.make_tensor_value_info("other", INT64, None))
    return made


def constants(count: int) -> onnx.ModelProto:
    """Constants in a function, whose texts lie side by side. They count for an eighth."""
    tensor = numpy_helper.from_array(np.array(words(count), object))
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    both = helper.make_node("Concat", ["x", "c"], ["y"], axis=0)
    return calls_of([constant, both], 8)


def long_texts(count: int) -> onnx.ModelProto:
    """Texts of which each counts twice."""
    names = [f"{at:512}" for at in range(count // 2)]
    numbers = [*range(len(names))]
    layer = helper.make_node(
        "LabelEncoder",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        keys_strings=names,
        values_int64s=numbers,
    )
    return network([layer], STRING, INT64)


def categories(count: int) -> onnx.ModelProto:
    """The numbers are kept as texts are."""
    layer = helper.make_node(
        "CategoryMapper",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        cats_strings=words(count // 2),
        cats_int64s=[*range(count // 2)],
    )
    return network([layer], STRING, INT64)


def calling(
    attributes: Mapping[str, Any], times: int, names: Sequence[str] = ()
) -> onnx.ModelProto:
    """Calls of a function with one LabelEncoder, in a row. A text stands for what they pass on."""
    layer = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml")
    for name, given in attributes.items():
        if isinstance(given, str):
            kind = onnx.AttributeProto.STRINGS
            layer.attribute.add(name=name, type=kind, ref_attr_name=given)
        else:
            layer.attribute.append(helper.make_attribute(name, given))
    return calls_of([layer], times, **({"list": names} if names else {}))


def calls_of(nodes: Sequence[onnx.NodeProto], times: int, **passed: Any) -> onnx.ModelProto:
    """Calls of a function of the nodes, in a row."""
    opsets = [helper.make_opsetid("ai.onnx.ml", 4), helper.make_opsetid("", 18)]
    function = helper.make_function(
        "own", "Encode", ["x"], ["y"], nodes, opsets, attributes=[*passed]
    )
    values = ["x", *(f"v{at}" for at in range(times))]
    calls = [
        helper.make_node("Encode", [i], [o], domain="own", **passed) for i, o in pairwise(values)
    ]
    lengths = helper.make_node("Shape", values[-1:], ["y"])
    return network([*calls, lengths], STRING, INT64, [function])


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "lists": labels,
    "tensors": in_tensors,
    "terms": terms,
    "terms of numbers": lambda count: terms(count, numbers=True),
    "several layers": several,
    "calls of a function": called,
    "lists that calls pass on": passed_on,
    "constants of functions": constants,
    "long texts": long_texts,
    "categories": categories,
}


@pytest.mark.parametrize(
    "name",
    [
        "lists",
        *(pytest.param(name, marks=pytest.mark.long) for name in MODELS if name != "lists"),
    ],
)
def test_a_network_keeps_no_more_texts_than_are_freed_at_once(offered: Services, name: str) -> None:
    plugin = cpu.create_plugin("CPU", offered, {"ISOLATION": "NONE"})
    most = network_of(MODELS[name](MOST))
    assert not plugin.query_network(most, {}).unsupported
    more = network_of(MODELS[name](MOST + 80))
    unsupported = plugin.query_network(more, {}).unsupported
    assert {layer.reason for layer in unsupported} == {
        "the network's layers keep 100,080 texts and n-grams, and freeing them would stop the "
        "server's other threads; more than 100,000 run in a process of their own, unless the "
        "device has ISOLATION=NONE"
    }
    with pytest.raises(UnsupportedLayers, match="100,080 texts"):
        plugin.load_network(Load(more))


@pytest.mark.long
def test_a_network_that_keeps_more_runs_in_a_process_of_its_own(offered: Services) -> None:
    plugin = cpu.create_plugin("CPU", offered, {})
    try:
        compiled = plugin.load_network(Load(network_of(labels(MOST + 1))))
        assert compiled.process == "worker"
        compiled.close()
    finally:
        plugin.close()


def test_in_a_process_of_its_own_the_device_keeps_any_number(offered: Services) -> None:
    plugin = cpu.create_plugin("CPU", replace(offered, isolated=True), {})
    given = network_of(labels(MOST + 1))
    found = infer_once(plugin, given, np.array(words(MOST + 1)[-1:], object))
    assert np.asarray(found["y"]).tolist() == [MOST]


def test_the_activations_of_a_recurrent_layer_are_no_texts(offered: Services) -> None:
    plugin = cpu.create_plugin("CPU", offered, {})
    weights = {"w": np.ones((1, 8, 3), np.float32), "r": np.ones((1, 8, 2), np.float32)}
    text = """lstm (float[a,b,3] v) => (float[a,c,b,2] t) {
        t = LSTM<hidden_size = 2, activations = ["Sigmoid", "Tanh", "Tanh"]>(v, w, r)
    }"""
    many, recurrent = labels(MOST), parse(text, weights)
    many.graph.node.extend(recurrent.graph.node)
    many.graph.initializer.extend(recurrent.graph.initializer)
    many.graph.input.extend(recurrent.graph.input)
    many.graph.output.extend(recurrent.graph.output)
    assert not plugin.query_network(network_of(many), {}).unsupported


def test_a_function_that_keeps_texts_may_have_another_operator_set(offered: Services) -> None:
    """Such a function cannot be inlined."""
    layer = helper.make_node(
        "CategoryMapper",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        cats_strings=["a", "b"],
        cats_int64s=[1, 2],
    )
    opsets = [helper.make_opsetid("ai.onnx.ml", 2)]
    function = helper.make_function("own", "Map", ["x"], ["y"], [layer], opsets)
    call = helper.make_node("Map", ["x"], ["y"], domain="own")
    given = network_of(network([call], STRING, INT64, [function]))
    compiled = cpu.create_plugin("CPU", offered, {}).load_network(Load(given))
    found = InferRequest(compiled).infer({"x": np.array(["b", "a"], object)})
    compiled.close()
    assert np.asarray(found["y"]).tolist() == [2, 1]


def test_a_function_may_call_another_that_is_named_as_an_operator_is() -> None:
    """Such a call has no attribute `to`."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    inner = helper.make_function(
        "own", "Cast", ["x"], ["y"], [helper.make_node("Shape", ["x"], ["y"])], opsets[:1]
    )
    outer = helper.make_function(
        "own",
        "Encode",
        ["x"],
        ["y"],
        [helper.make_node("Cast", ["x"], ["y"], domain="own")],
        opsets,
    )
    call = helper.make_node("Encode", ["x"], ["y"], domain="own")
    given = network_of(network([call], STRING, INT64, [inner, outer]))
    assert open_model(given.model, Provider(), SessionSettings())


GROWN = {
    "a weight": "g (int64[1] s) => (int64[1] y) { t = Expand(w, n) y = Shape(t) }",
    "a cast": """g (int64[1] s) => (int64[1] y) {
        t = Cast<to = 8>(o)
        u = Expand(t, n)
        y = Shape(u)
    }""",
}


@pytest.mark.parametrize("name", GROWN)
def test_no_texts_are_made_of_constants_before_the_first_run(name: str, tmp_path: Path) -> None:
    """The session's end would free them one by one."""
    weights = {
        "w": np.array(["a text that has memory of its own"], object),
        "o": np.ones(1, np.int64),
        "n": np.array([700_000]),
    }
    given = network_of(GROWN[name], weights)
    rewritten = tmp_path / "rewritten.onnx"
    open_model(given.model, Provider(), SessionSettings(optimized_path=rewritten))
    kept = onnx.load(rewritten).graph
    assert "Expand" in [node.op_type for node in kept.node]


def test_the_nodes_of_a_tree_are_no_texts(offered: Services) -> None:
    """Their kinds are texts, which are kept as numbers."""
    plugin = cpu.create_plugin("CPU", offered, {})
    given = network_of(tree(MOST + 1))
    assert not plugin.query_network(given, {}).unsupported
