"""Which networks may read inputs that another process writes to."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from headrace.runtime.network.data_oblivious import is_data_oblivious
from headrace.runtime.network.type_inference import infer_types
from headrace.testing.case import network_of, parse
from tools.benchmark.mobilenet_v2 import mobilenet_v2

OBLIVIOUS = {
    "arithmetic": "n (float[N,4] x) => (float[N,4] y) { z = Mul(x, x) y = Relu(z) }",
    "a shape that is a constant": """n (float[2,4] x) => (float[8] y) {
        to = Constant<value = int64[1] {8}>() y = Reshape(x, to) }""",
    "an image": """n (uint8[1,3,8,8] x) => (float[1,3,8,8] y) {
        by = Constant<value = float {255.0}>() z = Cast<to = 1>(x) y = Div(z, by) }""",
    "pooling": """n (float[1,3,8,8] x) => (float[1,3,4,4] y) {
        y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) }""",
}
NOT_OBLIVIOUS = {
    "an index": """n (float[4] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }""",
    "an index that a float becomes": """n (float[4] x, float[2] i) => (float[2] y) {
        at = Cast<to = 7>(i) y = Gather(x, at) }""",
    "a shape": "n (float[8] x, int64[2] to) => (float[A,B] y) { y = Reshape(x, to) }",
    "a shape that is computed": """n (float[8] x, float[2] to) => (float[A,B] y) {
        whole = Cast<to = 7>(to) y = Reshape(x, whole) }""",
    "a divisor": "n (int32[4] x, int32[4] by) => (int32[4] y) { y = Div(x, by) }",
    "an order": """n (float[8] x) => (float[2] y, int64[2] at) {
        k = Constant<value = int64[1] {2}>() y, at = TopK(x, k) }""",
    "a count": "n (float[8] x) => (int64[1,N] y) { y = NonZero(x) }",
    "places": """n (float[1,3,8,8] x) => (float[1,3,4,4] y, int64[1,3,4,4] at) {
        y, at = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) }""",
    "a condition": """n (float[8] x) => (float[8] y) {
        zero = Constant<value = float {0.0}>() c = Greater(x, zero) y = Where(c, x, zero) }""",
    "another layer before": """n (float[4] x, float[4] z) => (float[4] y, float[2] v, int64[2] at) {
        none = Constant<value = float {0.0}>() s = Add(x, none)
        k = Constant<value = int64[1] {2}>() v, at = TopK(s, k) y = Add(x, z) }""",
    "a body": """n (bool c, float[4] x) => (float[4] y) {
        y = If(c) <then_branch = a () => (float[4] t) { t = Neg(x) },
                   else_branch = b () => (float[4] e) { e = Abs(x) }> }""",
    "text": "n (string[4] x) => (string[4] y) { y = Identity(x) }",
}


def found(model: onnx.ModelProto) -> bool:
    network = network_of(model)
    infer_types(network.model)
    return is_data_oblivious(network.model)


@pytest.mark.parametrize("what", OBLIVIOUS)
def test_a_network_of_sums_and_products_is_oblivious(what: str) -> None:
    assert found(parse(OBLIVIOUS[what]))


def test_an_image_classifier_is_oblivious() -> None:
    assert found(mobilenet_v2(dtype="uint8"))


@pytest.mark.parametrize("what", NOT_OBLIVIOUS)
def test_a_network_that_goes_by_values_is_not(what: str) -> None:
    assert not found(parse(NOT_OBLIVIOUS[what]))


@pytest.mark.parametrize("domain", ["", "elsewhere"])
def test_operators_of_others_are_not_known(domain: str) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], "relu", domain=domain)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("elsewhere", 1)]
    assert found(helper.make_model(graph, opset_imports=opsets, ir_version=8)) == (not domain)


def test_functions_are_not_looked_into() -> None:
    model = parse("n (float[4] x) => (float[4] y) { z = Abs(x) y = headrace.test.Add(z) }")
    body = helper.make_node("TopK", ["a", "a"], ["b", "c"])
    own = ("headrace.test", "Add", ["a"], ["b"], [body], [helper.make_opsetid("", 21)])
    model.functions.append(helper.make_function(*own))
    assert not found(model)
