"""What the CPU device makes of a network before it compiles it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import pytest

from headrace.plugins import cpu
from headrace.runtime.errors import InvalidArgument, UnsupportedLayers
from headrace.runtime.infer_request import InferRequest
from headrace.runtime.network import Network
from headrace.runtime.plugin import Plugin
from headrace.testing.case import parse
from headrace.testing.services import services

SPECTRUM = """spectrum (float[1,10,1] x) => (float[1,10,2] y) {
    [transform] y = DFT(x)
}"""


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with services() as offered:
        yield cpu.create_plugin("CPU", offered, {})


def network(text: str) -> Network:
    return Network.from_bytes(parse(text).SerializeToString())


def test_a_frequency_that_is_not_there_is_none(plugin: Plugin) -> None:
    compiled = plugin.load_network(network(SPECTRUM), {})
    x = np.full((1, 10, 1), 540, np.float32)
    y = InferRequest(compiled).infer({"x": x})["y"]
    compiled.close()
    assert isinstance(y, np.ndarray)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y[0, :, 0], [5400] + [0] * 9, atol=1e-7)
    np.testing.assert_allclose(y[0, :, 1], 0, atol=1e-7)


def test_the_transform_is_still_one_layer_to_whoever_asks(plugin: Plugin) -> None:
    query = plugin.query_network(network(SPECTRUM), {})
    assert query.supported_layers == {"transform": "CPU"}


def test_a_window_is_widened_with_its_signal_and_the_rest_is_not(plugin: Plugin) -> None:
    text = """short (float[1,128,1] x, int64 step, float[16] window) => (float[1,15,9,2] y) {
        y = STFT(x, step, window)
    }"""
    query = plugin.query_network(network(text), {})
    assert not query.unsupported
    compiled = plugin.load_network(network(text), {})
    casts = [each for each in compiled.network.nodes() if each.op_type == "Cast"]
    compiled.close()
    assert [each.inputs[0].name for each in casts if each.inputs[0]][:2] == ["x", "window"]
    assert len(casts) == 3


def test_one_of_float64_stays_as_it_is(plugin: Plugin) -> None:
    compiled = plugin.load_network(network(SPECTRUM.replace("float", "double")), {})
    assert [each.op_type for each in compiled.network.nodes()] == ["DFT"]
    assert compiled.outputs[0].dtype == ir.DataType.DOUBLE
    compiled.close()


_ATTENTION = (
    "g (float[a,b,c,d] q, float[a,e,f,d] k) => (float[h,i,j,l] y) { y = Attention(q, k, k) }"
)
_CONV = "g (float[a,b,8,8] x, float[m,b,3,3] w) => (float[c,d,e,f] y) { y = Conv(x, w) }"
_TRANSPOSED = (
    "g (float[a,1,b,4,5] x) => (float[c,d,e,f,h] y) "
    "<float[1,1,1,1,1] w = {2}> { y = ConvTranspose(x, w) }"
)


_WITHIN_FUNCTION = (
    "g (float[a,b,8,8] x, float[m,b,3,3] w) => (float[c,d,e,f] y) { y = headrace.test.f(x, w) } "
    '<domain: "headrace.test", opset_import: ["" : 23]> f (x, w) => (y) { y = Conv(x, w) }'
)


def recurrent(layer: str) -> str:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[layer]
    return f"""recurrent (float[a,b,4] x) => (float[c,d,e,f] y)
    <float[1,{3 * gates},4] w = {{{", ".join(["1"] * 12 * gates)}}},
    float[1,{3 * gates},3] r = {{{", ".join(["1"] * 9 * gates)}}}>
    {{ y = {layer}<hidden_size=3>(x, w, r) }}"""


@pytest.mark.parametrize(
    ("text", "sizes", "refused"),
    [
        (recurrent("LSTM"), [(2, 2, 4)], False),
        (recurrent("LSTM"), [(0, 2, 4)], False),
        (recurrent("LSTM"), [(2, 0, 4)], True),
        (recurrent("GRU"), [(2, 2, 4)], False),
        (recurrent("GRU"), [(0, 2, 4)], True),
        (recurrent("GRU"), [(2, 0, 4)], True),
        (recurrent("RNN"), [(0, 0, 4)], False),
        (_ATTENTION, [(1, 2, 3, 4), (1, 2, 3, 4)], False),
        (_ATTENTION, [(1, 0, 3, 4), (1, 0, 3, 4)], True),
        (_CONV, [(1, 2, 8, 8), (3, 2, 3, 3)], False),
        (_CONV, [(1, 0, 8, 8), (3, 0, 3, 3)], True),
        (_TRANSPOSED, [(1, 1, 3, 4, 5)], False),
        (_TRANSPOSED, [(0, 1, 3, 4, 5)], False),
        (_TRANSPOSED, [(1, 1, 0, 4, 5)], True),
        (_WITHIN_FUNCTION, [(1, 2, 8, 8), (3, 2, 3, 3)], False),
        (_WITHIN_FUNCTION, [(1, 0, 8, 8), (3, 0, 3, 3)], True),
    ],
)
def test_an_empty_tensor_ends_no_process(
    plugin: Plugin, text: str, sizes: list[tuple[int, ...]], refused: bool
) -> None:
    model = parse(text)
    model.opset_import[0].version = 23
    given = Network.from_bytes(model.SerializeToString())
    compiled = plugin.load_network(given, {"DISABLE_TRANSFORMATIONS": "YES"})
    request = InferRequest(compiled)
    inputs = {
        port.name: np.ones(each, np.float32)
        for port, each in zip(compiled.inputs, sizes, strict=True)
    }
    if refused:
        with pytest.raises(InvalidArgument, match="does not take these values"):
            request.infer(inputs)
    else:
        assert request.infer(inputs)
    compiled.close()


@pytest.mark.parametrize(
    "text",
    [
        "g (float[] q, float k) => (float y) { y = Attention(q, k, k) }",
        "g (float[1,2,8] q) => (float[1,2,8] y) "
        "{ y = Attention<q_num_heads=2, kv_num_heads=0>(q, q, q) }",
        "g (float[1,2,8,8] x, float w) => (float[c,d,e,f] y) { y = Conv(x, w) }",
        "g (float x, float[1,1,1,1] w) => (float[c,d,e,f] y) { y = ConvTranspose(x, w) }",
        "g (float[1,64,1] x, int64 step, float[n] w) => (float[a,b,c,d] y) "
        "{ y = STFT(x, step, w) }",
        "g (float[1,64,1] x, int64 step, int64 n) => (float[a,b,c,d] y) { y = STFT(x, step, , n) }",
    ],
)
def test_what_cannot_be_guarded_is_refused(plugin: Plugin, text: str) -> None:
    model = parse(text)
    for value in model.graph.input:
        if not value.type.tensor_type.shape.dim and value.name not in ("step", "n"):
            value.type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedLayers, match=r"the backend (divides|does not end)"):
        plugin.load_network(Network.from_bytes(model.SerializeToString()), {})
