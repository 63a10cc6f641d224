"""What the CPU device makes of a network before it compiles it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.testing.case import network_of
from headrace.testing.infer_request import InferRequest

SPECTRUM = """spectrum (float[1,10,1] x) => (float[1,10,2] y) {
    [transform] y = DFT(x)
}"""


def test_a_frequency_that_is_not_there_is_none(plugin: Plugin) -> None:
    compiled = plugin.load_network(Load(network_of(SPECTRUM)))
    x = np.full((1, 10, 1), 540, np.float32)
    y = InferRequest(compiled).infer({"x": x})["y"]
    compiled.close()
    assert isinstance(y, np.ndarray)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y[0, :, 0], [5400] + [0] * 9, atol=1e-7)
    np.testing.assert_allclose(y[0, :, 1], 0, atol=1e-7)


def test_the_transform_is_still_one_layer_to_whoever_asks(plugin: Plugin) -> None:
    query = plugin.query_network(network_of(SPECTRUM), {})
    assert query.supported_layers == {"transform": "CPU"}


def test_a_window_is_widened_with_its_signal_and_the_rest_is_not(plugin: Plugin) -> None:
    text = """short (float[1,128,1] x, int64 step, float[16] window) => (float[1,15,9,2] y) {
        y = STFT(x, step, window)
    }"""
    query = plugin.query_network(network_of(text), {})
    assert not query.unsupported
    compiled = plugin.load_network(Load(network_of(text)))
    casts = [each for each in compiled.network.nodes() if each.op_type == "Cast"]
    compiled.close()
    assert [each.inputs[0].name for each in casts if each.inputs[0]][:2] == ["x", "window"]
    assert len(casts) == 3


def test_one_of_float64_stays_as_it_is(plugin: Plugin) -> None:
    compiled = plugin.load_network(Load(network_of(SPECTRUM.replace("float", "double"))))
    assert [each.op_type for each in compiled.network.nodes()] == ["DFT"]
    assert compiled.outputs[0].dtype == ir.DataType.DOUBLE
    compiled.close()


@pytest.mark.parametrize(
    ("given", "config", "notes"),
    [
        (SPECTRUM, {}, 1),
        (SPECTRUM, {"DISABLE_TRANSFORMATIONS": "YES"}, 0),
        (SPECTRUM.replace("float", "double"), {}, 0),
    ],
)
def test_a_network_says_that_its_transforms_are_computed_in_float64(
    plugin: Plugin, given: str, config: dict[str, str], notes: int
) -> None:
    compiled = plugin.load_network(Load(network_of(given), config))
    found = compiled.get_metric("NOTES")
    compiled.close()
    assert isinstance(found, list)
    assert len(found) == notes
    assert all("computed in float64" in each for each in found)


REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


@pytest.mark.parametrize("opset", [11, 23])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("layer", [*(f"Reduce{each}" for each in REDUCTIONS), "ArgMax", "ArgMin"])
def test_a_reduction_of_nothing_has_the_right_shape(
    plugin: Plugin, layer: str, keepdims: int, opset: int
) -> None:
    is_arg = layer.startswith("Arg")
    takes_input = opset > 11 and not is_arg
    attribute = "axis = -1" if is_arg else "axes = [-1]"
    config = f"keepdims = {keepdims}" if takes_input else f"{attribute}, keepdims = {keepdims}"
    sizes, dtype = ("d,e,f" if keepdims else "d,e"), ("int64" if is_arg else "float")
    text = (
        f"g (float[a,b,c] x) => ({dtype}[{sizes}] y) "
        f"{'<int64[1] axes = {-1}>' if takes_input else ''}"
        f"{{ y = {layer}<{config}>(x{', axes' if takes_input else ''}) }}"
    )
    compiled = plugin.load_network(Load(network_of(text, opset=opset)))
    request = InferRequest(compiled)
    shapes = [
        np.asarray(request.infer({"x": np.ones(shape, np.float32)})["y"]).shape
        for shape in ((1, 0, 2), (4, 3, 2))
    ]
    compiled.close()
    assert shapes == ([(1, 0, 1), (4, 3, 1)] if keepdims else [(1, 0), (4, 3)])


def test_layers_that_are_fused_into_a_layer_normalization_still_are(plugin: Plugin) -> None:
    text = """g (float[a,b,8] x, float[8] s, float[8] o) => (float[a,b,8] y)
    <int64[1] axes = {-1}, float two = {2}, float epsilon = {0.00001}> {
        m = ReduceMean(x, axes) d = Sub(x, m) p = Pow(d, two) v = ReduceMean(p, axes)
        e = Add(v, epsilon) r = Sqrt(e) n = Div(d, r) t = Mul(n, s) y = Add(t, o)
    }"""
    compiled = plugin.load_network(Load(network_of(text), {"PERF_COUNT": "YES"}))
    request = InferRequest(compiled)
    request.infer(
        {
            "x": np.ones((1, 2, 8), np.float32),
            "s": np.ones(8, np.float32),
            "o": np.ones(8, np.float32),
        }
    )
    counts = request.performance_counts
    compiled.close()
    assert any("LayerNormalization" in each.execution_type for each in counts)
