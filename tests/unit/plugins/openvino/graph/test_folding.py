"""Constants on OPENVINO mean what ONNX says, however they are written and wherever they stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest

READ = ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "FLOAT8E4M3FN", "FLOAT8E5M2"]
READ += ["INT4", "INT8", "INT16", "INT32", "INT64", "UINT4", "UINT8", "UINT16", "UINT32", "UINT64"]
TO_FLOAT = "Cast<to = 1>"
PLACES = {
    "at_the_top": f"(float[2] x) => (float[2] y) {{ z = {TO_FLOAT}(c) y = Add(x, z) }}",
}
FUNCTION = f"""<domain: "headrace.test", opset_import: ["": 21]>
    typed (x) => (y) {{ c = Constant() z = {TO_FLOAT}(c) y = Add(x, z) }}"""


def typed(name: str) -> onnx.TensorProto:
    """2 and 1, in the field that ONNX has for the type."""
    tensor = helper.make_tensor("c", getattr(TensorProto, name), [2], [2, 1])
    assert not tensor.HasField("raw_data")
    return tensor


def result(plugin: Plugin, model: onnx.ModelProto, **inputs: Any) -> list[float]:
    network = plugin.load_network(Load(Network.from_bytes(model.SerializeToString())))
    output: list[float] = InferRequest(network).infer(inputs)["y"].tolist()  # type: ignore[union-attr]
    return output


ZEROS = np.zeros(2, np.float32)


@pytest.mark.parametrize("type_name", READ)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("written", ["initializer", "layer"])
def test_a_constant_in_the_field_of_its_type_is_read_right(
    plugin: Plugin, type_name: str, place: str, written: str
) -> None:
    model = parse(f"f {PLACES[place]}")
    graph = model.graph if place == "at_the_top" else model.graph.node[1].attribute[0].g
    if written == "initializer":
        graph.initializer.append(typed(type_name))
    else:
        graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=typed(type_name)))
    assert result(plugin, model, x=ZEROS) == [2, 1]


def test_so_is_one_of_a_function(plugin: Plugin) -> None:
    model = parse("f (float[2] x) => (float[2] y) { y = headrace.test.typed(x) }" + FUNCTION)
    constant = model.functions[0].node[0]
    constant.CopyFrom(helper.make_node("Constant", [], ["c"], value=typed("BFLOAT16")))
    assert result(plugin, model, x=ZEROS) == [2, 1]


def int4_layer(text: str) -> onnx.ModelProto:
    """With a layer before the others that makes the constant c."""
    model = parse(f"f (float[2] x) => {text}")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=typed("INT4")))
    return model


def test_a_constant_layer_of_a_type_that_does_not_pass_stays_within(plugin: Plugin) -> None:
    model = int4_layer("(float[2] y) { z = Cast<to = 1>(c) y = Add(x, z) }")
    asked = plugin.query_network(Network.from_bytes(model.SerializeToString()), {})
    assert not asked.unsupported
    assert result(plugin, model, x=ZEROS) == [2, 1]


def test_but_it_is_not_returned(plugin: Plugin) -> None:
    with pytest.raises(UnsupportedLayers, match="int4"):
        result(plugin, int4_layer("(float[2] z, int4[2] c) { z = Neg(x) }"), x=ZEROS)


CONVOLUTION = (
    "d = Constant<value = float[1,1,2,2] {1, 2, 3, 4}>()"
    " w = Constant<value = float[1,1,1,1] {2}>() c = Conv(d, w)"
)
GATHER = (
    "d = Constant<value = float[1,1,2,2] {1, 2, 3, 4}>()"
    " i = Constant<value = int64[1,1,2,2] {1, 0, 0, 1}>() c = GatherElements<axis = 3>(d, i)"
)
POOL = (
    "d = Constant<value = float[1,1,3,3] {1, 2, 3, 4, 5, 6, 7, 8, 9}>()"
    " c = AveragePool<kernel_shape = [2,2]>(d)"
)
LIST = "s = Constant<value = int64[1] {4}>() l = Reshape(c, s)"
SHAPES = "(float[1,1,2,2] x) => (float[1,1,2,2] y)"
OF_CONSTANTS = {
    "convolution": f"{SHAPES} {{ {CONVOLUTION} y = Mul(c, x) }}",
    "gather": f"{SHAPES} {{ {GATHER} y = Mul(c, x) }}",
    "pool": f"{SHAPES} {{ {POOL} y = Mul(c, x) }}",
    "reshape_after_it": f"(float[4] x) => (float[4] y) {{ {CONVOLUTION} {LIST} y = Mul(l, x) }}",
    "more_after_it": f"{SHAPES} {{ {CONVOLUTION} n = Neg(c) e = Exp(n) y = Mul(e, x) }}",
    "read_twice": f"{SHAPES} {{ {CONVOLUTION} m = Mul(c, x) y = Sub(m, c) }}",
    "given_too": "(float[1,1,2,2] x) => (float[1,1,2,2] y, float[1,1,2,2] c)"
    f" {{ {CONVOLUTION} y = Mul(c, x) }}",
    "quantised": "(uint8[1] z) => (uint8[1,1,2,2] y) {"
    " x = Constant<value = uint8[1,1,2,2] {250, 2, 30, 4}>() s = Constant<value = float {0.5}>()"
    " w = Constant<value = uint8[1,1,1,1] {7}>() t = Constant<value = float[1] {0.5}>()"
    " a = Constant<value = int64[1] {0}>() o = Squeeze(z, a)"
    " y = QLinearConv(x, s, o, w, t, z, s, o) }",
}


@pytest.mark.parametrize("name", OF_CONSTANTS)
def test_what_constants_give_is_the_same_in_every_request(plugin: Plugin, name: str) -> None:
    """A request's products stood where the constant was, and the next one multiplied them."""
    case = Case("f", parse(f"f {OF_CONSTANTS[name]}"), {})
    request = InferRequest(plugin.load_network(Load(case.network)))
    known = {"b": np.array(True), "n": np.array(2)}
    for factor in (2, 3, 5):
        inputs: dict[str, Any] = {}
        for port in case.network.inputs:
            assert port.shape is not None
            shape = [size for size in port.shape if isinstance(size, int)]
            inputs[port.name] = known.get(port.name, np.full(shape, factor, port.dtype.numpy()))
        outputs = request.infer(inputs)
        for output, expected in case.expected(inputs).items():
            np.testing.assert_allclose(np.asarray(outputs[output]), expected, rtol=1e-6)


LARGE = "a = Constant<value = int64[2] {2147483647, 65536}>()"
UNSIGNED = (
    "a = Constant<value = uint32[2] {65535, 65536}>() b = Constant<value = uint32[2] {5, 6}>()"
)
TOO_WIDE = {
    "sum": f"(int64[2] x) => (int64[2] y) {{ {LARGE} b = Add(a, a) y = Min(x, b) }}",
    "sum_that_moved": f"(int64[2] x) => (int64[2] y) {{ {LARGE} b = Add(a, a)"
    " n = Constant<value = int64[1] {-1}>() c = Reshape(b, n) y = Min(x, c) }",
    "sum_in_between": f"(int64[2] x) => (int64[2] y) {{ {LARGE} b = Add(a, a)"
    " c = ReduceMax(b) y = Min(x, c) }",
    "product": f"(int64[2] x) => (int64[1] y) {{ {LARGE} b = ReduceProd(a) c = ReduceMin(x)"
    " y = Add(b, c) }",
    "difference_below_0": f"(uint32[2] x) => (uint32[2] y) {{ {UNSIGNED} c = Sub(b, a)"
    " y = Add(x, c) }",
    "opposite_bits": f"(uint32[2] x) => (uint32[2] y) {{ {UNSIGNED} c = BitwiseNot(a)"
    " y = Add(x, c) }",
}
WIDE_ENOUGH = {
    "greatest": f"(int64[2] x) => (int64[2] y) {{ {LARGE} z = Constant<value = int64[2] {{0, 1}}>()"
    " b = Add(a, z) c = Max(b, z) d = Neg(c) y = Max(x, d) }",
    "least": "(int64[2] x) => (int64[2] y) { a = Constant<value = int32[2] {-2147483648, 5}>()"
    " b = Cast<to = 7>(a) c = ReduceMin(b) y = Max(x, c) }",
    "wide_in_between": f"(int64[2] x) => (int64[2] y) {{ {LARGE} b = Add(a, a) c = Sub(b, a)"
    " y = Min(x, c) }",
}


@pytest.mark.parametrize("name", TOO_WIDE)
def test_constants_that_make_integers_of_more_than_32_bits_are_refused(
    plugin: Plugin, name: str
) -> None:
    network = Case("f", parse(f"f {TOO_WIDE[name]}"), {}).network
    assert plugin.query_network(network, {}).unsupported
    with pytest.raises(UnsupportedLayers):
        plugin.load_network(Load(network))


@pytest.mark.parametrize("name", WIDE_ENOUGH)
def test_constants_that_make_integers_of_32_bits_are_computed(plugin: Plugin, name: str) -> None:
    x = np.array([-(2**31), 7])
    case = Case("f", parse(f"f {WIDE_ENOUGH[name]}"), {"x": x})
    assert result(plugin, case.model, x=x) == case.expected()["y"].tolist()
