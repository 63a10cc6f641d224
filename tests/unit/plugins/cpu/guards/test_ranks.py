"""No rank and no length of a tensor ends the process, and none is answered against ONNX.

Each of these ended this test run, or was answered, before it was guarded. The fuzzer's sweep of
ranks found them.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from headrace.plugins import cpu
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument, UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.testing.case import network_of, parse
from headrace.testing.infer_request import infer_once
from headrace.testing.services import services


def network(text: str, opset: int = 23, rankless: bool = False, **weights: Any) -> Network:
    return network_of(text, weights, opset=opset, ranks=not rankless)


def ones(*sizes: int) -> Any:
    return np.ones(sizes, np.float32)


_PAST = """g (float q, float k, float p) => (float y, float a, float b) {
    y, a, b = Attention<q_num_heads = 1, kv_num_heads = 1>(q, k, k, "", p, p)
}"""
_QUANTISED = """g (uint8 x, uint8 w) => (uint8 y) <float s = {1}, uint8 z = {0}> {
    y = QLinearConv(x, s, z, w, s, z, s, z)
}"""
_BATCHES = "g (float x, int64 i) => (float y) { y = GatherND<batch_dims = 1>(x, i) }"
_ROTARY = """g (float x, float c, float s) => (float y) {
    y = RotaryEmbedding<num_heads = HEADS>(x, c, s)
}"""
_LOSS = "g (float x, int64 t, float w) => (float y) { y = LOSS(x, t, w) }"
_TARGET = np.array([0, 3, 2])


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        (_PAST, [ones(1, 2, 4)] * 2 + [ones()], [ones(1, 2, 4)] * 2 + [ones(1, 1, 3, 4)]),
        (
            "g (float x, int64 a) => (float y) { y = DFT(x, , a) }",
            [ones(), np.array(0)],
            [ones(1, 4, 1), np.array(1)],
        ),
        (
            "g (float x, int64 s, float w) => (float y) { y = STFT(x, s, w) }",
            [ones(), np.array(4), ones(4)],
            [ones(1, 8, 1), np.array(4), ones(4)],
        ),
        (
            _QUANTISED,
            [np.array(1, np.uint8), np.ones((1, 1, 2, 2), np.uint8)],
            [np.ones((1, 1, 2, 2), np.uint8)] * 2,
        ),
        *(
            (
                _ROTARY.replace("HEADS", str(heads)),
                [ones(*wrong), ones(1, 3, 4), ones(1, 3, 4)],
                [ones(*right), ones(1, 3, 4), ones(1, 3, 4)],
            )
            for heads, wrong, right in (
                (0, (1, 2, 3, 9), (1, 2, 3, 8)),
                (2, (1, 2, 3, 9), (1, 2, 3, 8)),
                (2, (1, 3, 18), (1, 3, 16)),
            )
        ),
        ("g (float x) => (int64 y) { y = NonZero(x) }", [ones()], [ones(2)]),
        (
            'g (string x) => (string y, int64 z) { y, z = StringSplit<delimiter = ".">(x) }',
            [np.array("a.b", object)],
            [np.array(["a.b"], object)],
        ),
        (
            _BATCHES,
            [ones(1, 1), np.zeros(1, np.int64)],  # its only axis would be a batch and an index
            [ones(1, 1), np.zeros((1, 1), np.int64)],
        ),
        *(
            (
                _BATCHES,
                [ones(*shape), np.zeros((2, 1, 1), np.int64)],
                [ones(2, 2, 1), np.zeros((2, 1, 1), np.int64)],
            )
            for shape in ((1, 2, 1), (4, 2, 1), (0, 2, 1))
        ),
        *(
            (
                _LOSS.replace("LOSS", loss),
                [ones(3, 4), _TARGET, wrong],
                [ones(3, 4), _TARGET, ones(4)],
            )
            for loss in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
            for wrong in (ones(4, 1), ones(5))
        ),
    ],
)
def test_a_tensor_of_another_rank_or_length_is_refused(
    plugin: Plugin, text: str, wrong: list[Any], right: list[Any]
) -> None:
    with pytest.raises(InvalidArgument, match="layer 'y"):
        infer_once(plugin, network(text, rankless=True), *wrong)
    assert infer_once(plugin, network(text, rankless=True), *right)


@pytest.mark.parametrize(
    "text",
    [
        "g (float x) => (int64[a,b] y) { y = NonZero(x) }",
        'g (string x) => (string[a] y, int64 z) { y, z = StringSplit<delimiter = ".">(x) }',
        "g (float x, int64 a) => (float y) { y = DFT(x, , a) }",
        _PAST.replace("float q, float k, float p", "float[1,2,4] q, float[1,2,4] k, float[2] p"),
    ],
)
def test_a_rank_that_is_known_to_be_wrong_is_refused_at_the_load(plugin: Plugin, text: str) -> None:
    given = network(text)
    assert plugin.query_network(given, {}).unsupported
    with pytest.raises(UnsupportedLayers):
        plugin.load_network(Load(given))


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        *(
            ("g (uint8 x) => (int32 y) { y = ConvInteger(w, x) }", np.ones(shape, np.uint8))
            for shape in ((), (0,), (4,))
        ),
        (_QUANTISED.replace("uint8 x, uint8 w", "uint8 x"), np.array(1, np.uint8)),
        ('g (float x) => (float y) { y = Einsum<equation = "bij, bjk -> bik">(w, x) }', ones()),
    ],
)
def test_a_constant_of_a_wrong_rank_ends_no_process(plugin: Plugin, text: str, weight: Any) -> None:
    model = parse(text, {"w": weight})
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    given = network_of(model)
    assert plugin.query_network(given, {}).unsupported
    with pytest.raises(UnsupportedLayers, match="axes; it must have"):
        plugin.load_network(Load(given))


def test_a_scalar_of_two_bits_is_an_array() -> None:
    model = parse("g (float x) => (int2 y) { y = Cast<to = 26>(x) }")
    model.opset_import[0].version, model.ir_version = 25, 13
    with services() as offered:
        plugin = cpu.create_plugin("CPU", offered, {})
        found = infer_once(plugin, network_of(model), ones())["y"]
    assert isinstance(found, np.ndarray)
    assert (found.shape, found.dtype) == ((), ml_dtypes.int2)


_NORMALIZED = """g (float[a,b,4] x, float[a,b,4] s) => (float[c,d,4] y) {
    t = Add(x, s)
    LAYERS
}"""
_AS_ONE = "y = LayerNormalization<axis = -1>(t, g, h)"
_AFTER_A_BIAS = "u = Add(t, h) y = LayerNormalization<axis = -1>(u, g, h)"
_AS_SEVERAL = """
    m = ReduceMean<axes = [-1]>(t) d = Sub(t, m) e = Pow(d, two) f = ReduceMean<axes = [-1]>(e)
    i = Add(f, small) j = Sqrt(i) k = Div(d, j) l = Mul(k, g) y = Add(l, h)
"""


@pytest.mark.parametrize("layers", [_AS_ONE, _AFTER_A_BIAS, _AS_SEVERAL])
def test_a_normalised_sum_is_that_of_onnx_if_its_operands_only_say_that_they_are_alike(
    plugin: Plugin, layers: str
) -> None:
    constants = {"g": ones(4), "h": ones(4)}
    if "two" in layers:
        constants |= {"two": np.array(2, np.float32), "small": np.array(1e-5, np.float32)}
    given = network(_NORMALIZED.replace("LAYERS", layers), 17, **constants)
    for first, second in ((1, 1), (1, 0), (0, 1), (3, 1), (1, 3)):
        result = infer_once(plugin, given, ones(first, 2, 4), ones(second, 2, 4))["y"]
        assert result.shape == (second if first == 1 else first, 2, 4)
        assert (result == 1).all()  # the bias; the layer takes the mean away
    for first, second in ((2, 3), (2, 0)):
        with pytest.raises(InvalidArgument, match="layer 't'"):
            infer_once(plugin, given, ones(first, 2, 4), ones(second, 2, 4))


def vectorizer(*lengths: int) -> Network:
    return network_of(
        "g (float[a,b] x, float[c,d] z) => (float[e,f] y) "
        f"{{ y = ai.onnx.ml.FeatureVectorizer<inputdimensions = {[*lengths]}>(x, z) }}"
    )


def test_features_without_columns_end_no_process(plugin: Plugin) -> None:
    given = vectorizer(2, 3)
    assert infer_once(plugin, given, ones(2, 2), ones(2, 3))["y"].shape == (2, 5)
    with pytest.raises(InvalidArgument, match="layer 'y'"):
        infer_once(plugin, given, ones(0, 0), ones(0, 3))


def test_features_of_a_negative_length_end_no_process(plugin: Plugin) -> None:
    given = vectorizer(2, -2)
    assert plugin.query_network(given, {}).unsupported
    with pytest.raises(UnsupportedLayers, match="is negative"):
        plugin.load_network(Load(given))


def test_a_sum_of_what_one_input_makes_needs_no_guard(plugin: Plugin) -> None:
    text = """g (float[a,b,4] x) => (float[c,d,4] y) {
        r = Relu(x)
        t = Add(x, r)
        y = LayerNormalization<axis = -1>(t, g, h)
    }"""
    compiled = plugin.load_network(Load(network(text, 17, g=ones(4), h=ones(4))))
    layers = [each.op_type for each in compiled.network.nodes()]
    compiled.close()
    assert layers == ["Relu", "Add", "LayerNormalization"]


def test_a_layer_is_refused_within_a_function_too(plugin: Plugin) -> None:
    text = """g (int32[6] x) => (float y) { y = headrace.test.f(x) }
        <domain: "headrace.test", opset_import: ["" : 23]> f (x) => (y) {
            y = TfIdfVectorizer<mode = "TF", max_gram_length = 1, min_gram_length = 1,
                max_skip_count = 0, ngram_counts = [0], ngram_indexes = [0],
                pool_int64s = [5, 6, 7]>(x)
        }"""
    given = network(text)
    assert plugin.query_network(given, {}).unsupported
    with pytest.raises(UnsupportedLayers, match="ngram_indexes"):
        plugin.load_network(Load(given))
