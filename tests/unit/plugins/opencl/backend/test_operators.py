"""What OPENCL knows of operators: who has a function, and what has to be on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from headrace.testing.case import Case, parse

pytest.importorskip("tinygrad", reason="tinygrad is not installed: pip install 'headrace[opencl]'")

from tinygrad.tensor import Tensor

from headrace.plugins.opencl.backend import operators
from headrace.plugins.opencl.running import on_host


def model(text: str) -> ir.Model:
    return Case("f", parse(f"f {text}"), {}).network.model


def node(operator: str, domain: str = "") -> ir.Node:
    return ir.node(operator, [ir.Value(name="x")], domain=domain)


@pytest.mark.parametrize(
    ("operator", "domain", "there"),
    [
        ("Relu", "", True),
        ("Conv", "", True),
        ("Mod", "", True),
        ("LSTM", "", False),
        ("Loop", "", False),
        ("RandomNormalLike", "", False),
        ("Scan", "", False),
        ("Relu", "some.domain", False),
    ],
)
def test_an_operator_has_a_function_or_none(operator: str, domain: str, there: bool) -> None:
    assert (operators.find(node(operator, domain), 21) is not None) is there


def test_of_an_operator_with_versions_the_right_one_is_found() -> None:
    found = {version: operators.find(node("Softmax"), version) for version in (11, 13)}
    assert found[11] is not found[13]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(float[4] x, int64[2] s) => (float[a,b] y) { y = Reshape(x, s) }", {"s"}),
        (
            "(float[4] x, int64[1] s) => (float[a,b] y)"
            " { t = Concat<axis = 0>(s, s) y = Reshape(x, t) }",
            {"s"},
        ),
        (
            "(float[4] x, float[2,2] z) => (float[a,b] y) { s = Shape(z) y = Reshape(x, s) }",
            set(),
        ),
        (
            "(bool c, float[3] x, int64[1] s) => (float[3] y) { y = If (c) <"
            " then_branch = t () => (float[3] u) { u = Reshape(x, s) },"
            " else_branch = e () => (float[3] v) { v = Neg(x) }> }",
            {"c", "s"},
        ),
        (
            "(float[4] x, int64[2] s, int64[2] t, bool[1] d) => (float[a,b] y)"
            " { c = Shape(d) n = Squeeze(c) g = Cast<to = 9>(n) u = If (g) <"
            " then_branch = p () => (int64[2] v) { v = Identity(s) },"
            " else_branch = e () => (int64[2] w) { w = Identity(t) }> y = Reshape(x, u) }",
            {"s", "t"},
        ),
    ],
)
def test_inputs_that_decide_shapes_or_the_course_are_known_on_the_host(
    text: str, expected: set[str]
) -> None:
    assert on_host.known_inputs(model(text)) == expected


def test_a_function_that_assigns_to_its_argument_is_refused_and_the_argument_is_as_before() -> None:
    x = Tensor([1.0, 2.0], device="PYTHON").realize()
    with pytest.raises(RuntimeError, match="assigns"):
        operators.computed(lambda x, by: x.assign(x * by), [x], {"by": 3})
    assert x.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("values", "dtype", "most"),
    [
        ([3, 1, 8, 1], np.uint8, (2, 2)),
        ([3, -128, 127, 127], np.int8, (2, 3)),
        ([1, 0, 0, 1], np.bool_, (0, 3)),
        ([1, -np.inf, np.inf, np.inf], np.float32, (2, 3)),
        ([1, np.nan, 3, np.nan], np.float32, (1, 3)),
        ([np.nan] * 4, np.float32, (0, 3)),
    ],
)
def test_the_most_is_found_first_or_last(
    values: list[Any], dtype: Any, most: tuple[int, int]
) -> None:
    x = Tensor(np.array([values], dtype), device="PYTHON")
    function = operators.find(node("ArgMax"), 21)
    assert function is not None
    for last in (0, 1):
        assert function(x, axis=1, select_last_index=last).tolist() == [[most[last]]]
        found = function(x, axis=-1, keepdims=0, select_last_index=last)
        assert found.tolist() == [most[last]]


def test_what_is_known_is_computed_by_the_corrected_reference() -> None:
    graph = model("(float[1,3,1] x) => (float[1,3,1] y) { y = LRN<size = 1, beta = 1.0>(x) }").graph
    x = np.ones((1, 3, 1), np.float32)
    (y,) = on_host.HostLayers({"": 21})(graph[0], [x])
    np.testing.assert_allclose(np.asarray(y), x / (1 + 1e-4))
