"""What OpenVINO computes in another way, because its faults depend on values."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.testing.case import Case, parse
from tests.unit.plugins.openvino.backend.conftest import Compile, run


def test_of_equal_elements_the_first_come_first(compile_for: Compile) -> None:
    text = """f (float[1,9] x, int64[1] k) => (float[1,A] v, int64[1,B] y) { v, y = TopK(x, k) }"""
    x = np.array([[3, 5, 5, 1, 5, 3, 5, 3, 1]], np.float32)
    inputs = {"x": x, "k": np.array([6])}
    assert run(compile_for(text, inputs), inputs)["y"].tolist() == [[1, 2, 4, 6, 0, 5]]


@pytest.mark.parametrize(("operator", "infinity"), [("ReduceMax", -np.inf), ("ReduceMin", np.inf)])
def test_the_extreme_of_infinities_is_infinite(
    compile_for: Compile, operator: str, infinity: float
) -> None:
    text = f"f (float[2,3] x) => (float[2,1] y) <int64[1] a = {{1}}> {{ y = {operator}(x, a) }}"
    x = np.array([[infinity] * 3, [infinity, 4, infinity]], np.float32)
    assert run(compile_for(text, {"x": x}), {"x": x})["y"].tolist() == [[infinity], [4]]


def test_rows_divided_by_the_sums_of_columns_are_no_softmax(compile_for: Compile) -> None:
    text = """f (float[4,4] x) => (float[4,4] y) <int64[1] a = {1}> {
        e = Exp(x) s = ReduceSum<keepdims = 0>(e, a) y = Div(e, s) }"""
    case = Case("f", parse(text), {"x": np.arange(16, dtype=np.float32).reshape(4, 4) / 8})
    found = run(compile_for(case.model, case.inputs), case.inputs)["y"]
    np.testing.assert_allclose(found, case.expected()["y"], rtol=1e-5)


def test_a_quotient_of_sizes_drops_its_fraction(compile_for: Compile) -> None:
    """The core rounds down."""
    text = """f (float[N] x) => (float[N] y) <int64[1] two = {2}> { s = Shape(x) n = Neg(s)
        h = Div(n, two) f = Cast<to = 1>(h) y = Add(x, f) }"""
    x = np.zeros(3, np.float32)
    assert run(compile_for(text, {"x": x}), {"x": x})["y"].tolist() == [-1, -1, -1]


def test_the_least_step_ends_no_process(compile_for: Compile) -> None:
    text = """f (float[4] x) => (float[N] y)
        <int64[1] s = {3}, int64[1] e = {0}, int64[1] a = {0}, int64[1] t = {-2147483648}>
        { y = Slice(x, s, e, a, t) }"""
    x = np.arange(4, dtype=np.float32)
    assert run(compile_for(text, {"x": x}), {"x": x})["y"].tolist() == [3]
