"""What OpenVINO's compiler joins to an operation that computes something else.

OpenVINO alone does, which is tested too, so that a rule without which nothing is wrong any more is
found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.plugins.openvino.library import openvino
from headrace.plugins.openvino.session import session
from headrace.plugins.openvino.session.session import Runtime
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.network.network import Network
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest
from tests.support.openvino_alone import alone, kinds


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime()


def numbers(*shape: int, seed: int = 0) -> Any:
    """Exact ones, of 0.5 to 2.5, so that any of them may divide."""
    return (np.random.default_rng(seed).integers(4, 21, shape) / 8).astype(np.float32)


def check(plugin: Plugin, model: onnx.ModelProto, *feeds: Any) -> None:
    """Each request is answered as ONNX Runtime answers it."""
    case = Case("g", model, {})
    request = InferRequest(plugin.load_network(Load(case.network)))
    for feed in feeds:
        right, found = case.expected({"x": feed})["y"], np.asarray(request.infer({"x": feed})["y"])
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
        assert found.shape == right.shape


def network(sizes: str, axes: int, nodes: str, **weights: Any) -> onnx.ModelProto:
    """A network of `x` with these sizes, the result of which has as many axes."""
    shape = ",".join(f"O{axis}" for axis in range(axes))
    return parse(f"g (float[{sizes}] x) => (float[{shape}] y) {{ {nodes} }}", weights)


SQUARE = numbers(4, 4, seed=1)
COLUMNS = {
    "add": "m = MatMul(x, w) y = Add(m, b)",
    "add_first": "m = MatMul(x, w) y = Add(b, m)",
    "subtract": "m = MatMul(x, w) y = Sub(m, b)",
    "multiply": "m = MatMul(x, w) y = Mul(m, b)",
    "divide": "m = MatMul(x, w) y = Div(m, b)",
    "power": "m = MatMul(x, w) y = Pow(m, b)",
    "largest": "m = MatMul(x, w) y = Max(m, b)",
    "slope": "m = MatMul(x, w) p = Neg(m) y = PRelu(p, b)",
    "twice": "m = MatMul(x, w) a = Add(m, b) y = Mul(a, b)",
    "sum": "m = MatMul(x, w) y = Sum(m, b, b)",
    "after_a_bias": "m = MatMul(x, w) a = Add(m, c) y = Add(a, b)",
    "after_a_layer": "m = MatMul(x, w) a = Relu(m) y = Add(a, b)",
    "after_a_number": "m = MatMul(x, w) a = Mul(m, two) y = Add(a, b)",
    "transposed": "t = Transpose(w) m = MatMul(x, t) y = Add(m, b)",
    "equation": 'm = Einsum<equation = "...k,kn->...n">(x, w) y = Add(m, b)',
    "square": "m = MatMul(x, w) d = Sub(m, b) y = Mul(d, d)",
    "normalised": "m = MatMul(x, w) a = Relu(m) y = BatchNormalization(a, c, c, c, c)",
}


def constants(nodes: str, bias: Any) -> dict[str, Any]:
    """The weights that the nodes take."""
    known = {"w": SQUARE, "b": bias, "c": numbers(4, seed=2)}
    known |= {"two": np.float32(2), "go": np.array(True), "n": np.array(2)}
    tokens = set(nodes.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return {name: value for name, value in known.items() if name in tokens}


@pytest.mark.parametrize("sizes", ["A,B,C,4", "A,4,C,4", "A,B,C,K", "3,4,4,4"])
@pytest.mark.parametrize("nodes", COLUMNS.values(), ids=COLUMNS)
def test_a_constant_of_the_second_axis_is_not_one_of_columns(
    plugin: Plugin, nodes: str, sizes: str
) -> None:
    model = network(sizes, 4, nodes, **constants(nodes, numbers(1, 4, 1, 1)))
    check(plugin, model, numbers(3, 4, 4, 4, seed=5))


@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ((3, 4, 4), (1, 4, 1)),
        ((3, 4, 4, 4), (4, 1, 1)),
        ((3, 4, 4, 4), (1, 1, 4, 1)),
        ((3, 2, 4, 4), (1, 2, 1, 1)),
        ((2, 4, 3, 4, 4), (1, 4, 1, 1, 1)),
        ((2, 4, 4, 3, 4), (4, 1, 1)),
        ((2, 4, 2, 2, 2, 4), (4, 1, 1, 1, 1)),
    ],
    ids=str,
)
def test_a_constant_of_any_axis_keeps_it(
    plugin: Plugin, data: Sequence[int], shape: Sequence[int], columns: int
) -> None:
    sizes = ",".join([*(f"S{axis}" for axis in range(len(data) - 1)), "4"])
    weights = {"w": numbers(4, columns, seed=1), "b": numbers(*shape)}
    model = network(sizes, len(data), COLUMNS["add"], **weights)
    check(plugin, model, numbers(*data, seed=5))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_a_constant_of_the_second_axis_keeps_its_type(runtime: Runtime, dtype: Any) -> None:
    x, w, b = (numbers(*shape).astype(dtype) for shape in [(2, 4, 3, 4), (4, 4), (1, 4, 1, 1)])
    text = f"""g ({x.dtype.name}[A,B,C,4] x) => (float[D,E,F,G] y) {{
        m = MatMul(x, w) a = Add(m, b) y = Cast<to = 1>(a) }}"""
    model = Network.from_bytes(parse(text, {"w": w, "b": b}).SerializeToString()).model
    hints = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = runtime.compile(runtime.convert(model), "CPU", hints)
    if dtype is ml_dtypes.bfloat16:
        given = openvino.Tensor(x.view(np.uint16), openvino.Shape(x.shape), openvino.Type.bf16)
    else:
        given = openvino.Tensor(x)
    right = x.astype(np.float32) @ w.astype(np.float32) + b.astype(np.float32)
    np.testing.assert_allclose(compiled({"x": given})[0], right, rtol=0.02)


def test_openvino_alone_takes_a_constant_of_the_second_axis_for_one_of_columns() -> None:
    model = network("A,B,C,4", 4, COLUMNS["add"], w=SQUARE, b=numbers(1, 4, 1, 1))
    x = numbers(3, 4, 4, 4, seed=5)
    right = Case("g", model, {"x": x}).expected()["y"]
    assert not np.allclose(alone(model)({"x": x})[0], right, rtol=1e-3)


RMS = """q = Mul(x, x) v = ReduceMean(q, last) e = Add(v, A) r = Sqrt(e) d = Div(x, r)
    z = Mul(d, B)"""
VARIANCE_OF_ROWS = """m = ReduceMean(x, last) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, last)
    e = Add(v, A) r = Sqrt(e) z = Div(d, r)"""
GELU = "a = Div(x, A) e = Erf(a) f = Add(e, B) h = Mul(x, f) z = Mul(h, C)"
HARD_SWISH = "a = Add(x, A) b = Max(a, B) c = Min(b, C) d = Mul(x, c) z = Div(d, C)"
PATTERNS: dict[str, tuple[str, dict[str, float]]] = {
    "rms": (RMS, {"A": 0.01, "B": 2}),
    "variance": (VARIANCE_OF_ROWS, {"A": 0.01}),
    "gelu": (GELU, {"A": 2**0.5, "B": 1, "C": 0.5}),
    "swish": ("a = Mul(x, A) s = Sigmoid(a) z = Mul(x, s)", {"A": 2}),
    "hard_swish": (HARD_SWISH, {"A": 3, "B": 0, "C": 6}),
    "clip": ("a = Max(x, A) z = Min(a, B)", {"A": 0, "B": 1}),
    "clip_from_above": ("a = Min(B, x) z = Max(A, a)", {"A": 0, "B": 1}),
    "softplus": ("a = Exp(x) b = Add(A, a) z = Log(b)", {"A": 1}),
    "nothing": ("a = Relu(x) b = Add(a, A) z = Mul(b, B)", {"A": 0, "B": 1}),
}
CASES = [(name, odd) for name, (_, numbers_) in PATTERNS.items() for odd in numbers_]
TAILS = ["z = Softmax<axis = 1>(t)", "z = ReduceSum<keepdims = 0>(t, one)", "z = Neg(t)"]


def pattern(name: str, odd: str, shape: Sequence[int]) -> tuple[str, dict[str, Any]]:
    """The operations of a pattern with one constant of this shape, and the weights."""
    nodes, values = PATTERNS[name]
    weights: dict[str, Any] = {each: np.array(value, np.float32) for each, value in values.items()}
    weights[odd] = np.full(shape, values[odd], np.float32)
    return nodes, weights | ({"last": np.array([-1])} if "last" in nodes else {})


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 1, 1, 1), (2, 1, 1, 1), (1, 3, 1, 1)], ids=str)
@pytest.mark.parametrize(("name", "odd"), CASES)
def test_a_pattern_keeps_the_shape_of_each_constant(
    plugin: Plugin, name: str, odd: str, shape: Sequence[int], tail: str
) -> None:
    nodes, weights = pattern(name, odd, shape)
    reduced = "ReduceSum" in tail
    weights |= {"one": np.array([1])} if reduced else {}
    nodes = f"{nodes.replace('z =', 't =')} {tail.replace('z =', 'y =')}"
    model = network("A,B,4", len(shape) - reduced, nodes, **weights)
    check(plugin, model, *(numbers(*data, seed=7) for data in [(1, 2, 4), (3, 2, 4), (1, 1, 4)]))


@pytest.mark.parametrize("shape", [(), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("name", PATTERNS)
def test_a_product_of_a_pattern_gets_the_axes_of_a_constant(
    plugin: Plugin, name: str, shape: Sequence[int]
) -> None:
    nodes, weights = pattern(name, "A", shape)
    weights |= {"w": SQUARE, "bias": numbers(2, 1, 1, 1, 1)}
    nodes = f"{nodes.replace('z =', 't =')} p = MatMul(t, w) y = Add(p, bias)"
    model = network("A,B,4", 5, nodes, **weights)
    check(plugin, model, *(numbers(*data, seed=7) for data in [(1, 2, 4), (3, 2, 4), (1, 1, 4)]))


@pytest.mark.parametrize("data", ["1,2,4", "A,2,4", "1,1,1,1,1,2,4"])
@pytest.mark.parametrize(("name", "odd"), CASES)
def test_a_pattern_keeps_a_constant_that_repeats_known_sizes(
    plugin: Plugin, name: str, odd: str, data: str
) -> None:
    axes = data.count(",") + 1
    nodes, weights = pattern(name, odd, (3, *[1] * (axes - 1)))
    model = network(data, axes, nodes.replace("z =", "y ="), **weights)
    check(plugin, model, numbers(*[1] * (axes - 2), 2, 4, seed=7))


@pytest.mark.parametrize("factor", [(1, 1, 1, 4), (3, 1, 1, 1), (1, 3, 1, 4)], ids=str)
def test_a_norm_keeps_the_axes_of_its_factor(plugin: Plugin, factor: Sequence[int]) -> None:
    nodes, weights = pattern("rms", "A", ())
    weights["B"] = numbers(*factor)
    model = network("A,B,4", 4, nodes.replace("z =", "y ="), **weights)
    check(plugin, model, numbers(1, 2, 4, seed=7), numbers(3, 2, 4, seed=8))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, (3, 1, 1)) for name in ("rms", "variance", "swish")),
        *((name, (1, 1, 1, 1)) for name in PATTERNS if name != "nothing"),
    ],
)
def test_openvino_alone_drops_the_shape_of_a_constant(name: str, shape: Sequence[int]) -> None:
    nodes, weights = pattern(name, "A", shape)
    model = network("A,B,4", len(shape), nodes.replace("z =", "y ="), **weights)
    x = numbers(1, 2, 4, seed=7)
    right = Case("g", model, {"x": x}).expected()["y"]
    assert alone(model)({"x": x})[0].shape != right.shape


IMAGES = "B,4,H,W"
WINDOW = numbers(4, 4, 3, 3)
VECTOR = numbers(4)
ORDINARY: dict[str, tuple[str, int, str, dict[str, Any]]] = {
    "bias": ("B,S,4", 3, "m = MatMul(x, w) y = Add(m, b)", {"w": SQUARE, "b": VECTOR}),
    "bias_of_4_axes": ("A,B,C,4", 4, "m = MatMul(x, w) y = Add(m, b)", {"w": SQUARE, "b": VECTOR}),
    "bias_of_a_convolution": (
        IMAGES,
        4,
        "c = Conv(x, w) a = Add(c, b) y = Relu(a)",
        {"w": WINDOW, "b": numbers(1, 4, 1, 1)},
    ),
    "normalised_channels": (
        IMAGES,
        4,
        "c = Conv(x, w) y = BatchNormalization(c, g, g, g, g)",
        {"w": WINDOW, "g": VECTOR},
    ),
    "normalised_rows": (
        "B,S,4",
        3,
        "n = LayerNormalization(x, g, g) m = MatMul(n, w) a = Add(m, g) y = Gelu(a)",
        {"w": SQUARE, "g": VECTOR},
    ),
    "mean_square": (
        "B,S,4",
        3,
        """q = Mul(x, x) v = ReduceMean(q, last) e = Add(v, eps) r = Sqrt(e) d = Div(x, r)
        y = Mul(d, g)""",
        {"last": np.array([-1]), "eps": np.float32(0.01), "g": VECTOR},
    ),
    "clipped": (
        IMAGES,
        4,
        "c = Conv(x, w) a = Max(c, z) y = Min(a, e)",
        {"w": WINDOW, "z": np.float32(0), "e": numbers(1)},
    ),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_networks_stay_fused(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sizes, axes, nodes, weights = ORDINARY[name]
    model = Network.from_bytes(network(sizes, axes, nodes, **weights).SerializeToString()).model
    found = kinds(runtime.compile(runtime.convert(model), "CPU", {}))
    monkeypatch.setattr(session, "keep_shapes", lambda _: None)
    assert found == kinds(runtime.compile(runtime.convert(model), "CPU", {}))


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
