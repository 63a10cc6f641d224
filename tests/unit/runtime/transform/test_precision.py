"""Float16 networks computed in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import InputOptions, OutputOptions
from headrace.runtime.transform.precision import to_float32
from headrace.runtime.transform.transform import transform_network
from headrace.testing.case import network_of
from tests.support.model_zoo import FLOAT, HALF, chain, function, graph, model, node, run, value


def widened(proto: Any) -> Network:
    return transform_network(network_of(proto), fp16_to_fp32=True)


def halves(it: Network) -> set[str]:
    """The operators that give float16."""
    return {
        each.op_type
        for each in it.nodes()
        if any(output.dtype == ir.DataType.FLOAT16 for output in each.outputs)
    }


def half_network() -> Any:
    weights = {"w": np.array([[1, 2, 3]] * 2, np.float16)}
    nodes = [node("Mul", ["x", "w"], ["m"]), node("Exp", ["m"], ["y"])]
    return model(nodes, [value("x", dtype=HALF)], [value("y", dtype=HALF)], weights)


def test_a_network_without_float16_is_returned_as_it_is() -> None:
    it = network_of(chain()).model
    assert to_float32(it) == (it, "", False)


def test_all_but_the_ends_is_float32() -> None:
    it = widened(half_network())
    assert halves(it) == {"Cast"}
    assert [port.dtype for port in (*it.inputs, *it.outputs)] == [ir.DataType.FLOAT16] * 2
    assert [port.name for port in (*it.inputs, *it.outputs)] == ["x", "y"]


def test_a_note_says_that_what_it_computes_has_become_more_exact() -> None:
    (note,) = widened(half_network()).notes
    assert note.startswith("float16 layers are computed in float32")


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"x": InputOptions(dtype=ir.DataType.FLOAT16)}, {}),
        ({"x": InputOptions(ir.DataType.FLOAT16, "NC", "CN", scale=(2.0,))}, {}),
        ({}, {"y": OutputOptions(dtype=ir.DataType.FLOAT16)}),
    ],
)
def test_no_note_is_made_of_float16_that_only_the_caller_has(
    inputs: dict[str, InputOptions], outputs: dict[str, OutputOptions]
) -> None:
    proto = model([node("Exp", ["x"], ["y"])], [value("x", (3, 3))], [value("y", (3, 3))])
    it = transform_network(network_of(proto), preprocess=(inputs, outputs), fp16_to_fp32=True)
    assert ir.DataType.FLOAT16 in [port.dtype for port in (*it.inputs, *it.outputs)]
    assert it.notes == ()


def test_no_note_is_made_of_float16_that_is_only_converted() -> None:
    nodes = [node("Cast", ["x"], ["f"], to=FLOAT), node("Exp", ["f"], ["y"])]
    assert widened(model(nodes, [value("x", dtype=HALF)], [value("y")])).notes == ()


def test_results_agree_within_the_precision_of_float16() -> None:
    x = np.array([[0.1, 0.2, 0.3], [-1, 1, 2]], np.float16)
    expected = run(half_network(), {"x": x})["y"]
    actual = run(widened(half_network()), {"x": x})["y"]
    assert actual.dtype == np.float16
    np.testing.assert_allclose(actual, expected, rtol=5e-3)


def test_what_overflowed_inside_no_longer_does() -> None:
    nodes = [node("Mul", ["x", "x"], ["m"]), node("Sqrt", ["m"], ["y"])]
    proto = model(nodes, [value("x", dtype=HALF)], [value("y", dtype=HALF)])
    x = np.full((2, 3), 1000, np.float16)
    assert run(widened(proto), {"x": x})["y"].tolist() == x.tolist()


def test_a_cast_to_float16_goes_on_rounding() -> None:
    nodes = [
        node("Cast", ["x"], ["h"], to=HALF),
        node("Add", ["h", "h"], ["s"]),
        node("Cast", ["s"], ["y"], to=FLOAT),
    ]
    proto = model(nodes, [value("x")], [value("y")])
    x = np.full((2, 3), 1.0001, np.float32)
    assert run(widened(proto), {"x": x})["y"].tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize("op_type", ["Cast", "CastLike"])
def test_a_cast_of_a_float16_to_float16_goes_on_rounding_nothing(op_type: str) -> None:
    cast = node("Cast", ["m"], ["c"], to=HALF)
    if op_type == "CastLike":
        cast = node("CastLike", ["m", "x"], ["c"])
    nodes = [node("Mul", ["x", "x"], ["m"]), cast, node("Sqrt", ["c"], ["y"])]
    proto = model(nodes, [value("x", dtype=HALF)], [value("y", dtype=HALF)])
    x = np.full((2, 3), 1000, np.float16)
    assert run(widened(proto), {"x": x})["y"].tolist() == x.tolist()


def test_a_cast_like_a_float16_goes_on_rounding() -> None:
    nodes = [
        node("CastLike", ["x", "like"], ["h"]),
        node("Add", ["h", "like"], ["s"]),
        node("Cast", ["s"], ["y"], to=FLOAT),
    ]
    inputs = [value("x"), value("like", dtype=HALF)]
    proto = model(nodes, inputs, [value("y")])
    feeds = {"x": np.full((2, 3), 1.0001, np.float32), "like": np.zeros((2, 3), np.float16)}
    assert run(widened(proto), feeds)["y"].tolist() == [[1.0] * 3] * 2


def test_a_rounded_output_stays_float16_and_its_readers_do_not() -> None:
    nodes = [node("Cast", ["x"], ["h"], to=HALF), node("Neg", ["h"], ["y"])]
    proto = model(nodes, [value("x")], [value("h", dtype=HALF), value("y", dtype=HALF)])
    it = widened(proto)
    assert halves(it) == {"Cast"}
    found = run(it, {"x": np.full((2, 3), 1.0001, np.float32)})
    assert found["h"].dtype == found["y"].dtype == np.float16
    assert found["y"].tolist() == [[-1.0] * 3] * 2


def test_types_in_attributes_follow() -> None:
    zero = helper.make_tensor("v", HALF, (1,), [2.0])
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("ConstantOfShape", ["s"], ["c"], value=zero),
        node("EyeLike", ["x"], ["e"], dtype=HALF),
        node("Add", ["c", "e"], ["t"]),
        node("Mul", ["t", "x"], ["y"]),
    ]
    proto = model(nodes, [value("x", dtype=HALF)], [value("y", dtype=HALF)])
    x = np.ones((2, 3), np.float16)
    it = widened(proto)
    assert halves(it) == {"Cast"}
    np.testing.assert_array_equal(run(it, {"x": x})["y"], run(proto, {"x": x})["y"])


def test_bodies_are_converted_with_what_they_take_and_give() -> None:
    body = graph(
        [
            node("Identity", ["go"], ["go_on"]),
            node("Cast", ["wide"], ["rounded"], to=HALF),
            node("Add", ["sum", "rounded"], ["next"]),
        ],
        [
            value("at", (), TensorProto.INT64),
            value("go", (), TensorProto.BOOL),
            value("sum", dtype=HALF),
        ],
        [value("go_on", (), TensorProto.BOOL), value("next", dtype=HALF)],
    )
    nodes = [node("Loop", ["times", "first", "x"], ["y"], body=body)]
    counters = [value("times", (), TensorProto.INT64), value("first", (), TensorProto.BOOL)]
    inputs = [value("x", dtype=HALF), value("wide"), *counters]
    proto = model(nodes, inputs, [value("y", dtype=HALF)])
    feeds = {
        "first": np.array(True),
        "x": np.zeros((2, 3), np.float16),
        "wide": np.full((2, 3), 1.0001, np.float32),
        "times": np.array(3),
    }
    it = widened(proto)
    assert halves(it) == {"Cast"}
    assert run(it, feeds)["y"].tolist() == [[3.0] * 3] * 2


def test_functions_are_inlined_and_stand_for_their_call() -> None:
    square = function("square", [node("Mul", ["a", "a"], ["b"])])
    nodes = [node("square", ["x"], ["y"], domain="f", name="call")]
    proto = model(
        nodes,
        [value("x", dtype=HALF)],
        [value("y", dtype=HALF)],
        functions=[square],
        domains=["f"],
    )
    it = widened(proto)
    x = np.full((2, 3), 3, np.float16)
    assert run(it, {"x": x})["y"].tolist() == [[9.0] * 3] * 2
    assert [layer.origins for layer in it.layers if layer.op_type == "Mul"] == [("call",)]


def test_layers_keep_their_origins_and_the_casts_at_the_ends_have_none() -> None:
    origins = [(layer.op_type, layer.origins) for layer in widened(half_network()).layers]
    assert origins == [("Cast", ()), ("Mul", ("m",)), ("Exp", ("y",)), ("Cast", ())]


def test_the_original_keeps_its_types_and_weights() -> None:
    it = network_of(half_network())
    before = it.to_bytes()
    transform_network(it, fp16_to_fp32=True)
    assert it.to_bytes() == before


UNSAFE = {
    "a custom operator": model(
        [node("Own", ["x"], ["y"], domain="f")],
        [value("x", dtype=HALF)],
        [value("y", dtype=HALF)],
        domains=["f"],
    ),
    "a value of unknown type": model(
        [node("Own", ["x"], ["m"], domain="f"), node("Exp", ["m"], ["y"])],
        [value("x", dtype=HALF)],
        [value("y", dtype=HALF)],
        domains=["f"],
    ),
    "the bits of a float16": model(
        [node("BitCast", ["x"], ["y"], to=TensorProto.INT16)],
        [value("x", dtype=HALF)],
        [value("y", dtype=TensorProto.INT16)],
        opset=26,
    ),
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_what_cannot_be_converted_safely_stays_as_it_was(kind: str) -> None:
    it = network_of(UNSAFE[kind])
    converted, reason, _ = to_float32(it.model)
    assert converted is it.model
    assert reason


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["Relu", "Neg", "Sigmoid", "Tanh"]), max_size=6),
    st.lists(st.floats(-8, 8, width=16), min_size=6, max_size=6),
)
def test_chains_agree_within_the_precision_of_float16(ops: list[str], numbers: list[float]) -> None:
    nodes = [node(op, [f"v{at}"], [f"v{at + 1}"]) for at, op in enumerate([*ops, "Abs"])]
    proto = model(nodes, [value("v0", dtype=HALF)], [value(f"v{len(nodes)}", dtype=HALF)])
    feeds = {"v0": np.array(numbers, np.float16).reshape(2, 3)}
    expected, actual = run(proto, feeds), run(widened(proto), feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-2, atol=1e-2)
        assert actual[name].dtype == array.dtype
