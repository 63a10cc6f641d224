"""CPU leaves out the rewritings of ONNX Runtime that would change what a network computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from headrace.plugins.cpu.backend import rewritings
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.network.type_inference import infer_types
from headrace.testing.case import network_of, parse
from headrace.testing.infer_request import infer_once
from tools.fuzz.rewritings import main

NORMS = {"LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion"}


def model_of(text: str, **constants: Any) -> onnx.ModelProto:
    return parse(text, constants, opset=17 if "QuantizeLinear" not in text else 19)


def answers(plugin: Plugin, model: onnx.ModelProto, feed: dict[str, Any]) -> list[Any]:
    return [*infer_once(plugin, model, **feed).values()]


def as_written(model: onnx.ModelProto, feed: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[Any] = session.run(None, feed)
    return found


def check(plugin: Plugin, text: str, feed: dict[str, Any], **constants: Any) -> None:
    model = model_of(text, **constants)
    found, wanted = answers(plugin, model, feed), as_written(model, feed)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def left_out(text: str, **constants: Any) -> set[str]:
    network = network_of(model_of(text, **constants))
    infer_types(network.model)
    return rewritings.left_out(network.model) - {rewritings.BELIEVES_SYMBOLS}


def numbers(*sizes: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(sum(sizes)).standard_normal(sizes).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("between", ["Identity(b)", "Reshape(b, k)"])
def test_two_quantisations_with_other_steps_stay_two(
    plugin: Plugin, dtype: Any, between: str
) -> None:
    text = f"""g (float[40] x) => (float[40] y) {{
        a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) c = {between}
        d = QuantizeLinear(c, t, w) y = DequantizeLinear(d, t, w)
    }}"""
    constants = {"s": np.float32(0.5), "t": np.float32(0.1), "z": dtype(5), "w": dtype(9)}
    if "k" in between:
        constants["k"] = np.array([40])
    check(plugin, text, {"x": np.linspace(-9, 9, 40, dtype=np.float32)}, **constants)


def test_two_quantisations_with_the_same_steps_may_become_one() -> None:
    text = """g (float[40] x) => (float[40] y) {
        a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z)
        c = QuantizeLinear(b, s, z) y = DequantizeLinear(c, s, z)
    }"""
    assert not left_out(text, s=np.float32(0.5), z=np.uint8(3))


BIASED = """g (float[1,2,6,6] x) => (float[1,2,4,4] y) {
    a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z)
    w = DequantizeLinear<axis = 0>(k, t, o) c = Conv(b, w, e)
    d = QuantizeLinear(c, r, z) y = DequantizeLinear(d, r, z)
}"""


def biased(scale: float) -> dict[str, Any]:
    return {
        "s": np.float32(0.05),
        "t": np.array([scale, 0.01], np.float32),
        "r": np.float32(0.05),
        "z": np.uint8(128),
        "o": np.zeros(2, np.int8),
        "k": np.full((2, 2, 3, 3), 3, np.int8),
        "e": np.array([5, 1], np.float32),
    }


def test_a_bias_that_does_not_fit_into_steps_of_the_product_stays_a_float(plugin: Plugin) -> None:
    check(plugin, BIASED, {"x": numbers(1, 2, 6, 6)}, **biased(1e-12))
    assert not left_out(BIASED, **biased(0.01))


def test_weights_of_floats_stay_floats_behind_what_was_quantised(plugin: Plugin) -> None:
    text = """g (float[1,2,6,6] x) => (float[1,2,4,4] y) {
        a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z)
        c = Conv(b, w) d = QuantizeLinear(c, s, z) y = DequantizeLinear(d, s, z)
    }"""
    weights = numbers(2, 2, 3, 3)
    weights[0, 0, 0, 0] = 300
    constants = {"s": np.float32(0.05), "z": np.uint8(128), "w": weights}
    x = numbers(1, 2, 6, 6)
    x[:, 0, :4, :4] = 0
    check(plugin, text, {"x": x}, **constants)


NORM = """g ({kind}[2,3,{last}] x) => ({kind}[2,3,4] y) {{
    m = ReduceMean<axes = [-1]>(x) d = Sub({sub}) p = {square} v = ReduceMean<axes = [-1]>(p)
    a = Add(v, e) r = Sqrt(a) n = Div({div}) k = Mul(n, g) y = Add(k, h)
}}"""
ROOT_MEAN_SQUARE = """g ({kind}[2,3,{last}] x) => ({kind}[2,3,4] y) {{
    p = {square} v = ReduceMean<axes = [-1]>(p)
    a = Add(v, e) r = Sqrt(a) n = Div({div}) y = Mul(n, g)
}}"""
SOUND = {"kind": "float", "last": 4, "sub": "x, m"}


def norm(text: str, changed: dict[str, Any]) -> str:
    base = "d" if text is NORM else "x"
    given = {**SOUND, "square": f"Mul({base}, {base})", "div": f"{base}, r", **changed}
    return text.format(**given)


def weights_of(text: str, dtype: Any = np.float32, epsilon: Any = 1e-5) -> dict[str, Any]:
    given = {"e": np.array(epsilon, dtype), "g": numbers(4, dtype=dtype)}
    return given | ({"h": numbers(4, dtype=dtype)} if text is NORM else {})


@pytest.mark.parametrize(
    "changed",
    [
        {"sub": "m, x"},
        {"div": "r, d"},
        {"square": "Mul(d, x)"},
        {"kind": "double"},
        {"last": 1},
    ],
    ids=repr,
)
def test_what_only_looks_like_a_normalisation_is_computed_as_written(
    plugin: Plugin, changed: dict[str, Any]
) -> None:
    dtype = np.float64 if "kind" in changed else np.float32
    constants = weights_of(NORM, dtype, 0.5)
    feed = {"x": numbers(2, 3, changed.get("last", 4), dtype=dtype)}
    check(plugin, norm(NORM, changed), feed, **constants)
    assert left_out(norm(NORM, changed), **constants) == NORMS


@pytest.mark.parametrize("changed", [{"div": "r, x"}, {"kind": "double"}, {"last": 1}], ids=repr)
def test_what_only_looks_like_a_root_mean_square_is_computed_as_written(
    plugin: Plugin, changed: dict[str, Any]
) -> None:
    dtype = np.float64 if "kind" in changed else np.float32
    constants = weights_of(ROOT_MEAN_SQUARE, dtype, 0.5)
    feed = {"x": numbers(2, 3, changed.get("last", 4), dtype=dtype)}
    check(plugin, norm(ROOT_MEAN_SQUARE, changed), feed, **constants)
    assert left_out(norm(ROOT_MEAN_SQUARE, changed), **constants) == NORMS


@pytest.mark.parametrize("text", [NORM, ROOT_MEAN_SQUARE])
def test_a_normalisation_may_become_one_layer(text: str) -> None:
    assert not left_out(norm(text, {}), **weights_of(text))


def test_an_epsilon_of_more_axes_gives_the_result_more(plugin: Plugin) -> None:
    constants = weights_of(NORM, epsilon=np.full((1, 1, 1, 1), 1e-5))
    check(
        plugin,
        norm(NORM, {}).replace("(float[2,3,4] y)", "(float[1,2,3,4] y)"),
        {"x": numbers(2, 3, 4)},
        **constants,
    )


@pytest.mark.parametrize(
    ("kind", "one", "shape"),
    [("float", np.ones((1, 1), np.float32), "1,3"), ("int64", np.array(1), "3")],
)
def test_one_divided_by_x_times_z_stays_so_where_z_divided_by_x_is_another(
    plugin: Plugin, kind: str, one: Any, shape: str
) -> None:
    ports = f"({kind}[3] x, {kind}[3] z) => ({kind}[{shape}] y)"
    text = f"g {ports} {{ d = Div(one, x) y = Mul(d, z) }}"
    feed = {"x": np.array([2, 3, 1], one.dtype), "z": np.array([4, 9, 7], one.dtype)}
    check(plugin, text, feed, one=one)


def test_a_transposed_operand_that_is_a_result_stays_one(plugin: Plugin) -> None:
    text = """g (float[4,3] x, float[5,4] z) => (float[3,5] y, float[4,5] u) {
        t = Transpose(x) u = Transpose(z) y = Gemm(t, u)
    }"""
    check(plugin, text, {"x": numbers(4, 3), "z": numbers(5, 4)})


@pytest.mark.parametrize("add", ["Add(c, d)", "Add(d, c)", "Sum(c, d)"])
@pytest.mark.parametrize("first", ["c = Conv(x, w, b)", "a = Conv(x, w, b) c = Relu(a)"])
def test_an_operand_of_an_addition_that_is_a_result_stays_one(
    plugin: Plugin, first: str, add: str
) -> None:
    text = f"""g (float[1,2,4,4] x, float[n] b) => (float[1,2,2,2] y, float[1,2,2,2] c) {{
        {first} d = Conv(z, w, b) y = {add}
    }}"""
    feed = {"x": numbers(1, 2, 4, 4), "b": numbers(2)}
    check(plugin, text, feed, w=numbers(2, 2, 3, 3), z=numbers(1, 2, 4, 4))


def test_a_resize_of_some_axes_stays_between_transposes(plugin: Plugin) -> None:
    text = """g (float[1,4,3,2] x, int64[2] s) => (float[1,8,6,2] y) {
        t = Transpose<perm = [0,3,1,2]>(x) m = Resize<axes = [2,3]>(t, , , s)
        y = Transpose<perm = [0,2,3,1]>(m)
    }"""
    model = model_of(text)
    model.opset_import[0].version = 18
    feed = {"x": numbers(1, 4, 3, 2), "s": np.array([8, 6])}
    (found,), (wanted,) = answers(plugin, model, feed), as_written(model, feed)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.long
def test_neighbours_of_rewritten_networks_answer_as_written() -> None:
    assert main(["--count", "150", "--seconds", "600"]) == 0
