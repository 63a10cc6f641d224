"""Hostile and broken models, each refused with the field and what to do about it."""

from __future__ import annotations

import errno
import os
import random
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from headrace.protobuf.fields import header
from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake.limits import Limits
from headrace.runtime.network.network import Network
from headrace.runtime.system.mapped_files import MappedFiles
from headrace.runtime.transform.transform import transform_network
from headrace.testing.case import network_of
from tests.support.model_zoo import (
    FLOAT,
    INT64,
    branches,
    chain,
    function,
    graph,
    image_network,
    model,
    node,
    run,
    value,
)
from tests.support.scrambled import plain, scrambled


def refusal(data: bytes | onnx.ModelProto, limits: Limits | None = None) -> str:
    """Why the model is refused."""
    raw = data if isinstance(data, bytes) else data.SerializeToString()
    with pytest.raises(InvalidModel) as caught:
        Network.from_bytes(raw, limits or Limits())
    assert caught.value.field == "model"
    return caught.value.message


def changed(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    proto = image_network()
    change(proto)
    return proto


def changed_branches(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    proto = branches()
    change(proto)
    return proto


def weight_with(change: Callable[[TensorProto], object]) -> onnx.ModelProto:
    return changed(lambda proto: change(proto.graph.initializer[0]))


def set_dims(*dims: int) -> Callable[[TensorProto], None]:
    def change(tensor: TensorProto) -> None:
        del tensor.dims[:]
        tensor.dims.extend(dims)

    return change


def calls(name: str, times: int = 2) -> list[onnx.NodeProto]:
    """`times` calls of a function, one after the other."""
    places = ["a", *(f"m{at}" for at in range(times - 1)), "b"]
    return [node(name, [places[at]], [places[at + 1]], domain="f") for at in range(times)]


def nested(levels: int, times: int = 2) -> onnx.ModelProto:
    """Functions that each call the next `times` times."""
    functions = [function("f0", [node("Relu", ["a"], ["b"])])]
    functions += [function(f"f{at}", calls(f"f{at - 1}", times)) for at in range(1, levels)]
    nodes = [node(f"f{levels - 1}", ["x"], ["y"], domain="f")]
    return model(nodes, [value("x")], [value("y")], functions=functions, domains=["f"])


BROKEN: dict[str, tuple[bytes | onnx.ModelProto, str]] = {
    "no bytes": (b"", "is empty"),
    "text": (b"this is not a model, it is a sentence", "not a serialised ONNX model"),
    "no graph": (b"\x08\x08", "has no graph"),
    "no output": (changed(lambda p: p.graph.ClearField("output")), "has no output"),
    "too new an IR version": (changed(lambda p: setattr(p, "ir_version", 99)), "IR version is 99"),
    "no IR version": (changed(lambda p: p.ClearField("ir_version")), "IR version is 0"),
    "too new an opset": (
        changed(lambda p: setattr(p.opset_import[0], "version", 999)),
        "opset 999",
    ),
    "no opset": (changed(lambda p: p.ClearField("opset_import")), "add one"),
    "a domain without opset": (
        changed(lambda p: setattr(p.graph.node[0], "domain", "other")),
        "'other'",
    ),
    "no operator": (changed(lambda p: p.graph.node[0].ClearField("op_type")), "no operator"),
    "a missing input": (
        changed(lambda p: p.graph.node[1].input.append("nowhere")),
        "reads 'nowhere'",
    ),
    "a value with two producers": (
        changed(lambda p: p.graph.node[1].output.append("c1")),
        "more than one producer",
    ),
    "an output that nothing produces": (
        changed(lambda p: setattr(p.graph.output[0], "name", "z")),
        "'z'",
    ),
    "an input twice": (changed(lambda p: p.graph.input.add().CopyFrom(p.graph.input[0])), "twice"),
    "an input without type": (changed(lambda p: p.graph.input[0].ClearField("type")), "no type"),
    "an input of an unknown type": (
        changed(lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", 99)),
        "element type 99",
    ),
    "a map": (
        changed(lambda p: p.graph.input[0].type.map_type.SetInParent()),
        "map",
    ),
    "a negative dimension": (
        changed(lambda p: setattr(p.graph.input[0].type.tensor_type.shape.dim[2], "dim_value", -8)),
        "negative dimension -8",
    ),
    "too many axes": (
        changed(lambda p: [p.graph.input[0].type.tensor_type.shape.dim.add() for _ in range(500)]),
        "at most 64",
    ),
    "a weight of too many axes": (weight_with(set_dims(*[1] * 65, 108)), "has 66 axes"),
    "a cycle": (
        model(
            [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"])],
            [value("x")],
            [value("b")],
        ),
        "cycle",
    ),
    "a weight with a negative dimension": (weight_with(set_dims(-4, 27)), "negative dimension"),
    "a weight that overflows": (weight_with(set_dims(2**62, 2**62)), "too many"),
    "a weight larger than its data": (weight_with(set_dims(5, 3, 3, 3)), "needs 540 bytes"),
    "a weight without data": (weight_with(lambda t: t.ClearField("raw_data")), "float_data"),
    "a weight in two fields": (
        weight_with(lambda t: t.uint64_data.append(1)),
        "initialiser 'w1' has its elements in raw_data, but also data in uint64_data; clear it",
    ),
    "a number in two fields": (
        weight_with(
            lambda t: t.CopyFrom(
                TensorProto(name="w1", data_type=1, float_data=[1.0], int32_data=[1])
            )
        ),
        "has its elements in float_data, but also data in int32_data; clear it",
    ),
    "a weight of an unknown type": (
        weight_with(lambda t: setattr(t, "data_type", 77)),
        "data type 77",
    ),
    "a weight without a name": (weight_with(lambda t: t.ClearField("name")), "no name"),
    "a weight twice": (weight_with(lambda t: setattr(t, "name", "b1")), "twice"),
    "a weight of another shape than its input": (
        changed(lambda p: p.graph.input.append(value("w1", (4, 3, 2, 3)))),
        "'w1' is FLOAT[4, 3, 3, 3], but the input",
    ),
    "a weight of another rank than its input": (
        changed(lambda p: p.graph.input.append(value("b1", (4, 1)))),
        "'b1' is FLOAT[4], but the input",
    ),
    "a weight of another type than its input": (
        changed(lambda p: p.graph.input.append(value("b1", (4,), INT64))),
        "'b1' is FLOAT[4], but the input",
    ),
    "a sparse weight beside a dense one": (
        changed(lambda p: p.graph.sparse_initializer.add().values.CopyFrom(p.graph.initializer[0])),
        "'w1' occurs twice",
    ),
    "a recursive function": (
        model(
            [node("loop", ["x"], ["y"], domain="f")],
            [value("x")],
            [value("y")],
            functions=[function("loop", calls("loop", 1))],
            domains=["f"],
        ),
        "calls itself",
    ),
    "functions that explode": (nested(40), "nodes once its functions are inlined"),
    "functions nested deeply": (nested(100, times=1), "deep"),
    "an attribute without type": (
        changed(lambda p: p.graph.node[0].attribute[0].ClearField("type")),
        "no known type",
    ),
    "an attribute without a name": (
        changed(lambda p: p.graph.node[0].attribute[0].ClearField("name")),
        "layer 'c1' has an attribute without a name",
    ),
    "an attribute twice": (
        changed(lambda p: p.graph.node[0].attribute.add().CopyFrom(p.graph.node[0].attribute[0])),
        "an attribute twice",
    ),
    "a Scan without a body": (
        model([node("Scan", ["x"], ["y"], num_scan_inputs=1)], [value("x")], [value("y")]),
        "layer 'y' lacks the attribute 'body' of Scan",
    ),
    "an If without a branch": (
        changed_branches(lambda p: p.graph.node[1].attribute.pop()),
        "lacks the attribute 'then_branch' of If",
    ),
    "a Cast to nothing": (
        model([node("Cast", ["x"], ["y"])], [value("x")], [value("y")]),
        "lacks the attribute 'to' of Cast",
    ),
    "a Cast to a text": (
        model([node("Cast", ["x"], ["y"], to="float")], [value("x")], [value("y")]),
        "attribute 'to' of layer 'y' has the type STRING, and Cast takes INT",
    ),
    "a Concat along several axes": (
        model([node("Concat", ["x", "x"], ["y"], axis=[0])], [value("x")], [value("y")]),
        "attribute 'axis' of layer 'y' has the type INTS, and Concat takes INT",
    ),
    "a Concat along an axis that no tensor has": (
        model([node("Concat", ["x", "x"], ["y"], axis=-(2**31))], [value("x")], [value("y")]),
        "attribute 'axis' of layer 'y' is -2147483648; it must be -64 to 64",
    ),
    "a DepthToSpace by a number that is 0 in 64 bits, once squared": (
        model([node("DepthToSpace", ["x"], ["y"], blocksize=2**32)], [value("x")], [value("y")]),
        "attribute 'blocksize' of layer 'y' is 4294967296; it must be 1 to 2147483647",
    ),
    "a ConvTranspose of no groups": (
        model([node("ConvTranspose", ["x", "x"], ["y"], group=0)], [value("x")], [value("y")]),
        "attribute 'group' of layer 'y' is 0; it must be 1 to 2147483647",
    ),
    "a Scan over more sequences than it gets": (
        model(
            [
                node(
                    "Scan", ["x"], ["y"], num_scan_inputs=2, body=helper.make_graph([], "b", [], [])
                )
            ],
            [value("x")],
            [value("y")],
        ),
        "attribute 'num_scan_inputs' of layer 'y' is 2; it must be 1 to 1",
    ),
    "a Constant of nothing": (
        model([node("Constant", [], ["y"])], [], [value("y")]),
        "layer 'y' needs exactly one attribute, its value",
    ),
    "a Constant of two values": (
        model([node("Constant", [], ["y"], value_int=1, value_float=1.0)], [], [value("y")]),
        "layer 'y' needs exactly one attribute, its value",
    ),
    "a Constant of something else": (
        model([node("Constant", [], ["y"], number=1)], [], [value("y")]),
        "layer 'y' needs exactly one attribute, its value",
    ),
    "a Constant of a number that is a text": (
        model([node("Constant", [], ["y"], value_int="a")], [], [value("y")]),
        "attribute 'value_int' of layer 'y' has the type STRING, and Constant takes INT",
    ),
    "a Split into fewer parts": (
        model(
            [node("Split", ["x"], ["y", "z"], num_outputs=1)],
            [value("x")],
            [value("y"), value("z")],
        ),
        "layer 'y' has 2 outputs, but num_outputs is 1",
    ),
    "a Split into more parts": (
        model([node("Split", ["x"], ["y"], num_outputs=2)], [value("x")], [value("y")]),
        "layer 'y' has 1 outputs, but num_outputs is 2",
    ),
    "a Split by lengths and a number": (
        model(
            [node("Split", ["x", "s"], ["y"], num_outputs=1)],
            [value("x"), value("s")],
            [value("y")],
        ),
        "layer 'y' has the input split and the attribute num_outputs; drop one",
    ),
    "a Split by nothing": (
        model([node("Split", ["x", ""], ["y"])], [value("x")], [value("y")], opset=18),
        "layer 'y' has neither the input split nor the attribute num_outputs; add one",
    ),
    "a MaxPool of nothing": (
        model([node("MaxPool", [], ["y"], kernel_shape=[2, 2])], [value("x")], [value("y")]),
        "layer 'y' lacks the input 'X' of MaxPool",
    ),
    "a Gemm without its first factor": (
        model([node("Gemm", ["", "x"], ["y"])], [value("x")], [value("y")]),
        "layer 'y' lacks the input 'A' of Gemm",
    ),
    "a Concat of nothing": (
        model([node("Concat", [], ["y"], axis=0)], [value("x")], [value("y")]),
        "layer 'y' lacks the input 'inputs' of Concat",
    ),
    "a Relu with two outputs": (
        model([node("Relu", ["x"], ["y", "z"])], [value("x")], [value("y"), value("z")]),
        "layer 'y' has 2 outputs, but Relu makes 1 here",
    ),
    "a function's attribute outside": (
        changed(lambda p: setattr(p.graph.node[0].attribute[0], "ref_attr_name", "p")),
        "not in a function",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_model_is_refused_with_the_reason(kind: str) -> None:
    data, reason = BROKEN[kind]
    assert reason in refusal(data)


@pytest.mark.parametrize("shape", [(4,), ("N",), (None,), None])
def test_a_weight_may_be_the_default_of_an_input(shape: Any) -> None:
    network_of(changed(lambda p: p.graph.input.append(value("b1", shape))))


def test_a_body_must_produce_its_outputs_itself() -> None:
    proto = branches()
    proto.graph.node[1].attribute[1].g.output[0].name = "h"
    assert "Identity" in refusal(proto)


def test_a_body_must_not_read_what_its_own_layer_gives() -> None:
    proto = branches()
    proto.graph.node[1].attribute[0].g.node[0].input[0] = "y"
    assert "cycle" in refusal(proto)


def test_every_truncation_is_refused_or_a_model() -> None:
    raw = image_network().SerializeToString()
    for end in range(len(raw)):
        with suppress(InvalidModel):
            Network.from_bytes(raw[:end])


@settings(deadline=None)
@given(st.binary(max_size=200))
@example(b"abc")
def test_garbage_is_refused_and_the_place_that_is_named_is_in_it(data: bytes) -> None:
    with pytest.raises(InvalidModel) as caught:
        Network.from_bytes(data)
    for place in re.findall(r"near byte (\d+)", caught.value.message):
        assert int(place) < len(data)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_model_with_flipped_bytes_is_refused_or_can_be_transformed(seed: int) -> None:
    chance = random.Random(seed)
    raw = bytearray(chance.choice([image_network, branches, chain])().SerializeToString())
    for _ in range(chance.randrange(1, 4)):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    try:
        it = Network.from_bytes(bytes(raw))
    except InvalidModel:
        return
    Network.from_bytes(transform_network(it).to_bytes())


def test_what_a_model_says_of_devices_is_dropped() -> None:
    proto = chain()
    proto.ir_version = 11
    proto.configuration.add(name="two", num_devices=2)
    proto.graph.node[0].device_configurations.add()  # onnx-ir does not take an empty one
    proto.graph.node[1].device_configurations.add(configuration_id="two")
    read = onnx.load_from_string(network_of(proto).to_bytes())
    assert not read.configuration
    assert not any(each.device_configurations for each in read.graph.node)


def test_text_that_is_not_utf8_is_refused() -> None:
    raw = chain().SerializeToString().replace(b"Identity", b"Ident\xfft\xff")
    assert "UTF-8" in refusal(raw)


def test_models_within_their_limits_are_taken_and_those_beyond_are_not() -> None:
    raw = image_network().SerializeToString()
    exact = {
        "model_bytes": len(raw),
        "nodes": 8,
        "ports": 3,
        "tensors": 5,
        "tensor_bytes": 4 * (4 * 27 + 4 + 4 * 36 + 20 + 5),
        "name_length": len("GlobalAveragePool"),
    }
    Network.from_bytes(raw, Limits(**exact))
    for name, limit in exact.items():
        assert refusal(raw, Limits(**{name: limit - 1}))


def of_list(operator: str, domain: str = "", **attributes: Any) -> onnx.ModelProto:
    """A layer with attributes, beside a function that hands its attribute to a Transpose."""
    turn = node("Transpose", ["a"], ["b"])
    turn.attribute.add(name="perm", ref_attr_name="perm", type=onnx.AttributeProto.INTS)
    turning = function("turn", [turn])
    turning.attribute.append("perm")
    layer = node(operator, ["x"], ["y"], domain=domain, name="long", **attributes)
    proto = model([layer], [value("x")], [value("y", None)], functions=[turning], domains=["f"])
    proto.opset_import.add(domain="ai.onnx.ml", version=3)
    return proto


MANY = list(range(4097))
TOO_LONG = {
    "perm": of_list("Transpose", perm=MANY),
    "pads": of_list("MaxPool", kernel_shape=[2], pads=MANY),
    "activations": of_list("LSTM", activations=["Tanh"] * 4097),
    "unheard_of": of_list("Relu", unheard_of=[0.5] * 4097),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_list_has_no_more_values_than_a_layer_has_axes_inputs_or_outputs(name: str) -> None:
    assert f"attribute {name!r} of layer 'long' lists 4097 values; at most 4096" in refusal(
        TOO_LONG[name]
    )


def test_a_function_cannot_pass_on_a_longer_list() -> None:
    called = of_list("turn", "f", perm=MANY)
    assert "'perm' of layer 'long' lists 4097" in refusal(called)
    of_default = of_list("turn", "f")
    of_default.functions[0].attribute.remove("perm")
    default = helper.make_attribute("perm", MANY)
    of_default.functions[0].attribute_proto.append(default)
    assert "'perm' of function 'turn' lists 4097" in refusal(of_default)


@pytest.mark.parametrize(
    ("operator", "domain", "attributes"),
    [
        ("TfIdfVectorizer", "", {"pool_int64s": MANY, "ngram_indexes": MANY, "mode": "TF"}),
        ("StringNormalizer", "", {"stopwords": ["a"] * 4097}),
        ("LabelEncoder", "ai.onnx.ml", {"keys_strings": ["a"] * 4097, "values_int64s": MANY}),
        ("Own", "f", {"table": [0.5] * 4097}),
    ],
)
def test_vocabularies_and_trees_may_be_longer_up_to_a_bound(
    operator: str, domain: str, attributes: dict[str, Any]
) -> None:
    if operator == "TfIdfVectorizer":
        lengths = ("max_gram_length", "max_skip_count", "min_gram_length")
        attributes = attributes | {"ngram_counts": [0], **dict.fromkeys(lengths, 1)}
    proto = of_list(operator, domain, **attributes)
    network_of(proto)
    assert "lists 4097 values; at most 4096" in refusal(proto, Limits(list_length=4096))


def test_all_lists_and_tensors_together_have_a_bound_on_their_texts() -> None:
    texts = np.array(["a"] * 3, object)
    inner = node("Constant", [], ["b"], value=numpy_helper.from_array(texts))
    words = node("Constant", [], ["c"], value_strings=["a"] * 3)
    both = node("Concat", ["a", "b", "c"], ["y"], axis=0)
    output = value("y", (), TensorProto.STRING)
    proto = model([inner, words, both], [], [output], {"a": texts})
    assert Network.from_bytes(proto.SerializeToString(), Limits(texts=9))
    told = "holds 9 texts in lists and tensors, where a tree has one for each node; at most 8"
    assert told in refusal(proto, Limits(texts=8))


def test_graphs_may_be_nested_as_deep_as_the_limit() -> None:
    def deep(levels: int) -> onnx.ModelProto:
        body = graph([node("Relu", ["x"], ["t"])], outputs=[value("t")])
        for _ in range(levels):
            inner = node("If", ["flag"], ["t"], then_branch=body, else_branch=body)
            body = graph([inner], outputs=[value("t")])
        inputs = [value("x"), value("flag", (), TensorProto.BOOL)]
        return model(body.node, inputs, [value("t")])

    assert len(network_of(deep(4)).layers) == 31
    assert "nested" in refusal(deep(4), Limits(depth=3))


@pytest.mark.parametrize(
    "small",
    [
        b"\x0a\x00",  # a node without anything
        b"\x0a\x02\x2a\x00",  # with an attribute without anything
        b"\x5a\x02\x12\x00",  # an input with a type without anything
    ],
)
def test_many_empty_messages_are_refused_before_they_are_parsed(small: bytes) -> None:
    payload = small * 20_000
    length = len(payload)
    header = bytes([0x3A, length & 127 | 128, length >> 7 & 127 | 128, length >> 14])
    assert "protobuf fields" in refusal(header + payload, Limits(fields=10_000))


def test_packed_numbers_count_as_large_as_they_are_once_parsed() -> None:
    small = TensorProto(dims=[4000], data_type=INT64, name="w", int64_data=[1] * 4000)
    large = TensorProto(dims=[4000], data_type=INT64, name="w", int64_data=[2**62] * 4000)
    limits = Limits(structure_bytes=40_000)
    for weights in (small, large):
        proto = image_network()
        before = len(proto.SerializeToString())
        proto.graph.initializer.append(weights)
        assert before < 8_000
        Network.from_bytes(proto.SerializeToString(), limits)
        proto.graph.initializer[-1].int64_data.extend([1] * 1000)
        assert "besides its tensors' raw data" in refusal(proto.SerializeToString(), limits)


def test_layers_in_any_order_are_sorted() -> None:
    proto = image_network()
    reversed_nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(reversed_nodes)
    feeds = {"x": np.ones((1, 3, 8, 8), np.float32)}
    found, wanted = run(network_of(proto), feeds)["y"], run(image_network(), feeds)["y"]
    np.testing.assert_array_equal(found, wanted)


def one_of_each_tensor() -> onnx.ModelProto:
    """Large and small tensors, raw and typed, in the graph, a body, a function and attributes."""
    chance = np.random.default_rng(0)

    def tensor(name: str, size: int, *, raw: bool = True) -> TensorProto:
        values = chance.standard_normal(size).astype(np.float32)
        return helper.make_tensor(name, FLOAT, [size], values.tobytes() if raw else values, raw)

    def constant(size: int) -> onnx.NodeProto:
        return node("Constant", [], ["t"], value=tensor("", size))

    body = graph([constant(2000), node("Add", ["t", "large"], ["e"])], [], [value("e", [2000])])
    body.initializer.append(tensor("inner", 1500))
    nodes = [
        node("If", ["flag"], ["i"], then_branch=body, else_branch=body),
        node("f", ["i"], ["j"], domain="f"),
        node("Conv", ["x", "typed"], ["y"], pads=[1, 2, 3, 4], auto_pad="NOTSET"),
    ]
    own = function("f", [constant(3000), node("Add", ["a", "t"], ["b"])])
    inputs = [value("flag", [], TensorProto.BOOL), value("x", ("N", 2, None, 4))]
    proto = model(nodes, inputs, [value("j", None), value("y", None)], functions=[own])
    proto.opset_import.add(domain="f", version=1)
    proto.graph.initializer.append(tensor("large", 2000))
    proto.graph.initializer.append(tensor("typed", 9, raw=False))
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(300), "integers"))
    proto.graph.initializer.append(
        helper.make_tensor("int8", TensorProto.INT8, [3], np.array([1, -2, 3], np.int8))
    )
    return proto


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_model_is_read_as_protobuf_reads_it_however_its_fields_are_laid_out(seed: int) -> None:
    """In any order, with defaults, repeated scalars, packed or not, and messages in two pieces."""
    chance = random.Random(seed)
    proto = chance.choice([one_of_each_tensor, image_network, branches, chain])()
    data = scrambled(proto, chance)
    assert plain(onnx.ModelProto.FromString(data)) == plain(proto)
    read = onnx.ModelProto.FromString(Network.from_bytes(data).to_bytes())
    expected = onnx.ModelProto.FromString(network_of(proto).to_bytes())
    assert plain(read) == plain(expected)


def test_numbers_of_a_tensor_that_lie_in_several_pieces_are_refused() -> None:
    few, many = ([1] * count for count in (1, 8000))
    first = TensorProto(data_type=INT64, name="w", dims=[8001], int64_data=few)
    tensor = first.SerializeToString() + TensorProto(int64_data=many).SerializeToString()
    initializer = header(5, len(tensor)) + tensor
    raw = model([], [value("w", None, INT64)], [value("w", None, INT64)]).SerializeToString()
    raw += header(7, len(initializer)) + initializer
    assert "'w' has int64_data in several pieces" in refusal(raw)


def test_a_tensor_may_say_that_its_data_are_inline() -> None:
    proto = one_of_each_tensor()
    for tensor in proto.graph.initializer:
        tensor.data_location = TensorProto.DEFAULT
        tensor.external_data.add(key="location", value="elsewhere")  # which then does not count
    read = onnx.ModelProto.FromString(network_of(proto).to_bytes())
    found = {tensor.name: tensor for tensor in read.graph.initializer}
    assert not any(tensor.external_data for tensor in found.values())
    for tensor in proto.graph.initializer:
        expected = numpy_helper.to_array(tensor)
        np.testing.assert_array_equal(numpy_helper.to_array(found[tensor.name]), expected)


@pytest.mark.parametrize("imports", [[("", 17)], [("", 12), ("ai.onnx", 17)], [("ai.onnx", 17)]])
def test_the_last_import_of_a_domain_counts(imports: list[tuple[str, int]]) -> None:
    proto = changed(lambda p: p.ClearField("opset_import"))
    for domain, version in [*imports, *imports]:
        proto.opset_import.add(domain=domain, version=version)
    assert network_of(proto).model.opset_imports == {"": 17}


# -- external data --


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def save(folder: Path, **entries: str | int) -> Path:
    """A model y = x + w in `folder`, whose w (float32[4], at most) lies in a file."""
    proto = model([node("Add", ["x", "w"], ["y"])], [value("x", (4,))], [value("y", (4,))])
    weight = TensorProto(name="w", dims=[4], data_type=FLOAT, data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        weight.external_data.add(key=key, value=str(text))
    proto.graph.initializer.append(weight)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def file_refusal(path: Path, folder: Path) -> str:
    with pytest.raises(InvalidModel) as caught:
        Network.from_file(path, folder)
    assert caught.value.field == "model"
    assert str(folder.parent) not in caught.value.message, "where folders lie is not told"
    return caught.value.message


def test_external_data_in_the_folder_is_read_at_its_offset(folder: Path) -> None:
    weights = np.arange(8, dtype=np.float32)
    (folder / "w.bin").write_bytes(weights.tobytes())
    it = Network.from_file(save(folder, location="w.bin", offset=16, length=16), folder)
    feeds = {"x": np.zeros(4, np.float32)}
    np.testing.assert_array_equal(run(it, feeds)["y"], weights[4:])


def test_models_that_onnx_saves_with_external_data_are_read(folder: Path) -> None:
    proto = image_network()
    path = folder / "model.onnx"
    external_data_helper.convert_model_to_external_data(
        proto, size_threshold=0, location="weights.bin"
    )
    onnx.save(proto, path)
    it = Network.from_file(path, folder)
    weight = it.model.graph.initializers["w3"].const_value
    assert weight is not None
    expected = numpy_helper.to_array(image_network().graph.initializer[3])
    np.testing.assert_array_equal(weight.numpy(), expected)


def test_external_data_of_a_model_in_bytes_is_refused(folder: Path) -> None:
    (folder / "w.bin").write_bytes(bytes(16))
    message = refusal(save(folder, location="w.bin").read_bytes())
    assert "model repository" in message
    assert "inline" in message


def sent(path: Path, files: dict[str, bytes], *, spooled: bool = False) -> Network:
    return Network.from_bytes(path.read_bytes(), beside=files, spooled=spooled)


@pytest.mark.parametrize("spooled", [False, True])
@pytest.mark.parametrize("size", [8, 2**18])
def test_external_data_may_be_sent_with_the_model(folder: Path, size: int, spooled: bool) -> None:
    weights = np.arange(size, dtype=np.float32)
    path = save(folder, location="./sub/w.bin", offset=16, length=16)
    it = sent(path, {"sub/w.bin": weights.tobytes()}, spooled=spooled)
    feeds = {"x": np.zeros(4, np.float32)}
    np.testing.assert_array_equal(run(it, feeds)["y"], weights[4:8])


def test_a_file_that_many_tensors_share_is_kept_once(folder: Path) -> None:
    proto = onnx.ModelProto.FromString(save(folder, location="w.bin", length=16).read_bytes())
    names = [f"w{number}" for number in range(500)]
    for name in names:
        weight = proto.graph.initializer.add()
        weight.CopyFrom(proto.graph.initializer[0])
        weight.name = name
        weight.dims[0] = 2**18
        weight.external_data[1].value = str(2**20)
    sizes: list[int] = []
    map_file = MappedFiles.map

    def measured(self: MappedFiles, file: int) -> memoryview:
        sizes.append(os.fstat(file).st_size)
        return map_file(self, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MappedFiles, "map", measured)
        it = Network.from_bytes(
            proto.SerializeToString(), spooled=True, beside={"w.bin": bytes(2**20)}
        )
    assert it.weight_bytes > 500 * 2**20
    assert sizes == [2**20]
    with pytest.raises(InvalidModel, match="external files take more than 10000000 bytes"):
        Network.from_bytes(
            proto.SerializeToString(), Limits(model_bytes=10**7), beside={"w.bin": bytes(2**20)}
        )


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "was not sent"),
        ({"W.bin": bytes(16)}, "was not sent"),
        ({"w.bin": bytes(15)}, "which has 15"),
        ({"w.bin": bytes(16), "more.bin": b""}, "no weights of the model lie in the file 'more.b"),
        ({"w.bin": bytes(16), "../w.bin": b""}, "without '..'"),
        ({"w.bin": bytes(16), "/w.bin": b""}, "without '..'"),
        ({"w.bin": bytes(16), "": b""}, "without '..'"),
    ],
)
def test_files_that_do_not_fit_the_model_are_refused(
    folder: Path, files: dict[str, bytes], why: str
) -> None:
    with pytest.raises(InvalidModel) as caught:
        sent(save(folder, location="w.bin", length=16), files)
    assert why in caught.value.message


@pytest.mark.parametrize("location", ["../w.bin", "/w.bin", "sub/../../w.bin", "\0model", "."])
def test_a_model_with_files_names_none_outside(folder: Path, location: str) -> None:
    with pytest.raises(InvalidModel, match=r"without '\.\.'"):
        sent(save(folder, location=location, length=16), {"w.bin": bytes(16)})


def test_no_location_stands_for_the_bytes_of_the_model(folder: Path) -> None:
    path = save(folder, location="\0model", length=16)
    assert "does not have" in refusal(path.read_bytes())
    assert "must be named relative" in file_refusal(path, folder)


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "../secret"},
        {"location": "sub/../../secret"},
        {"location": "/etc/passwd"},
        {"location": "link"},
        {"location": "outside/secret"},
        {"location": "missing"},
        {"location": "sub"},
        {"location": "pipe"},
        {"location": "loop"},
        {"location": "a" * 300},
        {"location": "w.bin", "offset": 1},
        {"location": "w.bin", "offset": -4},
        {"location": "w.bin", "offset": "9" * 30},
        {"location": "w.bin", "offset": "four"},
        {"location": "w.bin", "length": 8},
        {"location": "w.bin", "length": 32},
        {"location": "w.bin", "surprise": 1},
        {"location": "a" * 5000},
        {"offset": 0},
    ],
)
def test_external_data_elsewhere_or_beyond_is_refused(
    folder: Path, entries: dict[str, str | int]
) -> None:
    (folder.parent / "secret").write_bytes(bytes(16))
    (folder / "link").symlink_to(folder.parent / "secret")
    (folder / "outside").symlink_to(folder.parent)
    (folder / "loop").symlink_to("loop")
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "w.bin").write_bytes(bytes(16))
    assert file_refusal(save(folder, **entries), folder)


def test_a_model_file_that_leads_out_of_its_folder_is_refused(folder: Path) -> None:
    outside = folder.parent / "other.onnx"
    outside.write_bytes(chain().SerializeToString())
    (folder / "model.onnx").symlink_to(outside)
    assert "leads out" in file_refusal(folder / "model.onnx", folder)


@pytest.mark.parametrize("name", ["w.bin", "model.onnx"])
def test_a_file_that_may_not_be_read_is_refused_by_the_name_it_has_in_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (folder / "w.bin").write_bytes(bytes(16))
    path = save(folder, location="w.bin")
    opened = Path.open

    def denied(self: Path, *arguments: Any, **named: Any) -> Any:
        if self.name == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return opened(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", denied)
    assert f"{name!r}" in file_refusal(path, folder)
    assert file_refusal(path, folder).endswith("cannot be read: Permission denied")


def test_a_model_file_that_is_not_there_or_leads_to_itself_is_refused(folder: Path) -> None:
    assert "cannot be read: No such file" in file_refusal(folder / "model.onnx", folder)
    (folder / "model.onnx").symlink_to("model.onnx")
    assert "cannot be read: Too many levels" in file_refusal(folder / "model.onnx", folder)


def test_inline_data_beside_external_data_is_refused(folder: Path) -> None:
    proto = onnx.ModelProto.FromString(save(folder, location="w.bin").read_bytes())
    proto.graph.initializer[0].raw_data = bytes(16)
    assert "inline" in refusal(proto)


def test_strings_must_be_utf8_in_operators_of_onnx() -> None:
    proto = model(
        [helper.make_node("Resize", ["x"], ["y"], mode=b"\xff\xfe")], [value("x")], [value("y")]
    )
    assert "UTF-8" in refusal(proto)
