"""Ports, layer names, clones and bytes of a network."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from headrace.runtime.network.network import Network, Port
from headrace.testing.case import network_of
from tests.support.model_zoo import FLOAT, branches, chain, image_network, model, node, run, value


def names(*nodes: onnx.NodeProto) -> tuple[str, ...]:
    return network_of(model(nodes, [value("x")], [value("y")])).layer_names


def test_inputs_that_an_initialiser_gives_a_value_are_no_ports() -> None:
    nodes = [node("Add", ["x", "w"], ["y"])]
    weight = {"w": np.zeros((2, 3), np.float32)}
    it = network_of(model(nodes, [value("x"), value("w")], [value("y")], weight))
    assert [port.name for port in it.inputs] == ["x"]


def test_a_port_tells_fixed_named_and_unknown_dimensions_apart() -> None:
    it = network_of(
        model([node("Relu", ["x"], ["y"])], [value("x", (1, "N", None))], [value("y", None)])
    )
    assert it.inputs == (Port("x", ir.DataType.FLOAT, (1, "N", None)),)
    assert it.outputs[0].shape is None


def test_minus_one_is_an_unknown_dimension() -> None:
    relu = model([node("Relu", ["x"], ["y"])], [value("x", (-1, 3))], [value("y", (-1, 3))])
    assert network_of(relu).inputs[0].shape == (None, 3)


def test_sequences_and_optionals_are_ports_of_their_kind() -> None:
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, (2,)))
    kinds = {"s": sequence, "o": helper.make_optional_type_proto(sequence)}
    proto = model(
        [node("Identity", [name], [f"{name}2"]) for name in kinds],
        [helper.make_value_info(name, kind) for name, kind in kinds.items()],
        [helper.make_value_info(f"{name}2", kind) for name, kind in kinds.items()],
    )
    plain, optional = network_of(proto).inputs
    assert (plain.kind, plain.optional, plain.dtype, plain.shape) == (
        "sequence",
        False,
        ir.DataType.FLOAT,
        (2,),
    )
    assert (optional.kind, optional.optional) == ("sequence", True)


def test_a_unique_name_is_kept() -> None:
    assert names(node("Relu", ["x"], ["y"], name="first")) == ("first",)


def test_an_unnamed_layer_takes_its_first_output_that_is_not_empty() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Dropout", ["a"], ["y", "mask"])]
    assert names(*nodes) == ("a", "y")


def test_layers_of_one_name_take_their_outputs() -> None:
    nodes = [node("Relu", ["x"], ["a"], name="r"), node("Relu", ["a"], ["y"], name="r")]
    assert names(*nodes) == ("a", "y")


def test_a_name_that_is_taken_gets_a_number() -> None:
    nodes = [node("Relu", ["x"], ["a"], name="y"), node("Relu", ["a"], ["y"])]
    assert names(*nodes) == ("y", "y#2")


def test_layers_in_bodies_are_called_after_the_layer_and_the_branch() -> None:
    assert set(network_of(branches()).layer_names) == {
        "h",
        "if",
        "if/then_branch/t",
        "if/else_branch/e",
    }


layer_names = st.lists(st.sampled_from(["", "a", "b", "v0", "v1", "v1#2", "v2/x"]), max_size=12)


@settings(deadline=None)
@given(layer_names)
def test_every_layer_has_one_name_and_keeps_it_from_then_on(given_names: list[str]) -> None:
    nodes = [
        node("Relu", [f"v{at}"], [f"v{at + 1}"], name=name) for at, name in enumerate(given_names)
    ]
    last = f"v{len(given_names)}"
    if not nodes:
        nodes = [node("Relu", ["v0"], [last := "out"])]
    first = network_of(model(nodes, [value("v0")], [value(last)]))
    assert len(set(first.layer_names)) == len(nodes)
    assert all(first.layer_names)
    for name, own in zip(first.layer_names, given_names, strict=False):
        if own and given_names.count(own) == 1:
            assert name == own
    assert Network.from_bytes(first.to_bytes()).layer_names == first.layer_names


def test_our_own_metadata_is_dropped_and_the_callers_kept() -> None:
    proto = chain()
    for owner in (proto, proto.graph, proto.graph.node[0], proto.graph.input[0]):
        owner.metadata_props.add(key="headrace.origins", value="[]")
        owner.metadata_props.add(key="headrace.layout", value="NHWC")
        owner.metadata_props.add(key="affinity", value="CPU")
    it = network_of(proto)
    assert it.layers[0].origins == ()
    assert it.inputs[0].layout == ""
    first = next(it.nodes())
    assert dict(first.metadata_props) == {"affinity": "CPU"}
    assert dict(it.model.metadata_props) == {"affinity": "CPU"}


def test_a_clone_shares_weights_and_nothing_else() -> None:
    it = network_of(image_network())
    clone = it.clone()
    weight = clone.model.graph.initializers["w3"].const_value
    assert weight is it.model.graph.initializers["w3"].const_value
    next(clone.nodes()).name = "changed"
    assert next(it.nodes()).name == "c1"


@pytest.mark.parametrize("size", [1, 64 * 64])
def test_bytes_hold_the_weights_inline(size: int) -> None:
    weight = np.arange(size, dtype=np.float32)
    nodes = [node("Add", ["x", "w"], ["y"])]
    proto = model(nodes, [value("x", (1,))], [value("y", (size,))], {"w": weight})
    again = onnx.ModelProto.FromString(network_of(proto).to_bytes())
    onnx.checker.check_model(again)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(again.graph.initializer[0]), weight)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float8_e4m3fn", "complex64", "bool", "int4"]
)
def test_large_weights_of_every_type_survive(dtype: str) -> None:
    wanted = ir.DataType[{"float8_e4m3fn": "FLOAT8E4M3FN"}.get(dtype, dtype.upper())]
    array = (np.arange(32768) % 2).astype(wanted.numpy())
    weight = ir.serde.serialize_tensor(ir.Tensor(array, dtype=wanted, name="w"))
    proto = model([node("Shape", ["w"], ["y"])], [], [value("y", (1,), onnx.TensorProto.INT64)])
    proto.graph.initializer.append(weight)
    first = network_of(proto)
    again = Network.from_bytes(first.to_bytes())
    for it in (first, again):
        held = it.model.graph.initializers["w"].const_value
        assert held is not None
        assert held.dtype == wanted
        assert held.numpy().tobytes() == array.tobytes()


def test_weights_are_views_of_the_bytes_they_came_in() -> None:
    weight = {"w": np.ones((64, 64), np.float32)}
    data = model(
        [node("MatMul", ["x", "w"], ["y"])], [value("x", (1, 64))], [value("y", (1, 64))], weight
    )
    raw = data.SerializeToString()
    held = Network.from_bytes(raw).model.graph.initializers["w"].const_value
    assert held is not None
    assert np.shares_memory(held.numpy(), np.frombuffer(raw, np.uint8))


def test_large_tensors_in_attributes_and_bodies_are_found_again() -> None:
    big = onnx.numpy_helper.from_array(np.full((2, 600), 2, np.float32), "c")
    then = model([node("Constant", [], ["t"], value=big)], [], [value("t", (2, 600))]).graph
    other = model([node("Identity", ["k"], ["e"])], [], [value("e", (2, 600))]).graph
    proto = model(
        [
            node("Constant", [], ["k"], value=big),
            node("If", ["flag"], ["y"], then_branch=then, else_branch=other),
        ],
        [value("flag", (), onnx.TensorProto.BOOL)],
        [value("y", (2, 600))],
    )
    it = network_of(proto)
    for flag in (True, False):
        feeds = {"flag": np.array(flag)}
        np.testing.assert_array_equal(run(it, feeds)["y"], run(proto, feeds)["y"])


def test_a_network_computes_what_its_model_computes() -> None:
    proto = image_network()
    feeds = {"x": np.random.default_rng(2).standard_normal((2, 3, 8, 8)).astype(np.float32)}
    np.testing.assert_array_equal(run(network_of(proto), feeds)["y"], run(proto, feeds)["y"])


def test_the_digest_is_that_of_the_bytes() -> None:
    it = network_of(image_network())
    assert it.digest == hashlib.sha256(it.to_bytes()).hexdigest()
    assert Network.from_bytes(it.to_bytes()).digest == it.digest
