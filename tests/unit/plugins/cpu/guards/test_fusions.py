"""Layers that ONNX Runtime rewrites or computes as one answer as ONNX says, and end no process.

Each of these ended this test run, was answered against ONNX, or was answered wrongly before. The
fuzzer's sweep of ranks found them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument, UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.testing.case import network_of
from headrace.testing.infer_request import infer_once

_BEHIND_A_TRANSPOSE = """g (float[a,b,c,d] x, INPUTS) => (float[e,f,g,h] y) {
    t = Transpose<perm = [0, 3, 1, 2]>(x)
    m = LAYER
    y = Transpose<perm = [0, 2, 3, 1]>(m)
}"""


def network(text: str, opset: int = 21, rankless: bool = False, **weights: Any) -> Network:
    return network_of(text, weights, opset=opset, ranks=not rankless)


def run(plugin: Plugin, given: Network, *inputs: Any) -> Any:
    return infer_once(plugin, given, *inputs)["y"]


def test_a_quantised_convolution_of_a_scalar_ends_no_process(plugin: Plugin) -> None:
    text = """g (uint8 x) => (uint8 y) <float s = {0.5}, uint8 z = {0}> {
        a = DequantizeLinear(x, s, z)
        c = DequantizeLinear(w, s, z)
        m = Conv(a, c)
        y = QuantizeLinear(m, s, z)
    }"""
    given = network(text, rankless=True, w=np.ones((2, 2, 3, 3), np.uint8))
    image = np.ones((1, 2, 4, 4), np.uint8)
    assert (run(plugin, given, image) == 9).all()  # 18 products of 0.5 * 0.5, in steps of 0.5
    for wrong in (np.array(1, np.uint8), image.ravel(), image[0, 0]):
        with pytest.raises(InvalidArgument, match="layer 'm'"):
            run(plugin, given, wrong)


def test_a_quantised_softmax_of_nothing_is_refused(plugin: Plugin) -> None:
    text = """g (uint8[a,b] x) => (uint8[c,d] y) <float s = {0.5}, uint8 z = {0}> {
        a = DequantizeLinear(x, s, z)
        m = Softmax(a)
        y = QuantizeLinear(m, s, z)
    }"""
    assert run(plugin, network(text), np.zeros((3, 1), np.uint8)).tolist() == [[2]] * 3
    with pytest.raises(InvalidArgument, match="layer 'm'"):
        run(plugin, network(text), np.zeros((0, 1), np.uint8))


@pytest.mark.parametrize(
    ("inputs", "layer", "right"),
    [
        ("int64[p] s", "Pad(t, s)", np.array([0, 0, 1, 0, 0, 0, 1, 1])),
        ("float[p] s", "Resize(t, , s)", np.array([1, 1, 2, 1.5], np.float32)),
        ("int64[p] s, int64[2] k", "Pad(t, s, , k)", np.array([0, 1, 0, 0])),
    ],
)
def test_a_list_has_an_element_for_each_axis_behind_a_transpose(
    plugin: Plugin, inputs: str, layer: str, right: Any
) -> None:
    text = _BEHIND_A_TRANSPOSE.replace("INPUTS", inputs).replace("LAYER", layer)
    image = np.ones((1, 4, 3, 2), np.float32)
    axes = [np.array([2, 3])] if "k)" in layer else []
    assert run(plugin, network(text), image, right, *axes).shape[2:] == (4, 2)
    for wrong in (np.append(right, right[-1:]), right[:-1]):
        with pytest.raises(InvalidArgument, match="layer 'm'"):
            run(plugin, network(text), image, wrong, *axes)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_product_with_quantised_weights_rounds_nothing_else(plugin: Plugin, dtype: Any) -> None:
    text = """g (float[a,64] x) => (float[a,8] y) {
        d = DequantizeLinear<axis = 0, block_size = 32>(w, s)
        y = MatMul(x, d)
    }"""
    random = np.random.default_rng(0)
    weights = random.integers(0, 100, (64, 8)).astype(dtype)
    scales = random.random((2, 8)).astype(np.float32)
    x = random.standard_normal((3, 64)).astype(np.float32)
    given = network(text, w=weights, s=scales)
    expected = x.astype(np.float64) @ (weights * np.repeat(scales, 32, axis=0))
    assert np.abs(run(plugin, given, x) - expected).max() < 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("inputs", ["r", "r, f", "r, t", "r, u"])
def test_a_dropout_gives_its_data_and_not_its_ratio(plugin: Plugin, inputs: str) -> None:
    text = f"""g (float x, float a, bool u) => (float y) <bool f = {{0}}, bool t = {{1}}> {{
        r = Abs(a)
        d = Dropout(x, {inputs})
        y = Neg(d)
    }}"""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = run(
        plugin, network(text, rankless=True), x, np.array(-0.0, np.float32), np.array(False)
    )
    assert np.array_equal(result, -x)


@pytest.mark.parametrize("order", [(1, 0, 2), (1, 2, 0)])
def test_a_product_behind_a_transpose_of_nothing_ends_no_process(
    plugin: Plugin, order: tuple[int, ...]
) -> None:
    text = f"""g (float[a,b,c] x, float[d,e,f] z) => (float[g,h,i] y) {{
        t = Transpose<perm = {[*order]}>(x)
        y = MatMul(t, z)
    }}"""
    z = np.ones((2, 3, 4), np.float32)
    for first in (5, 0):
        x = np.ones((2, first, 3), np.float32).transpose(*np.argsort(order))
        if first:
            assert run(plugin, network(text), x, z).shape == (2, first, 4)
        else:
            with pytest.raises(InvalidArgument, match="layer 't'"):
                run(plugin, network(text), x, z)


def test_a_quantised_product_of_nothing_is_refused(plugin: Plugin) -> None:
    text = """g (uint8[a,b] x, uint8[c,d] w) => (uint8[e,f] y) <float s = {0.5}, uint8 z = {0}> {
        a = DequantizeLinear(x, s, z)
        c = DequantizeLinear(w, s, z)
        m = PRODUCT(a, c)
        y = QuantizeLinear(m, s, z)
    }"""
    for product in ("Gemm", "MatMul"):
        given = network(text.replace("PRODUCT", product))
        assert (run(plugin, given, *[np.full((2, 2), 2, np.uint8)] * 2) == 4).all()
        with pytest.raises(InvalidArgument, match="layer 'm'"):
            run(plugin, given, np.zeros((2, 0), np.uint8), np.zeros((0, 3), np.uint8))


def test_the_largest_of_negative_numbers_and_padding_is_zero(plugin: Plugin) -> None:
    text = """g (float[1,1,2,2] x) => (float[1,1,3,3] y) {
        p = Pad(x, w)
        y = MaxPool<kernel_shape = [2, 2]>(p)
    }"""
    given = network(text, w=np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    result = run(plugin, given, np.full((1, 1, 2, 2), -3.0, np.float32))
    assert result[0, 0].tolist() == [[0, 0, 0], [0, -3, 0], [0, 0, 0]]


def test_a_shape_of_sizes_and_a_value_must_fit(plugin: Plugin) -> None:
    text = """g (float[a,b,c] x, int64[1] k) => (float[d,e] y) {
        s = Shape<end = 1>(x)
        t = Concat<axis = 0>(s, k)
        y = Reshape(x, t)
    }"""
    x = np.ones((2, 3, 4), np.float32)
    assert run(plugin, network(text), x, np.array([12])).shape == (2, 12)
    with pytest.raises(InvalidArgument, match="layer 'y'"):
        run(plugin, network(text), x, np.array([6]))


def test_a_bias_of_an_empty_product_keeps_its_shape(plugin: Plugin) -> None:
    text = """g (float[0,0,2,3] x) => (float[a,b,c,d] y) {
        p = MatMul(x, w)
        y = Add(p, b)
    }"""
    weights: dict[str, Any] = {
        "w": np.ones((3, 4), np.float32),
        "b": np.ones(4, np.float32),
    }
    result = run(plugin, network(text, **weights), np.ones((0, 0, 2, 3), np.float32))
    assert result.shape == (0, 0, 2, 4)


def test_a_relu_counts_before_a_quantisation_with_a_negative_scale(plugin: Plugin) -> None:
    text = """g (float[a] x, float s) => (uint8[b] y) <uint8 z = {0}> {
        r = Relu(x)
        y = QuantizeLinear(r, s, z)
    }"""
    x, scale = np.array([-4, 4], np.float32), np.array(-0.5, np.float32)
    assert run(plugin, network(text), x, scale).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("layer", "weights", "reason"),
    [
        ("CenterCropPad<axes: ints = []>(x, w)", np.array([1]), "the list of axes is empty"),
        ("Resize(x, , w)", np.array([1, 1, -2, 2], np.float32), "a scale is not positive"),
    ],
)
def test_a_layer_that_does_not_load_is_said_to_be_refused(
    plugin: Plugin, layer: str, weights: Any, reason: str
) -> None:
    text = f"g (float x) => (float y) {{ y = {layer} }}"
    (found,) = plugin.query_network(network(text, rankless=True, w=weights), {}).unsupported
    assert reason in found.reason


def test_the_repeats_of_a_tile_behind_a_transpose_are_one_for_each_axis(plugin: Plugin) -> None:
    text = """g (float[a,b,c,d] x, int64[p] r) => (float[e,f,g,h] y) {
        t = Transpose<perm = [0, 3, 1, 2]>(x)
        m = Tile(t, r)
        y = Transpose<perm = [0, 2, 3, 1]>(m)
    }"""
    image = np.ones((1, 2, 3, 1), np.float32)
    assert run(plugin, network(text), image, np.array([1, 1, 2, 1])).shape == (1, 4, 3, 1)
    for wrong in (np.array([1, 1, 2]), np.array([1, 1, 2, 1, 1])):
        with pytest.raises(InvalidArgument, match="layer 'm'"):
            run(plugin, network(text), image, wrong)
    fixed = network(text.replace("int64[p]", "int64[5]"))
    with pytest.raises(UnsupportedLayers, match="the input has 4 axes; it must have 5"):
        run(plugin, fixed, image, np.array([1, 1, 2, 1, 1]))


def test_a_product_takes_no_transpose_of_other_axes(plugin: Plugin) -> None:
    text = """g (float x, float z) => (float y) {
        t = Transpose<perm = [0, 2, 1]>(x)
        y = MatMul(t, z)
    }"""
    matrix = np.ones((1, 2, 3), np.float32)
    given = network(text, rankless=True)
    assert (run(plugin, given, matrix, np.ones((1, 2, 4), np.float32)) == 2).all()
    with pytest.raises(InvalidArgument, match="layer 't'"):
        run(plugin, given, np.ones((1, 2, 0, 3), np.float32), np.ones((1, 0, 1), np.float32))


_NORM = """g (float[a,b] x, float small, float two) => (float[c,d] y) <float[4] g = {1, 2, 3, 4}> {
    m = ReduceMean<axes = [-1]>(x)
    d = Sub(x, m)
    e = Pow(d, two)
    v = ReduceMean<axes = [-1]>(e)
    s = Add(v, small)
    r = Sqrt(s)
    n = Div(d, r)
    k = Mul(n, g)
    y = Add(k, g)
}"""
_ROOT_MEAN_SQUARE = """g (float[a,b] x, float small, float two) => (float[c,d] y)
    <float[4] g = {1, 2, 3, 4}> {
    d = Relu(x)
    e = Pow(d, two)
    v = ReduceMean<axes = [-1]>(e)
    s = Add(v, small)
    r = Sqrt(s)
    n = Div(d, r)
    y = Mul(n, g)
}"""


@pytest.mark.parametrize("text", [_NORM, _ROOT_MEAN_SQUARE])
@pytest.mark.parametrize("known", ["", "two", "small", "two, small"])
@pytest.mark.parametrize(("small", "two"), [(1.0, 2.0), (0.5, 4.0)])
def test_a_normalisation_has_the_epsilon_and_the_power_of_its_network(
    plugin: Plugin, text: str, known: str, small: float, two: float
) -> None:
    values = {"small": np.float32(small), "two": np.float32(two)}
    constants: Any = {name: np.array(values[name]) for name in values if name in known}
    for name in constants:
        text = text.replace(f", float {name}", "")
    x = np.array([[1, 2, 4, 8], [3, 0, 0, 1]], np.float32)
    given = [np.array(value) for name, value in values.items() if name not in constants]
    data = x - x.mean(-1, keepdims=True) if "Sub" in text else x
    gains = np.arange(1, 5, dtype=np.float32)
    expected = data / np.sqrt((data**two).mean(-1, keepdims=True) + small) * gains
    if "Sub" in text:
        expected += gains
    result = run(plugin, network(text, 17, **constants), x, *given)
    assert np.allclose(result, expected, rtol=1e-5)


def test_a_product_of_integers_has_as_many_columns_as_its_scales(plugin: Plugin) -> None:
    text = """g (float[a,b] x, uint8[c,d] w, uint8 z) => (float[e,f] y)
        <float[2] s = {0.25, 0.5}> {
        q, t, u = DynamicQuantizeLinear(x)
        p = MatMulInteger(q, w, u, z)
        c = Cast<to = 1>(p)
        m = Mul(t, s)
        y = Mul(c, m)
    }"""
    x, zero = np.ones((3, 4), np.float32), np.array(0, np.uint8)
    for columns in (1, 2):
        result = run(plugin, network(text), x, np.ones((4, columns), np.uint8), zero)
        assert np.allclose(result, [[1, 2]] * 3)
