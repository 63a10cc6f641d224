"""What OpenVINO takes for a normalisation, though its reductions do not keep their axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.plugins.openvino.session.session import Runtime
from headrace.runtime.network.network import Network
from headrace.testing.case import Case, parse


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime()


EXPONENTS = "m = ReduceMax<keepdims = {0}>(x, axes) d = Sub(x, m) e = Exp(d)"
VARIANCE = """m = ReduceMean<keepdims = {0}>(x, axes) d = Sub(x, m) q = Mul(d, d)
    v = ReduceMean<keepdims = {1}>(q, axes) half = Constant<value = float {{0.5}}>()
    w = Add(v, half) t = Sqrt(w)"""
NETWORKS = {
    "softmax": EXPONENTS + " s = ReduceSum<keepdims = {1}>(e, axes) y = Div(e, s)",
    "softmax without a largest": "e = Exp(x) s = ReduceSum<keepdims = {1}>(e, axes) y = Div(e, s)",
    "logarithm of softmax": EXPONENTS
    + " s = ReduceSum<keepdims = {1}>(e, axes) l = Log(s) y = Sub(d, l)",
    "mean and variance": VARIANCE + " y = Div(d, t)",
    "root of mean square": """q = Mul(x, x) v = ReduceMean<keepdims = {1}>(q, axes)
        half = Constant<value = float {{0.5}}>() w = Add(v, half) t = Sqrt(w)
        u = Reciprocal(t) y = Mul(x, u)""",
    "norm": "q = Mul(x, x) v = ReduceSum<keepdims = {1}>(q, axes) t = Sqrt(v) y = Div(x, t)",
}


@pytest.mark.parametrize("size", ["3,3", "N,M"])
@pytest.mark.parametrize("keeps", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("nodes", NETWORKS.values(), ids=NETWORKS)
def test_rows_are_divided_by_what_columns_give(
    runtime: Runtime, nodes: str, keeps: tuple[int, int], size: str
) -> None:
    axes = "axes = Constant<value = int64[1] {1}>()"
    text = f"f (float[{size}] x) => (float[{size}] y) {{ {axes} {nodes.format(*keeps)} }}"
    x: Any = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)
    network = Network.from_bytes(parse(text).SerializeToString())
    compiled = runtime.compile(
        runtime.convert(network.model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    expected = Case("f", parse(text), {"x": x}).expected()
    np.testing.assert_allclose(compiled({"x": x})[0], expected["y"], rtol=1e-5)
