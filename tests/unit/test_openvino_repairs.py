"""What OpenVINO would compute otherwise than ONNX, and computes right once it is repaired."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from headrace.plugins.openvino.session import Runtime
from headrace.runtime.network import Network
from headrace.testing.case import parse


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime()


def run(runtime: Runtime, text: str, **inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    network = Network.from_bytes(parse(text).SerializeToString())
    hints = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = runtime.compile(runtime.convert(network.model), "CPU", hints)
    outputs = compiled(inputs, share_outputs=False)
    found = (outputs[index] for index in range(len(compiled.outputs)))
    return dict(zip((port.name for port in network.outputs), found, strict=True))


def equal(outputs: Mapping[str, Any], **expected: Any) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(outputs[name], value)


TOP_K = "f ({0}[N,M] x, int64[1] k) => ({0}[N,K] y, int64[N,K] i) {{ y, i = TopK{1}(x, k) }}"


@pytest.mark.parametrize("type_name", ["float", "int64"])
@pytest.mark.parametrize("attributes", ["", "<sorted = 0>"])
def test_of_equal_elements_the_first_ones_are_taken(
    runtime: Runtime, type_name: str, attributes: str
) -> None:
    x = np.array([[1, 3, 3, 3, 2]], np.float32 if type_name == "float" else np.int64)
    outputs = run(runtime, TOP_K.format(type_name, attributes), x=x, k=np.array([3]))
    equal(outputs, y=[[3, 3, 3]], i=[[1, 2, 3]])


def test_the_smallest_are_taken_in_order_too(runtime: Runtime) -> None:
    x = np.array([[1, 0, 0, 3]], np.float32)
    text = TOP_K.format("float", "<largest = 0>")
    equal(run(runtime, text, x=x, k=np.array([3])), y=[[0, 0, 1]], i=[[1, 2, 0]])


@pytest.mark.parametrize("k", [4, 100])
def test_more_elements_than_there_are_give_all_and_no_crash(runtime: Runtime, k: int) -> None:
    x = np.array([[1, 3, 2]], np.float32)
    outputs = run(runtime, TOP_K.format("float", ""), x=x, k=np.array([k]))
    equal(outputs, y=[[3, 2, 1]], i=[[1, 2, 0]])


@pytest.mark.parametrize(("operator", "infinity"), [("Max", -np.inf), ("Min", np.inf)])
@pytest.mark.parametrize("type_name", ["float", "float16"])
def test_the_extreme_of_infinities_is_infinite(
    runtime: Runtime, operator: str, infinity: float, type_name: str
) -> None:
    text = f"""f ({type_name}[N,M] x) => ({type_name}[N,P] y) {{
        axis = Constant<value = int64[1] {{1}}>()
        y = Reduce{operator}(x, axis)
    }}"""
    dtype = np.float32 if type_name == "float" else np.float16
    largest = np.finfo(dtype).max * -np.sign(infinity)
    rows = [[infinity, infinity], [infinity, 1], [-largest, -largest], [1e-7, 1e-7], [-2, 3]]
    x = np.array(rows, dtype)
    reduce = np.max if operator == "Max" else np.min
    equal(run(runtime, text, x=x), y=reduce(x, axis=1, keepdims=True))
    equal(run(runtime, text, x=np.ones((2, 0), dtype)), y=np.full((2, 1), infinity))


def test_integers_have_no_infinite_extreme(runtime: Runtime) -> None:
    text = "f (int32[N,2] x) => (int32[P,Q] y) { y = ReduceMax(x) }"
    equal(run(runtime, text, x=np.array([[-5, -7]], np.int32)), y=[[-5]])


@pytest.mark.parametrize(("threshold", "kept"), [(0.5, 2), (0.499, 1), (0.501, 2)])
def test_boxes_that_overlap_by_the_threshold_alone_stay(
    runtime: Runtime, threshold: float, kept: int
) -> None:
    """The second box covers half of what both cover."""
    text = """f (float[1,2,4] boxes, float[1,1,2] scores, float[1] least) => (int64[N,3] y) {
        k = Constant<value = int64[1] {5}>()
        y = NonMaxSuppression(boxes, scores, k, least)
    }"""
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.5]]], np.float32)
    scores = np.array([[[0.9, 0.8]]], np.float32)
    outputs = run(
        runtime, text, boxes=boxes, scores=scores, least=np.array([threshold], np.float32)
    )
    assert len(outputs["y"]) == kept


def test_boxes_that_do_not_overlap_stay_at_a_threshold_of_zero(runtime: Runtime) -> None:
    text = """f (float[1,2,4] boxes, float[1,1,2] scores) => (int64[N,3] y) {
        k = Constant<value = int64[1] {5}>()
        least = Constant<value = float[1] {0}>()
        y = NonMaxSuppression(boxes, scores, k, least)
    }"""
    boxes = np.array([[[0, 0, 1, 1], [2, 2, 3, 3]]], np.float32)
    outputs = run(runtime, text, boxes=boxes, scores=np.array([[[0.9, 0.8]]], np.float32))
    assert len(outputs["y"]) == 2


def test_bodies_are_repaired_too(runtime: Runtime) -> None:
    text = """f (bool c, float[2,2] x) => (float[P,Q] y) {
        y = If(c) <
            then_branch = a () => (float[1,1] t) { t = ReduceMax(x) },
            else_branch = b () => (float[1,1] e) { e = ReduceMin(x) }
        >
    }"""
    x = np.full((2, 2), -np.inf, np.float32)
    equal(run(runtime, text, c=np.array(True), x=x), y=[[-np.inf]])


SLICE = """f (int64[3] x{0}) => (int64[N] y) {{
    start = Constant<value = int64[1] {{2}}>() end = Constant<value = int64[1] {{-9}}>()
    axis = Constant<value = int64[1] {{0}}>() {1} y = Slice(x, start, end, axis, step)
}}"""


@pytest.mark.parametrize(("step", "y"), [(-(2**31), [3]), (-2, [3, 1])])
def test_the_least_step_of_32_bits_is_no_crash(runtime: Runtime, step: int, y: list[int]) -> None:
    x = np.array([1, 2, 3], np.int64)
    given = SLICE.format(", int64[1] step", "")
    equal(run(runtime, given, x=x, step=np.array([step])), y=y)
    constant = SLICE.format("", f"step = Constant<value = int64[1] {{{step}}}>()")
    equal(run(runtime, constant, x=x), y=y)
