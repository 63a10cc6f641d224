"""OPENVINO runs no layer in which a request's values decide which memory is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.runtime.errors import UnsupportedLayers
from tests.unit.plugins.openvino.backend.conftest import Compile

FROM_VALUES = "follow from values"
CONSTANT = "only with constant"
NOTHING = "without elements"
X = np.arange(6, dtype=np.float32).reshape(2, 3)
ONE = np.array([1])
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "non_zero": ("(float[2,3] x) => (int64[2,N] y) { y = NonZero(x) }", {"x": X}, FROM_VALUES),
    "range": (
        "(int64 n) => (int64[N] y) <int64 a = {0}, int64 s = {1}>"
        " { m = Abs(n) y = Range(a, m, s) }",
        {"n": np.array(3)},
        FROM_VALUES,
    ),
    "computed_shape": (
        "(float[2,3] x, int64[2] p) => (float[A,B] y) { q = Abs(p) y = Reshape(x, q) }",
        {"x": X, "p": np.array([3, 2])},
        FROM_VALUES,
    ),
    "computed_axes": (
        "(float[2,3] x, int64 a) => (float[2,3] y) { b = Abs(a) y = CumSum(x, b) }",
        {"x": X, "a": np.array(1)},
        CONSTANT,
    ),
    "lengths": (
        "(float[3,1,2] x, float[1,6,2] w, float[1,6,2] r, int32[1] l) => (float[A,B,C,D] y)"
        " { y = GRU<hidden_size = 2>(x, w, r, , l) }",
        {
            "x": np.zeros((3, 1, 2), np.float32),
            "w": np.zeros((1, 6, 2), np.float32),
            "r": np.zeros((1, 6, 2), np.float32),
            "l": np.array([3], np.int32),
        },
        CONSTANT,
    ),
    "coordinates": (
        "(float[1,1,2,2] x, float[1,1,1,2] g) => (float[1,1,1,1] y) { y = GridSample(x, g) }",
        {"x": np.ones((1, 1, 2, 2), np.float32), "g": np.zeros((1, 1, 1, 2), np.float32)},
        "does not run GridSample",
    ),
    "nothing_in_between": (
        "(float[2,N] x) => (float[2,M] y) { s = Constant<value = int64[1] {3}>()"
        " e = Constant<value = int64[1] {9}>() a = Constant<value = int64[1] {1}>()"
        " p = Slice(x, s, e, a) y = Concat<axis = 1>(p, x) }",
        {"x": X},
        NOTHING,
    ),
    "a_broadcast_to_no_axes": (
        "(float x) => (float y) { s = Shape(x) y = Expand(x, s) }",
        {"x": np.array(1, np.float32)},
        NOTHING,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_reason(compile_for: Compile, name: str) -> None:
    text, inputs, reason = REFUSED[name]
    with pytest.raises(UnsupportedLayers, match=reason):
        compile_for(f"f {text}", inputs)


def test_what_follows_from_the_sizes_alone_runs(compile_for: Compile) -> None:
    text = """f (float[A,B] x) => (float[C,D] y) <int64 zero = {0}, int64 one = {1}> {
        s = Shape(x) m = ReduceMax<keepdims = 0>(s) r = Range(zero, m, one)
        f = Cast<to = 1>(r) y = Add(x, f) }"""
    compile_for(text, {"x": X})


def test_a_tensor_that_is_too_large_is_refused(compile_for: Compile) -> None:
    """OpenVINO does not look whether it gets memory for it, and writes."""
    text = "f (float[A] x) => (float y) { a = Constant<value = int64[2] {65536, 65536}>()"
    with pytest.raises(UnsupportedLayers, match="elements"):
        compile_for(text + " c = Expand(x, a) y = Neg(c) }", {"x": np.ones(1, np.float32)})
