"""No input and no network ends the process, or keeps a thread of it, on the CPU device.

Each of these did so before it was guarded, and ended this test run.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from headrace.plugins.cpu.backend.guard_reasons import SUFFIX
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument, UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.testing.case import network_of, parse
from headrace.testing.infer_request import InferRequest, infer_once

FAILS = "an input is empty, has too few axes, or gives a length of 0"
LEAST = {np.int32: -(2**31), np.int64: -(2**63)}


def network(text: str, opset: int = 23, rankless: bool = False, **weights: Any) -> Network:
    return network_of(text, weights, opset=opset, ranks=not rankless)


run = partial(infer_once, config={"DISABLE_TRANSFORMATIONS": "YES"})


def ones(*sizes: int) -> Any:
    return np.ones(sizes, np.float32)


def recurrent(layer: str, outputs: str = "y") -> str:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[layer]
    ports = "float[c,d,e,f] y" if outputs == "y" else "float[c,d,e] h"
    return f"""recurrent (float[a,b,4] x) => ({ports})
    <float[1,{3 * gates},4] w = {{{", ".join(["1"] * 12 * gates)}}},
    float[1,{3 * gates},3] r = {{{", ".join(["1"] * 9 * gates)}}}>
    {{ {outputs} = {layer}<hidden_size=3>(x, w, r) }}"""


_ANY_GRU = (
    "g (float[a,b,c] x, float[d,e,c] w, float[d,e,f] r) => (float[h,i,j,k] y) "
    "{ y = GRU<hidden_size = 3>(x, w, r) }"
)
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
_NORMALIZED = (
    "g (float[a,1,b] x, float[1] s) => (float[c,d,e] y) "
    "{ t = Abs(x) y = InstanceNormalization(t, s, s) }"
)
_QUANTIZED = (
    "g (float[a,b] x, float[c,d] s) => (uint8[e,f] y) "
    "{ y = QuantizeLinear<block_size = 2, axis = 1>(x, s) }"
)
_UNIQUE = "g (float[a,b] x) => (float[c,d] y) { y = Unique<axis = 0>(x) }"
_WINDOW = (
    "g (float[1,64,1] x, int64 step, float[n] w) => (float[a,b,c,d] y) { y = STFT(x, step, w) }"
)


def scanned(inputs: int, outputs: int) -> str:
    return f"""g (float[2] i, float[a,b] x) => (float[2] s, float[c,d] y) {{
        s, y = Scan<num_scan_inputs = 1, scan_input_axes = [{inputs}],
            scan_output_axes = [{outputs}], body = b (float[2] v, float[e] r) =>
            (float[2] w, float[e] z) {{ w = Identity(v) z = Identity(r) }}>(i, x)
    }}"""


_EMPTY = [
    (recurrent("LSTM"), [ones(2, 2, 4)], False),
    (recurrent("LSTM"), [ones(0, 2, 4)], False),
    (recurrent("LSTM"), [ones(2, 0, 4)], True),
    (recurrent("GRU"), [ones(2, 2, 4)], False),
    (recurrent("GRU"), [ones(0, 2, 4)], True),
    (recurrent("GRU"), [ones(2, 0, 4)], True),
    *((recurrent(each, '"", h'), [ones(2, 2, 4)], False) for each in ("GRU", "LSTM", "RNN")),
    *((recurrent(each, '"", h'), [ones(0, 2, 4)], True) for each in ("GRU", "LSTM", "RNN")),
    (_ANY_GRU, [ones(2, 2, 4), ones(1, 9, 4), ones(1, 9, 3)], False),
    (_ANY_GRU, [ones(2, 2, 0), ones(1, 9, 0), ones(1, 9, 3)], True),
    (recurrent("RNN"), [ones(0, 0, 4)], False),
    (_ATTENTION, [ones(1, 2, 3, 4), ones(1, 2, 3, 4)], False),
    (_ATTENTION, [ones(1, 0, 3, 4), ones(1, 0, 3, 4)], True),
    (_CONV, [ones(1, 2, 8, 8), ones(3, 2, 3, 3)], False),
    (_CONV, [ones(1, 0, 8, 8), ones(3, 0, 3, 3)], True),
    (_TRANSPOSED, [ones(1, 1, 3, 4, 5)], False),
    (_TRANSPOSED, [ones(0, 1, 3, 4, 5)], False),
    (_TRANSPOSED, [ones(1, 1, 0, 4, 5)], True),
    (_WITHIN_FUNCTION, [ones(1, 2, 8, 8), ones(3, 2, 3, 3)], False),
    (_WITHIN_FUNCTION, [ones(1, 0, 8, 8), ones(3, 0, 3, 3)], True),
    (_NORMALIZED, [ones(2, 1, 3), ones(1)], False),
    (_NORMALIZED, [ones(0, 1, 3), ones(1)], False),
    (_NORMALIZED, [ones(2, 1, 0), ones(1)], True),
    (_QUANTIZED, [ones(3, 4), ones(3, 2)], False),
    (_QUANTIZED, [ones(3, 0), ones(3, 0)], True),
    (_UNIQUE, [ones(3, 2)], False),
    (_UNIQUE, [ones(0, 2)], False),
    (_UNIQUE, [ones(3, 0)], True),
    (_WINDOW, [ones(1, 64, 1), np.array(4), ones(16)], False),
    (_WINDOW, [ones(1, 64, 1), np.array(4), ones(0)], True),
    (scanned(1, 0), [ones(2), ones(3, 2)], False),
    (scanned(1, 0), [ones(2), ones(3, 0)], True),
    (scanned(0, 1), [ones(2), ones(3, 2)], False),
    (scanned(0, 1), [ones(2), ones(3, 0)], True),
    (scanned(0, 0), [ones(2), ones(3, 0)], False),
]


@pytest.mark.parametrize(
    ("text", "inputs", "refused", "rankless"),
    [
        (*case, rankless)
        for case in _EMPTY
        for rankless in (False, True)
        if not (rankless and ("Scan" in case[0] or "STFT" in case[0]))  # they want to know the rank
    ],
)
def test_an_empty_tensor_ends_no_process(
    plugin: Plugin, text: str, inputs: list[Any], refused: bool, rankless: bool
) -> None:
    given = network(text, rankless=rankless)
    if refused:
        with pytest.raises(InvalidArgument, match=FAILS):
            run(plugin, given, *inputs)
    else:
        assert run(plugin, given, *inputs)


_LOOP = """g (int64 trips, bool go, float[1] x) => (float[1] y) {
    y = Loop(trips, go, x)
        <body = b (int64 i, bool c, float[1] v) => (bool d, float[1] w) {
            d = Identity(c) w = Add(v, v)
        }>
}"""


def test_samples_of_many_rows_are_not_drawn(plugin: Plugin) -> None:
    text = "g (float[n,3] x) => (int32[n,m] y) { y = Multinomial<sample_size = 8388608>(x) }"
    for opset in (7, 21):
        model = parse(text)
        model.opset_import[0].version = opset
        given = network_of(model)
        assert run(plugin, given, ones(2, 3))["y"].shape == (2, 8_388_608)
        with pytest.raises(InvalidArgument, match="too many rows"):
            run(plugin, given, ones(3, 3))


_BOXES = """g (float boxes, float scores, int64 most, float iou, float score) => (int64[n,3] y)
    { y = NonMaxSuppression(boxes, scores, most, iou, score) }"""
_LIMITS = [np.array([1]), np.array([0.5], np.float32), np.array([0], np.float32)]


@pytest.mark.parametrize("missing", [None, 0, 1, 2])
def test_a_limit_of_boxes_that_is_not_there_is_not_read_from_memory_of_others(
    plugin: Plugin, missing: int | None
) -> None:
    given = network(_BOXES, rankless=True)
    limits = [each[:0] if at == missing else each for at, each in enumerate(_LIMITS)]
    inputs = [np.zeros((1, 1, 4), np.float32), ones(1, 1, 1), *limits]
    if missing is None:
        assert run(plugin, given, *inputs)["y"].tolist() == [[0, 0, 0]]
    else:
        with pytest.raises(InvalidArgument, match=FAILS):
            run(plugin, given, *inputs)


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        (
            "g (float[4] x, int64[n] l) => (float[a] y, float[b] z) { y, z = Split(x, l) }",
            [ones(4), np.ones(0, np.int64)],
        ),
        (
            "g (float[4] x, int64[n] l) => (float[a] y) "
            "{ t = SplitToSequence(x, l) y = ConcatFromSequence<axis = 0>(t) }",
            [ones(4), np.ones(0, np.int64)],
        ),
        (_LOOP, [np.ones(0, np.int64), np.array(True), ones(1)]),
        (_LOOP, [np.array(2), np.ones(0, np.bool_), ones(1)]),
        (
            "g (float[1,10,1] x, int64 n) => (float y) { y = DFT(x, n) }",
            [ones(1, 10, 1), np.ones(0, np.int64)],
        ),
        (
            "g (float[2] x, float r, bool t) => (float[2] y) { y = Dropout(x, r, t) }",
            [ones(2), np.array(0, np.float32), np.ones(0, np.bool_)],
        ),
        (
            "g (float[1,64,1] x, int64 step, int64 n) => (float y) { y = STFT(x, step, , n) }",
            [ones(1, 64, 1), np.array(4), np.array(0)],
        ),
    ],
)
def test_a_scalar_that_is_not_there_or_0_is_refused(
    plugin: Plugin, text: str, inputs: list[Any]
) -> None:
    with pytest.raises(InvalidArgument, match=FAILS):
        run(plugin, network(text, rankless=True), *inputs)


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        (
            'g (float x) => (float y) { y = Einsum<equation = "ij->ji">(x) }',
            [ones(6)],
            [ones(2, 3)],
        ),
        (
            "g (uint8 x, uint8 w) => (int32 y) { y = ConvInteger(x, w) }",
            [np.ones(9, np.uint8), np.ones((1, 1, 2, 2), np.uint8)],
            [np.ones((1, 1, 3, 3), np.uint8), np.ones((1, 1, 2, 2), np.uint8)],
        ),
        (
            "g (float x) => (float y) <float[4] s = {1, 1, 2, 2}> { y = Upsample(x, s) }",
            [ones(1, 1, 1, 2, 2)],
            [ones(1, 1, 2, 2)],
        ),
        (
            "g (float[1,8,1] x, int64 s, float w) => (float y) { y = STFT(x, s, w) }",
            [ones(1, 8, 1), np.array(4), ones()],
            [ones(1, 8, 1), np.array(4), ones(4)],
        ),
        (
            "g (float a, float b) => (float y) { y = Gemm(a, b) }",
            [ones(1), ones(1, 1)],
            [ones(1, 1), ones(1, 1)],
        ),
        (
            "g (float x, int64 axes) => (float y) { y = Squeeze(x, axes) }",
            [ones(1, 2, 1), np.array(2)],
            [ones(1, 2, 1), np.array([2])],
        ),
        (
            "g (float x, int64[n] l) => (float y) { y = ReverseSequence(x, l) }",
            [ones(9), np.array([1])],
            [ones(2, 2), np.array([1, 2])],
        ),
    ],
)
def test_a_tensor_of_too_few_axes_is_refused(
    plugin: Plugin, text: str, wrong: list[Any], right: list[Any]
) -> None:
    opset = 9 if "Upsample" in text else 23
    with pytest.raises(InvalidArgument, match=FAILS):
        run(plugin, network(text, opset, rankless=True), *wrong)
    assert run(plugin, network(text, opset, rankless=True), *right)


@pytest.mark.parametrize(
    "text",
    [
        "g (uint8[a,b] x, uint8[b,c] w) => (int32[a,c] y) { y = MatMulInteger(x, w) }",
        "g (uint8[a,b] x, uint8[b,c] w) => (uint8[a,c] y) <float s = {1}, uint8 z = {0}>"
        "{ y = QLinearMatMul(x, s, z, w, s, z, s, z) }",
        "g (uint8[a,b,e,f] x, uint8[c,b,1,1] w) => (int32[a,c,e,f] y) { y = ConvInteger(x, w) }",
    ],
)
def test_a_sum_of_nothing_answers_no_memory_of_others(plugin: Plugin, text: str) -> None:
    image = "Conv" in text
    shapes = [(1, 0, 2, 2), (3, 0, 1, 1)] if image else [(2, 0), (0, 3)]
    with pytest.raises(InvalidArgument, match=FAILS):
        run(plugin, network(text), *(np.ones(each, np.uint8) for each in shapes))
    shapes = [(1, 1, 2, 2), (3, 1, 1, 1)] if image else [(2, 1), (1, 3)]
    found = run(plugin, network(text), *(np.ones(each, np.uint8) for each in shapes))["y"]
    assert (found == 1).all()


def test_a_quantised_sum_over_an_empty_kernel_answers_no_memory_of_others(plugin: Plugin) -> None:
    text = """g (uint8[1,1,1,1] x, uint8[a,b,c,d] w) => (uint8 y) <float s = {1}, uint8 z = {0}> {
        y = QLinearConv(x, s, z, w, s, z, s, z)
    }"""
    with pytest.raises(InvalidArgument, match=FAILS):
        run(plugin, network(text), np.ones((1, 1, 1, 1), np.uint8), np.ones((1, 1, 0, 1), np.uint8))
    ones_ = np.ones((1, 1, 1, 1), np.uint8)
    assert run(plugin, network(text), ones_, ones_)["y"].tolist() == [[[[1]]]]


@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
@pytest.mark.parametrize("shape", ["", "[1,1,h,w]", "[1,1,1,1]"])
@pytest.mark.parametrize("opset", [7, 22])
def test_a_window_larger_than_the_padded_input_is_refused(
    plugin: Plugin, op_type: str, shape: str, opset: int
) -> None:
    text = f"g (float{shape} x) => (float y) {{ y = {op_type}<ATTRIBUTES>(x) }}"
    large = "kernel_shape=[4,2], strides=[3,2]"
    padded = f"{large}, pads=[1,0,2,1]"
    given = {
        each: network(text.replace("ATTRIBUTES", each), opset, rankless=not shape)
        for each in (large, padded)
    }
    with pytest.raises(InvalidArgument, match="the window is larger than the padded input"):
        run(plugin, given[large], ones(1, 1, 1, 1))
    assert run(plugin, given[padded], ones(1, 1, 1, 1))["y"].shape == (1, 1, 1, 1)
    if "1]" not in shape:
        assert run(plugin, given[large], ones(1, 1, 4, 2))["y"].shape == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("AveragePool", "kernel_shape=[2,2], dilations=[1,2]"),
        ("AveragePool", "kernel_shape=[2,2], count_include_pad=1"),
        ("LpPool", "kernel_shape=[2,2], dilations=[1,2]"),
        ("MaxPool", "kernel_shape=[2,2], dilations=[1,2]"),
        ("MaxPool", "kernel_shape=[1,1]"),
    ],
)
def test_a_larger_window_that_may_see_nothing_is_refused(
    plugin: Plugin, op_type: str, attributes: str
) -> None:
    """The window of one element is asked about an image of none."""
    text = f"g (float[1,1,h,w] x) => (float y) {{ y = {op_type}<{attributes}, strides=[3,3]>(x) }}"
    size = 0 if "[1,1]" in attributes else 1
    with pytest.raises(InvalidArgument, match="the window is larger than the padded input"):
        run(plugin, network(text, 22), ones(1, 1, size, size))


@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
@pytest.mark.parametrize("shape", ["", "[1,c,h,w]", "[1,16,1,2]"])
@pytest.mark.parametrize("opset", [7, 22])
@pytest.mark.parametrize("convolved", [False, True])
def test_a_window_larger_by_less_than_a_stride_takes_what_is_there(
    plugin: Plugin, op_type: str, shape: str, opset: int, convolved: bool
) -> None:
    """Text recognition and echo tests do so with short inputs. ONNX Runtime has other kernels for
    a pool behind a convolution."""
    pool = f"{op_type}<kernel_shape=[3,3], strides=[3,2]>"
    body = f"c = Conv(x, w) y = {pool}(c)" if convolved else f"y = {pool}(x)"
    weights = {"w": np.eye(16, dtype=np.float32).reshape(16, 16, 1, 1)} if convolved else {}
    text = f"g (float{shape} x) => (float y) {{ {body} }}"
    model = network(text, opset, rankless=not shape, **weights)
    x = -np.arange(1, 33, dtype=np.float32).reshape(1, 16, 1, 2)
    right = {
        "AveragePool": x.mean((2, 3)),
        "LpPool": np.sqrt((x * x).sum((2, 3))),
        "MaxPool": x.max((2, 3)),
    }[op_type]
    np.testing.assert_allclose(run(plugin, model, x)["y"][..., 0, 0], right, rtol=1e-6)


def test_a_window_that_is_known_to_fit_needs_no_guard(plugin: Plugin) -> None:
    text = """g (float[n,1,4,4] x) => (float y) {
        y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
    }"""
    compiled = plugin.load_network(Load(network(text), {"DISABLE_TRANSFORMATIONS": "YES"}))
    layers = [each.op_type for each in compiled.network.nodes()]
    compiled.close()
    assert layers == ["MaxPool"]


@pytest.mark.parametrize("constant", [False, True])
def test_aligned_corners_are_two_pixels(plugin: Plugin, constant: bool) -> None:
    text = (
        """g (float[n,r,c] theta{}) => (float y) {{ y = AffineGrid<align_corners={}>(theta, s) }}"""
    )
    for sizes in ([1, 1, 1, 3], [1, 1, 3, 1], [1, 1, 3, 2], [1, 1, 1, 2, 3], [1, 1, 2, 2, 2]):
        theta = np.eye(len(sizes) - 1, dtype=np.float32)[np.newaxis, :-1]
        given = np.array(sizes)
        for aligned in (0, 1):
            if constant:
                grid, inputs = network(text.format("", aligned), s=given), [theta]
            else:
                grid, inputs = network(text.format(", int64[d] s", aligned)), [theta, given]
            if aligned and 1 in sizes[2:]:
                with pytest.raises(
                    InvalidArgument, match="each axis of the grid must have at least two pixels"
                ):
                    run(plugin, grid, *inputs)
            else:
                found = run(plugin, grid, *inputs)["y"]
                ends = 1 - (0 if aligned else 1 / given[:1:-1])
                np.testing.assert_allclose(found.reshape(-1, len(sizes) - 2)[-1], ends)


def divided(op_type: str, dtype: Any) -> str:
    kind = np.dtype(dtype).name
    return f"g ({kind}[n] a, {kind}[n] b) => ({kind}[n] y) {{ y = {op_type}(a, b) }}"


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("opset", [8, 23])
def test_the_least_integer_can_be_divided_by_minus_one(
    plugin: Plugin, dtype: Any, opset: int
) -> None:
    a = np.array([LEAST[dtype], 7, -7, 7, 0], dtype)
    b = np.array([-1, -1, 2, -2, -1], dtype)
    assert run(plugin, network(divided("Div", dtype), opset), a, b)["y"].tolist() == [
        LEAST[dtype],
        -7,
        -3,
        -3,
        0,
    ]
    if opset > 9:
        found = run(plugin, network(divided("Mod", dtype), opset), a, b)["y"]
        assert found.tolist() == [0, 0, 1, -1, 0]


@pytest.mark.parametrize("op_type", ["Div", "Mod"])
def test_what_is_computed_at_the_load_ends_no_process(plugin: Plugin, op_type: str) -> None:
    text = f"g (int32[1] x) => (int32[1] y) {{ c = {op_type}(a, b) y = Add(x, c) }}"
    given = network(text, a=np.array([LEAST[np.int32]], np.int32), b=np.array([-1], np.int32))
    assert not plugin.query_network(given, {}).unsupported
    expected = LEAST[np.int32] if op_type == "Div" else 0
    assert run(plugin, given, np.zeros(1, np.int32))["y"].tolist() == [expected]


def test_a_constant_divisor_needs_no_guard(plugin: Plugin) -> None:
    given = network("g (int32[1] x) => (int32[1] y) { y = Div(x, b) }", b=np.array([2], np.int32))
    compiled = plugin.load_network(Load(given))
    assert [node.op_type for node in compiled.network.nodes()] == ["Div"]
    compiled.close()


def test_sizes_that_follow_from_a_request_are_judged_before_the_run(plugin: Plugin) -> None:
    given = network(
        """g (float[n, h] x, float[m, k] z) => (float[a, b] y) {
            s = Softmax(x) t = Transpose(z) y = Concat<axis = 0>(s, t)
        }"""
    )
    compiled = plugin.load_network(Load(given))
    try:
        assert not any(SUFFIX in (node.name or "") for node in compiled.network.nodes())
        ask = InferRequest(compiled).infer
        assert np.shape(ask({"x": ones(0, 3), "z": ones(3, 2)})["y"]) == (2, 3)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="layer 'y': the shapes of the inputs do not fit"):
            ask({"x": ones(0, 3), "z": ones(2, 3)})
    finally:
        compiled.close()


def test_sizes_in_a_branch_that_does_not_run_may_be_any(plugin: Plugin) -> None:
    given = network(
        """g (bool go, float[n, 1, h, w] x) => (float[a, b, c, d] y) {
            y = If(go) <
                then_branch = t () => (float[e, f, g, i] r) { r = ConvTranspose(x, k) },
                else_branch = o () => (float[j, l, m, o] q) { q = Relu(x) }
            >
        }""",
        k=ones(1, 1, 3, 3),
    )
    empty = ones(1, 1, 0, 5)
    assert run(plugin, given, np.array(False), empty)["y"].shape == empty.shape
    with pytest.raises(InvalidArgument, match=FAILS):
        run(plugin, given, np.array(True), empty)


def test_sizes_that_are_known_in_a_branch_need_no_guard_layers(plugin: Plugin) -> None:
    given = network(
        """g (bool go, float[2, n] x) => (float[a, b] y) {
            y = If(go) <
                then_branch = t () => (float[c, d] r) { r = Concat<axis = 0>(x, x) },
                else_branch = o () => (float[e, f] q) { q = Concat<axis = 1>(k, k) }
            >
        }""",
        k=ones(2, 3),
    )
    compiled = plugin.load_network(Load(given))
    assert not any(SUFFIX in (node.name or "") for node in compiled.network.nodes())
    compiled.close()


def test_a_shape_that_is_only_declared_is_not_believed(plugin: Plugin) -> None:
    model = parse(
        "g (float[n] x, int64[4] e) => (float[a,b,c,d] y) <float[1,1,2,2] t>"
        "{ t = Expand(x, e) y = ConvTranspose(t, w) }",
        {"w": ones(1, 1, 3, 3)},
    )
    assert [info.name for info in model.graph.value_info] == ["t"]
    given = network_of(model)
    with pytest.raises(InvalidArgument, match=FAILS):
        run(plugin, given, ones(1), np.array([1, 1, 0, 5]))


def test_values_of_one_name_in_two_bodies_prove_nothing_about_each_other(plugin: Plugin) -> None:
    then, other = (
        f"b () => (float[1,1,c,d] r) {{ v = {made} r = ConvTranspose(v, w) }}"
        for made in ("Identity(k)", "Expand(k, e)")
    )
    given = network(
        f"g (bool go, int64[4] e) => (float[a,b,c,d] y) "
        f"{{ y = If(go) <then_branch = {then}, else_branch = {other}> }}",
        k=ones(1, 1, 1, 1),
        w=ones(1, 1, 3, 3),
    )
    assert run(plugin, given, np.array(False), np.array([1, 1, 2, 2]))["y"].shape == (1, 1, 4, 4)
    with pytest.raises(InvalidArgument, match=FAILS):
        run(plugin, given, np.array(False), np.array([1, 1, 0, 2]))


@pytest.mark.parametrize(
    ("inputs", "op_type"), [(["", "x"], "Max"), (["", "x"], "Sum"), (["x", "", "x"], "Min")]
)
def test_a_layer_that_lacks_an_input_is_refused(
    plugin: Plugin, inputs: list[str], op_type: str
) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Max(x) }")
    model.graph.node[0].op_type = op_type
    model.graph.node[0].input[:] = inputs
    given = network_of(model)
    (layer,) = plugin.query_network(given, {}).unsupported
    assert layer.reason.endswith("is missing, and ONNX requires it")
    with pytest.raises(UnsupportedLayers, match="is missing"):
        plugin.load_network(Load(given))


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2] x) => (float[2] y) { y = LayerNormalization(x, x, ) }",
        "g (float[1,10,1] x) => (float[a,b,c] y) { y = DFT(x, , ) }",
        "g (float[2] x) => (float[2] y) { y = Max(x, ) }",
    ],
)
def test_optional_inputs_that_end_the_list_may_be_left_out(plugin: Plugin, text: str) -> None:
    model = parse(text.replace(", )", ")").replace(", , )", ")"))
    node = model.graph.node[0]
    while len(node.input) < 3:
        node.input.append("")
    model.opset_import[0].version = 20
    given = network_of(model)
    x = ones(*(dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim))
    assert run(plugin, given, x)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "g (float[1,2,8] q) => (float[1,2,8] y) "
            "{ y = Attention<q_num_heads=2, kv_num_heads=0>(q, q, q) }",
            "the number of heads is 0",
        ),
        (
            "g (float[1,1,9,9] x) => (float[a,b,c,d] y) "
            '{ y = MaxPool<auto_pad="SAME_UPPER", kernel_shape=[2,2], dilations=[2,2]>(x) }',
            "ignores dilations",
        ),
        *(
            (
                f"g (float[{sizes}] x, float[5,4] c) => (float y) "
                f"{{ y = RotaryEmbedding<{attributes}>(x, c, c) }}",
                "it turns an odd number of elements",
            )
            for sizes, attributes in (
                ("1,2,3,9", "interleaved = 1"),
                ("b,2,s,16", "rotary_embedding_dim = 9"),
                ("b,s,18", "num_heads = 2"),
            )
        ),
        (
            "g (float[2,2] x, int64[n,1] i) => (float y) { y = GatherND<batch_dims = -2>(x, i) }",
            "batch_dims is negative",
        ),
        (
            "g (float[2,3] x, int64[2] i) => (float y) { y = GatherND<batch_dims = 1>(x, i) }",
            "the input has 1 axes; it must have at least 2",
        ),
        *(
            (
                f"g (float[{rows},3] x) => (int32 y) {{ y = Multinomial<sample_size={each}>(x) }}",
                "samples; at most 16,777,216 are allowed",
            )
            for rows, each in (("n", 2**31 - 1), ("n", 2**24 + 1), (2**12 + 1, 2**12))
        ),
        (
            "g (float[4] x, int64[1] l) => (float y) { y = ReverseSequence(x, l) }",
            "the input has 1 axes",
        ),
        (
            "g (float[4] x) => (float y) <int64 s = {0}> "
            "{ t = SplitToSequence(x, s) y = ConcatFromSequence<axis = 0>(t) }",
            "split is 0",
        ),
        (
            "g (int8[1,1,4,4] x, int64[4] s) => (int8[a,b,c,d] y) "
            '{ y = Resize<antialias = 1, mode = "linear">(x, , , s) }',
            "negative numbers of 8 bits",
        ),
        (
            "g () => (float[a,b] y, float[c,d] z) <float[1,2] x = {1, 2}> { s = Shape(x)"
            " t = Sub(s, s) l = Concat<axis = 0>(s, t) [two] y, z = Split(x, l) }",
            "input 1 has 4 elements for 2 outputs",
        ),
        (
            "g (int32[6] x) => (float y) { y = TfIdfVectorizer"
            '<mode = "TF", max_gram_length = 1, min_gram_length = 1, max_skip_count = 0,'
            " ngram_counts = [0], ngram_indexes = [0], pool_int64s = [5, 6, 7]>(x) }",
            "ngram_indexes has 1 elements for 3 n-grams",
        ),
        (
            "g (int32[6] x) => (float y) { y = TfIdfVectorizer"
            '<mode = "TF", max_gram_length = 1, min_gram_length = 1,'
            " max_skip_count = 2147483647,"
            " ngram_counts = [0], ngram_indexes = [0], pool_int64s = [5]>(x) }",
            "max_skip_count is 2,147,483,647",
        ),
    ],
)
def test_attributes_that_the_backend_does_not_survive_are_refused(
    plugin: Plugin, text: str, why: str
) -> None:
    given = network(text)
    assert why in plugin.query_network(given, {}).unsupported[0].reason
    with pytest.raises(UnsupportedLayers, match=why):
        plugin.load_network(Load(given))


def test_an_empty_tensor_that_is_known_before_is_blamed_on_its_layer(plugin: Plugin) -> None:
    given = network(
        "g (float[1] s) => (float[1,1,0] y) { [norm] y = InstanceNormalization(x, s, s) }",
        x=ones(1, 1, 0),
    )
    assert [each.layer for each in plugin.query_network(given, {}).unsupported] == ["norm"]
    with pytest.raises(UnsupportedLayers, match="norm"):
        plugin.load_network(Load(given))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("shape", [(0,), (0, 1), (1, 0)], ids=str)
@pytest.mark.parametrize(
    "layer", ["LayerNormalization(x, w, e)", "LayerNormalization(x, e)", "RMSNormalization(x, e)"]
)
def test_an_empty_constant_is_not_taken_for_a_missing_one(
    plugin: Plugin, layer: str, shape: tuple[int, ...], dtype: Any
) -> None:
    name = {np.float32: "float", np.float16: "float16", np.float64: "double"}[dtype]
    text = f"g ({name}[a,b,1] x, {name}[1] w) => ({name} y) {{ [norm] y = {layer} }}"
    given = network(text, e=np.zeros(shape, dtype))
    assert [each.layer for each in plugin.query_network(given, {}).unsupported] == ["norm"]
    with pytest.raises(UnsupportedLayers, match="norm"):
        plugin.load_network(Load(given))


def test_a_depth_that_is_an_empty_constant_ends_no_process(plugin: Plugin) -> None:
    given = network(
        "g (int64[2] i, float[2] v) => (float y) { [hot] y = OneHot(i, d, v) }",
        d=np.zeros(0, np.int64),
    )
    plugin.query_network(given, {})
    with pytest.raises((InvalidArgument, UnsupportedLayers), match=f"hot|{FAILS}"):
        run(plugin, given, np.array([0, 1]), ones(2))


def test_a_network_is_not_loaded_to_judge_a_layer_if_another_ends_the_process(
    plugin: Plugin,
) -> None:
    given = network(
        "g (float[4] x) => (float y) <int64 s = {0}> { t = SplitToSequence(x, s) "
        "u = ConcatFromSequence<axis = 0>(t) v = headrace.test.Strange(u) y = Abs(v) }"
    )
    assert "split is 0" in [each.reason for each in plugin.query_network(given, {}).unsupported]


_JOINED = "g (float[a,b,c] x, float[d,e,f] z) => (float y) { y = Concat<axis=0>(x, z) }"


@pytest.mark.parametrize("opset", [7, 13, 23])
@pytest.mark.parametrize("rankless", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ((3, 3, 0), (3, 3, 3), None),  # left half of the output as the memory was
        ((3, 3, 3), (3, 3, 0), None),
        ((2, 4, 1), (3, 0, 1), None),
        ((2, 0, 1), (3, 4, 1), None),
        ((0, 3, 1), (2, 4, 1), None),
        ((0, 3, 1), (2, 3, 1), (2, 3, 1)),
        ((2, 0, 1), (3, 0, 1), (5, 0, 1)),
        ((2, 3, 4), (5, 3, 4), (7, 3, 4)),
    ],
)
def test_tensors_are_joined_only_if_their_other_axes_are_alike(
    plugin: Plugin, first: Any, second: Any, wanted: Any, rankless: bool, opset: int
) -> None:
    given = network(_JOINED, opset, rankless)
    if wanted is None:
        with pytest.raises(InvalidArgument):
            run(plugin, given, ones(*first), ones(*second))
    else:
        assert run(plugin, given, ones(*first), ones(*second))["y"].shape == wanted


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        ((2, 4, 3), (2, 4, 8)),
        ((2, 0, 3), None),  # a part of the output as the memory was
        ((0, 4, 3), None),
        ((0, 0, 3), None),
        ((2, 0, 0), None),
    ],
)
def test_a_convolution_follows_only_a_state_of_its_own_channels(
    plugin: Plugin, state: Any, wanted: Any
) -> None:
    given = network(
        "g (float[a,b,c] x, float[d,e,f] s) => (float[k,l,m] y, float[n,o,p] t) "
        '{ y, t = CausalConvWithState(x, w, "", s) }',
        27,
        w=ones(4, 1, 4),
    )
    if wanted is None:
        with pytest.raises(InvalidArgument):
            run(plugin, given, ones(2, 4, 8), ones(*state))
    else:
        assert run(plugin, given, ones(2, 4, 8), ones(*state))["y"].shape == wanted


@pytest.mark.parametrize("kind", ["float16", "float"])
@pytest.mark.parametrize("rankless", [False, True])
@pytest.mark.parametrize(
    ("keys", "earlier", "wanted"),
    [
        ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 8, 4)),
        ((1, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 4)),
        ((1, 2, 3, 4), (1, 0, 5, 4), None),
        ((1, 2, 3, 4), (0, 2, 5, 4), None),
        ((1, 0, 3, 4), (1, 2, 5, 4), None),
    ],
)
def test_keys_follow_only_earlier_ones_of_their_own_heads(
    plugin: Plugin, keys: Any, earlier: Any, wanted: Any, rankless: bool, kind: str
) -> None:
    given = network(
        f"g ({kind}[a,b,c,d] k, {kind}[e,f,h,i] p) => ({kind}[l,m,n,o] y, {kind}[q,r,s,t] z, "
        f"{kind}[u,v,w,x] t) "
        '{ y, z, t = Attention(k, k, k, "", p, p) }',
        23,
        rankless,
    )
    dtype = np.float16 if kind == "float16" else np.float32
    inputs = ones(*keys).astype(dtype), ones(*earlier).astype(dtype)
    if wanted is None:
        with pytest.raises(InvalidArgument):
            run(plugin, given, *inputs)
    else:
        assert run(plugin, given, *inputs)["z"].shape == wanted


@pytest.mark.parametrize("rankless", [False, True])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)])
@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ([1.0, 7.0, 2.0], [1.0, 3.0, 5.0]),
        ([7.0, 1.0, -2.0], [7.0, 5.0, 3.0]),
        ([7.0, 1.0, 2.0], []),
        ([0.0, 60000.0, 0.5], None),  # a loop that kept all results until its end
        ([0.0, 1.0, 0.0], None),
        ([0.0, 0.0, 0.0], None),
        ([0.0, [], 1.0], None),  # the process ended
        ([[], 5.0, 1.0], None),
    ],
)
def test_a_range_of_floats_of_16_bits_has_no_more_elements_than_there_are_such_floats(
    plugin: Plugin, numbers: list[Any], wanted: list[float] | None, dtype: Any, rankless: bool
) -> None:
    kind = "float16" if dtype == np.float16 else "bfloat16"
    given = network(
        f"g ({kind} a, {kind} b, {kind} c) => ({kind}[n] y) {{ y = Range(a, b, c) }}",
        27,
        rankless,
    )
    inputs = [np.array(each, dtype) for each in numbers]
    if wanted is None:
        with pytest.raises(InvalidArgument):
            run(plugin, given, *inputs)
    else:
        assert run(plugin, given, *inputs)["y"].tolist() == wanted


@pytest.mark.parametrize(
    ("axis", "first", "second"),
    [(2, (5, 0), (2, 5, 8)), (0, (0,), (3, 3, 3)), (-1, (3, 0), (3, 3, 3)), (0, (3, 0), (2, 0, 4))],
)
def test_tensors_of_different_ranks_are_not_joined(
    plugin: Plugin, axis: int, first: Any, second: Any
) -> None:
    text = f"g (float[a] x, float[b] z) => (float y) {{ y = Concat<axis={axis}>(x, z) }}"
    with pytest.raises(InvalidArgument):  # the process ended
        run(plugin, network(text, rankless=True), ones(*first), ones(*second))


def test_a_concatenation_along_a_batch_that_is_one_input_s_alone_needs_no_guard(
    plugin: Plugin,
) -> None:
    text = """g (float[batch,3,8] x) => (float y) {
        a = Relu(x)
        b = Neg(x)
        y = Concat<axis=1>(a, b)
    }"""
    compiled = plugin.load_network(Load(network(text), {"DISABLE_TRANSFORMATIONS": "YES"}))
    layers = [each.op_type for each in compiled.network.nodes()]
    compiled.close()
    assert layers == ["Relu", "Neg", "Concat"]


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        (
            "g (float[n,c] x, int64[m] t) => (float y) { y = NegativeLogLikelihoodLoss(x, t) }",
            [ones(2, 3), np.zeros(1, np.int64)],
        ),
        (
            "g (float[n,c] x, int64[m] t) => (float y) { y = SoftmaxCrossEntropyLoss(x, t) }",
            [ones(2, 3), np.zeros(1, np.int64)],
        ),
        (
            "g (float[n,c] x, int64[m] t) => (float y) { y = NegativeLogLikelihoodLoss(x, t) }",
            [ones(2, 3), np.array([0, -1])],
        ),
        (
            """g (float[n,c] x, int32[m] t) => (float y) {
                y = SoftmaxCrossEntropyLoss<ignore_index=-2>(x, t)
            }""",
            [ones(2, 3), np.array([-2, -1], np.int32)],
        ),
        (
            "g (float[a,b,c] x, int64[n] s) => (float y) { y = CenterCropPad(x, s) }",
            [ones(3, 3, 3), np.array([5])],
        ),
        (
            "g (float[a,b] x, int64[n] s) => (float y) { y = CenterCropPad<axes=[0, 1]>(x, s) }",
            [ones(3, 3), np.array([5])],
        ),
        (
            "g (float[a,b] x, int64[n] s) => (float y) { y = Squeeze(x, s) }",
            [ones(3, 1), np.zeros(0, np.int64)],
        ),
        (
            "g (float[a,b,c] x, float[d,e,f] z) => (float y) { y = MatMul(x, z) }",
            [ones(1, 1, 0), ones(2, 0, 1)],
        ),
        (
            "g (float[a,b,c] x, float[d] z) => (float y) { y = MatMul(x, z) }",
            [ones(2, 3, 0), ones(0)],  # which answered memory of others
        ),
        (
            "g (float[a,b] x, int64[n] s) => (float y) { y = CenterCropPad(x, s) }",
            [ones(0, 1), np.array([1, LEAST[np.int64]])],
        ),
        (
            """g (int32 n, int32 d, int32 r, float l, float u) => (float y) {
                y = MelWeightMatrix(n, d, r, l, u)
            }""",
            [*(np.array(each, np.int32) for each in (0, -1, 1)), ones(), ones()],
        ),
        (
            "g (string[n] x) => (string y, int64 z) { y, z = StringSplit(x) }",
            [np.array(["a\tb"], object)],
        ),
        (
            "g (string[n] x) => (string y, int64 z) { y, z = StringSplit<maxsplit=1>(x) }",
            [np.array(["a b "], object)],
        ),
    ],
)
def test_values_that_the_backend_takes_for_others_are_refused(
    plugin: Plugin, text: str, inputs: list[Any]
) -> None:
    with pytest.raises(InvalidArgument, match="layer 'y'"):
        run(plugin, network(text), *inputs)


@pytest.mark.parametrize("left_out", [-2, 1])
def test_a_class_that_is_to_be_ignored_may_be_negative(plugin: Plugin, left_out: int) -> None:
    text = f"""g (float[n,c] x, int64[m] t) => (float y) {{
        y = NegativeLogLikelihoodLoss<ignore_index={left_out}, reduction="sum">(x, t)
    }}"""
    found = run(plugin, network(text), ones(3, 3), np.array([left_out, 0, 2]))
    assert found["y"] == -2


CONSTANT_LISTS = [  # where ONNX Runtime ended the process
    ("y = Upsample(x, s)", 9, "float", []),
    ("y = Upsample(x, s)", 9, "float", [1]),
    ("y = Resize(x, s)", 10, "float", []),
    ("y = Resize(x, s)", 10, "float", [3]),
    ('y = Resize(x, "", s)', 13, "float", []),
    ('y = Resize(x, "", s)', 13, "float", [1]),
    ('y = Resize(x, "", s)', 13, "float", [1, 1]),
    ('y = Resize(x, "", s)', 13, "float", [3]),
    ('y = Resize<axes=[2, 3]>(x, "", s)', 18, "float", [3]),
    ('y = Resize<axes=[2, 3]>(x, "", "", s)', 18, "int64", [1]),
    ('y = Resize(x, "", "", s)', 13, "int64", []),
    ('y = Resize(x, "", "", s)', 13, "int64", [5]),
]


@pytest.mark.parametrize(("layer", "opset", "dtype", "shape"), CONSTANT_LISTS)
def test_a_list_of_another_length_than_the_axes_ends_no_process(
    plugin: Plugin, layer: str, opset: int, dtype: str, shape: list[int]
) -> None:
    scales = np.full(shape, 2, np.float32 if dtype == "float" else np.int64)
    given = network(f"g (float x) => (float y) {{ {layer} }}", opset, rankless=True, s=scales)
    with pytest.raises((InvalidArgument, UnsupportedLayers)):
        run(plugin, given, ones(1, 1, 2, 2))


@pytest.mark.parametrize(
    "layer", ["y = SequenceAt(q, s)", "t = SequenceErase(q, s) y = SequenceAt(t, zero)"]
)
@pytest.mark.parametrize("constant", [False, True])
def test_a_place_in_a_sequence_that_is_not_there_ends_no_process(
    plugin: Plugin, layer: str, constant: bool
) -> None:
    place, zero = np.zeros(0, np.int64), np.array(0)
    given = "" if constant else ", int64[m] s"
    text = f"g (float[n] x{given}) => (float y) {{ q = SequenceConstruct(x, x) {layer} }}"
    constants: dict[str, Any] = {"zero": zero, **({"s": place} if constant else {})}
    with pytest.raises((InvalidArgument, UnsupportedLayers)):
        run(plugin, network(text, **constants), ones(2), *(() if constant else (place,)))


@pytest.mark.parametrize("rankless", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("layer", "opset", "first", "second"),
    [
        ("y = AffineGrid(x, s)", 20, ones(2, 2, 3), np.array(2)),
        ("y = AffineGrid<align_corners=1>(x, s)", 20, ones(2, 2, 3), np.array(2)),
        ("y = MaxRoiPool<pooled_shape=[1, 1]>(x, s)", 22, ones(1, 1, 2, 2), ones(5)),
        ("y = MaxRoiPool<pooled_shape=[1, 1]>(x, s)", 22, ones(1, 1, 2, 2), ones()),
        ("y = MaxRoiPool<pooled_shape=[1, 1]>(x, s)", 22, ones(4), ones(1, 5)),
        ("y = RoiAlign(x, r, s)", 22, ones(1, 1, 2, 2), np.array(0)),
    ],
)
def test_a_tensor_of_another_rank_ends_no_process(
    plugin: Plugin, layer: str, opset: int, first: Any, second: Any, constant: bool, rankless: bool
) -> None:
    weights: dict[str, Any] = {"r": ones(1, 4)} if "r" in layer.split("(")[1] else {}
    dtype = "int64" if second.dtype == np.int64 else "float"
    sizes = ",".join("abcd"[: first.ndim]), ",".join("efgh"[: second.ndim])
    given = f", {dtype}[{sizes[1]}] s" if sizes[1] else f", {dtype} s"
    if constant:
        given, weights = "", {**weights, "s": second}
    text = f"g (float[{sizes[0]}] x{given}) => (float y) {{ {layer} }}"
    with pytest.raises((InvalidArgument, UnsupportedLayers)):
        run(plugin, network(text, opset, rankless, **weights), first, *[second] * (not constant))


@pytest.mark.parametrize(
    ("lengths", "steps", "is_sound"), [([2, 3], 3, True), ([2, 0], 3, False), ([0, 0], 0, False)]
)
def test_an_old_scan_over_no_steps_is_refused(
    plugin: Plugin, lengths: list[int], steps: int, is_sound: bool
) -> None:
    text = """g (int64[n] l, float[a,2] i, float[a,b,2] x) => (float[a,2] y, float[a,b,2] z) {
        y, z = Scan<num_scan_inputs=1, body=b (float[2] s, float[2] n) => (float[2] t, float[2] u) {
            t = Add(s, n) u = Identity(t)
        }>(l, i, x)
    }"""
    given = [np.array(lengths), ones(2, 2), ones(2, steps, 2)]
    if is_sound:
        assert run(plugin, network(text, 8), *given)["y"].tolist() == [[3, 3], [4, 4]]
    else:
        with pytest.raises(InvalidArgument, match="layer 'y'"):
            run(plugin, network(text, 8), *given)


@pytest.mark.parametrize("opset", [8, 17])
@pytest.mark.parametrize("scanned", [-1, 0, 5])
def test_a_scan_of_inputs_that_it_does_not_have_is_refused(
    plugin: Plugin, scanned: int, opset: int
) -> None:
    text = f"""g (float[a,2] i, float[a,b,2] x) => (float[a,2] y, float[a,b,2] z) {{
        y, z = Scan<num_scan_inputs={scanned}, scan_input_axes=[1, 1, 1, 1, 1],
            body=b (float[2] s, float[2] n) => (float[2] t, float[2] u) {{
                t = Add(s, n) u = Identity(t)
            }}>(i, x)
    }}"""
    with pytest.raises((InvalidArgument, UnsupportedLayers)):
        run(plugin, network(text, opset), ones(2, 2), ones(2, 3, 2))


def test_texts_are_split_at_spaces(plugin: Plugin) -> None:
    given = network("g (string[n] x) => (string y, int64 z) { y, z = StringSplit(x) }")
    found = run(plugin, given, np.array([" a  b ", "", "c"], object))
    assert found["y"].tolist() == [["a", "b"], ["", ""], ["c", ""]]
    assert found["z"].tolist() == [2, 0, 1]


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("stacks", [0, 1])
@pytest.mark.parametrize(
    ("shapes", "is_sound"),
    [
        (((2, 4), (3, 0)), (False, False)),
        (((3, 0), (2, 4)), (False, False)),
        (((5, 0), (2, 5, 8)), (False, False)),  # the process ended
        (((3, 0), (3,)), (False, False)),
        (((2, 4), (0, 4)), (True, False)),
        (((2, 4), (2, 4)), (True, True)),
    ],
)
def test_tensors_of_a_sequence_are_joined_only_if_they_are_alike(
    plugin: Plugin, shapes: Any, is_sound: tuple[bool, bool], stacks: int, opset: int
) -> None:
    """Before operator set 13 no loop takes a sequence, but its tensors are at hand here."""
    through = "t = SequenceInsert(e, x) s = SequenceInsert(t, z)"
    made = "s = SequenceConstruct(x, z)" if opset == 11 else f"e = SequenceEmpty() {through}"
    text = f"""g (float[a] x, float[b] z) => (float y) {{
        {made}
        y = ConcatFromSequence<axis=0, new_axis={stacks}>(s)
    }}"""
    given = network(text, opset, rankless=True)
    parts = [ones(*shape) for shape in shapes]
    if is_sound[stacks]:
        wanted = np.stack(parts) if stacks else np.concatenate(parts)
        np.testing.assert_array_equal(run(plugin, given, *parts)["y"], wanted)
    else:
        with pytest.raises(InvalidArgument):
            run(plugin, given, *parts)


def test_a_sequence_of_tensors_that_are_known_to_be_alike_needs_no_guard(plugin: Plugin) -> None:
    text = """g (float[2,3] x, float[2,3] z) => (float y) {
        s = SequenceConstruct(x, z)
        y = ConcatFromSequence<axis=0, new_axis=1>(s)
    }"""
    compiled = plugin.load_network(Load(network(text, 11)))
    layers = [each.op_type for each in compiled.network.nodes()]
    compiled.close()
    assert layers == ["SequenceConstruct", "ConcatFromSequence"]


def test_a_sequence_is_not_joined_where_a_loop_cannot_look_at_it(plugin: Plugin) -> None:
    given = network(
        "g (seq(float) x) => (float y) { [join] y = ConcatFromSequence<axis=0>(x) }", 11
    )
    assert [each.layer for each in plugin.query_network(given, {}).unsupported] == ["join"]
    with pytest.raises(UnsupportedLayers, match="join"):
        plugin.load_network(Load(given))


@pytest.mark.parametrize(
    "text",
    [
        """g (float x, int64[n] s) => (float y) {
            y = Resize<axes=[1, 2]>(x, "", "", s)
        }""",
        "g (float x, int64[n] s) => (float y) { a = Concat<axis=0>(s, s) y = Reshape(x, a) }",
    ],
)
def test_an_output_of_sizes_that_no_array_has_is_refused(plugin: Plugin, text: str) -> None:
    loaded = network(text, rankless=True)
    with pytest.raises(InvalidArgument):
        run(plugin, loaded, ones(0, 1, 1), np.array([1 << 40, 1 << 40]))


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        ("g (float x) => (float y) <float[2] s = {1, 1}> { y = Upsample(x, s) }", [ones(0, 2, 3)]),
        ("g (float x, float w) => (float y) { y = Gemm(x, w) }", [ones(0, 2, 2), ones(2, 3)]),
        (
            "g (float x, int64 s, float w) => (float y) { y = STFT(x, s, w) }",
            [ones(1, 8, 1), np.array(1), ones(0, 4)],
        ),
    ],
)
def test_an_empty_tensor_of_too_many_axes_is_refused(
    plugin: Plugin, text: str, inputs: list[Any]
) -> None:
    opset = 9 if "Upsample" in text else 23
    with pytest.raises(InvalidArgument):
        run(plugin, network(text, rankless=True, opset=opset), *inputs)


def test_an_output_of_more_axes_than_an_array_has_is_refused(plugin: Plugin) -> None:
    loaded = network("g (int64[n] x) => (float y) { y = ConstantOfShape(x) }", rankless=True)
    with pytest.raises(InvalidArgument, match="more than 64 axes"):
        run(plugin, loaded, np.ones(65, np.int64))


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,8,1] x, int64 s, float[2,2] w) => (float[a,b,c,d] y) { y = STFT(x, s, w) }",
        "g (float[n] x) => (float[a,b] y) { y = EyeLike(x) }",
        "g (float[a,b,c,d] x, int64[e,f] t) => (float y) { y = SoftmaxCrossEntropyLoss(x, t) }",
        "g (float[a,b] x, int64[e,f] t) => (float y) { y = NegativeLogLikelihoodLoss(x, t) }",
        "g (float[n] x, float[n,m] w) => (float[a,b] y) { y = Gemm<beta=0.5>(x, w, w) }",
        "g (float x, float[2] w) => (float[a,b] y) <float v = {1}> { y = Gemm<beta=0.5>(x, w, v) }",
    ],
)
def test_a_layer_of_a_wrong_rank_is_not_supported(plugin: Plugin, text: str) -> None:
    (layer,) = plugin.query_network(network(text), {}).unsupported
    assert re.search("must have|expected to have rank 2", layer.reason)


@pytest.mark.parametrize(
    "text",
    [
        "g (int32[n] x) => (float[n] y) { y = Cast<to = -1>(x) }",
        """g (float[1,1,1,1] x) => (float[a,b,c,d] y) <float[1,1] s = {1}> {
            y = Resize<coordinate_transformation_mode = "align_corners", mode = "cubic">(x, "", s)
        }""",
    ],
)
def test_an_attribute_or_a_constant_that_makes_no_sense_is_refused(
    plugin: Plugin, text: str
) -> None:
    assert plugin.query_network(network(text), {}).unsupported


@pytest.mark.parametrize("rankless", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_aligned_corners_with_a_scale_that_gives_no_whole_size_are_refused(
    plugin: Plugin, mode: str, rankless: bool
) -> None:
    text = f"""g (float[1,1,4,3] x) => (float[a,b,c,d] y) <float[4] s = {{1, 1, 0.8, 0.8}}> {{
        y = Resize<coordinate_transformation_mode="align_corners", mode="{mode}">(x, "", s)
    }}"""
    assert plugin.query_network(network(text, rankless=rankless), {}).unsupported
    whole = text.replace("0.8", "2.0")
    assert not plugin.query_network(network(whole, rankless=rankless), {}).unsupported
