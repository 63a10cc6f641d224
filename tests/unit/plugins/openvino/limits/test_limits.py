"""What OPENVINO refuses because OpenVINO would compute something else, and no more than that."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from headrace.plugins.openvino.limits import limits
from headrace.plugins.openvino.support import known_limits
from headrace.plugins.openvino.transformations import TRANSFORMATIONS
from headrace.runtime.network.network import Network
from headrace.runtime.network.type_inference import infer_types
from headrace.testing.case import parse

_SIZES = "Constant<value = int64[2] {2, 2}>()"


def _quantized(scale: str, zero_point: str) -> str:
    """A convolution whose weights have this scale `s` and zero point `z`."""
    return (
        f"(uint8[1,2,4,4] x, float a, uint8 b, uint8[2,2,3,3] w, {scale}, {zero_point})"
        " => (uint8[1,2,2,2] y) { y = QLinearConv(x, a, b, w, s, z, a, b) }"
    )


def reasons(text: str, opset: int) -> list[str]:
    """Why layers are refused of a network that the device has transformed, given the network's
    inputs, outputs and nodes."""
    proto = parse(f"f {text}")
    del proto.opset_import[1:]
    proto.opset_import[0].version = opset
    model = Network.from_bytes(proto.SerializeToString()).model
    infer_types(model)
    for transformation in TRANSFORMATIONS:
        transformation(model)
    return list(known_limits(model).values())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(double[2] x) => (double[2] y) { y = Add(x, x) }", "float64"),
        ("(double[2] x) => (float[2] y) { y = Cast<to = 1>(x) }", "float64"),
        ("(float[2] x) => (double[2] y) { y = Cast<to = 11>(x) }", "float64"),
        ("(string[2] x) => (string[2] y) { y = Identity(x) }", "string"),
        ("(seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }", "sequence"),
        ("(optional(float[2]) x) => (bool y) { y = OptionalHasElement(x) }", "optional"),
        ("(int8[2] x) => (int4[2] y) { y = Cast<to = 22>(x) }", "int4"),
        (
            "(int64[2] x) => (int64[2] y) { c = Constant<value = int64 {5000000000}>()"
            " y = Mul(x, c) }",
            "32 bits",
        ),
        (
            "(float[1,2,4,8] q, float[1,2,P,8] k, float[1,2,P,8] v) => (float[1,2,4,8] y)"
            " { y = Attention(q, k, v) }",
            "with one key",
        ),
        (
            "(float[1,4,16] q, float[1,P,16] k, float[1,P,16] v) => (float[1,4,16] y)"
            " { y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v) }",
            "with one key",
        ),
        (
            "(bool[1,1,4,4] x, float[1,2,2,2] g) => (bool[1,1,2,2] y) { y = GridSample(x, g) }",
            "between bools",
        ),
        (
            "(float[1,2,4,8] q, float[1,2,6,8] k) => (float[1,2,4,8] y)"
            " { y = Attention<left_window_size = 2>(q, k, k) }",
            "attention window",
        ),
        ("(float[1,2,2] x, float[2] s) => (float[1,2,2] y) { y = PRelu(x, s) }", "second axis"),
        (
            "(int32[1] z) => (int32[1] y) { x = Constant<value = int32[1] {-16777217}>()"
            " s = Constant<value = int32[1] {1}>() t = PRelu(x, s) y = Add(t, z) }",
            "in float32",
        ),
        *(
            (
                f"(uint8[1,C,4,4] x, {weights}) => (int32[1,M,2,2] y)"
                f" {{ y = ConvInteger({given}) }}",
                "in float32",
            )
            for weights, given in (
                ("uint8[2,64,3,3] w", "x, w"),
                ("uint8[2,C,3,3] w", "x, w"),
                ("uint8[2,29,3,3] w, uint8 z", "x, w, , z"),
                ("int8[2,58,3,3] w, uint8 z", "x, w, z"),
            )
        ),
        ("(float[1,N,2] x, float[2] s) => (float[1,N,2] y) { y = PRelu(x, s) }", "second axis"),
        ("(float[2,1] x, int64 a) => (float[2] y) { y = Squeeze(x, a) }", "has 0 axes"),
        *(
            (f"({shapes}) => (float y) {{ y = {loss}({arguments}) }}", why)
            for loss in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
            for shapes, arguments, why in (
                ("float[3,4] x, int64[3] t, float[5] w", "x, t, w", "number of weights"),
                ("float[3,4] x, int64[3] t, float[1] w", "x, t, w", "number of weights"),
                ("float[3,4] x, int64[3] t, float[N] w", "x, t, w", "number of weights"),
                ("float[3,N] x, int64[3] t, float[4] w", "x, t, w", "number of weights"),
                ("float[3,4,2] x, int64[3] t", "x, t", "must have 2"),
            )
        ),
        (
            "(float[2,1] x, int64 k) => (float[A,B] y, int64[C,D] i) { y, i = TopK(x, k) }",
            "has 0 axes",
        ),
        (
            "(float[1,2,4,8] q, float[1,2,6,8] k) => (float[1,2,4,8] y)"
            " { y = Attention<q_num_heads = 3>(q, k, k) }",
            "q_num_heads",
        ),
        (
            '(int32[2] x, int32[2] n) => (int32[2] y) { y = BitShift<direction = "LEFT">(x, n) }',
            "signed",
        ),
        (
            '(uint8[2] x, uint8[2] n) => (uint8[2] y) { y = BitShift<direction = "LEFT">(x, n) }',
            "shifted out",
        ),
        (
            "(uint32 x) => (uint32 y) { n = Constant<value = uint32 {1}>()"
            ' y = BitShift<direction = "LEFT">(x, n) }',
            "instead of a scalar",
        ),
        ("(float[2] x) => (float8e4m3fn[2] y) { y = Cast<to = 17>(x) }", "saturate"),
        ("(float[2] x) => (float8e8m0[2] y) { y = Cast<to = 24>(x) }", "rounds to even"),
        (
            "(float[2] x) => (float8e8m0[2] y)"
            ' { y = Cast<to = 24, saturate = 0, round_mode = "nearest">(x) }',
            "rounds to even",
        ),
        ("(float[1,8,1] x) => (float[1,8,2] y) { y = DFT(x) }", "Fourier"),
        (
            "(float[4] x) => (uint8[4] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }",
            "ties",
        ),
        (
            "(float[4] x, float s) => (uint8[4] y) { t = Add(s, s) y = QuantizeLinear(x, t) }",
            "ties",
        ),
        ("(float[1,4,1,1] x) => (float[1,4,1,1] y) { y = LRN<size = 2>(x) }", "even size"),
        (
            "(float[a] x, float[2] z) => (float[b] y) { c = Constant<value = bool {1}>()"
            " y = Where(c, z, x) }",
            "the check of its shape",
        ),
        ("(float[1,2] x) => (float[1,2] y) { y = LpNormalization<p = 3>(x) }", "must be 1 or 2"),
        (
            "(float[1,1,a] x) => (float[1,1,b] y) { y = MaxPool<kernel_shape = [2],"
            ' dilations = [2], auto_pad = "SAME_LOWER">(x) }',
            "padding alone",
        ),
        (
            "(float[1,1,1] x) => (float[1,1,1] y) { y = MaxPool<kernel_shape = [2],"
            " dilations = [2], pads = [1, 1]>(x) }",
            "padding alone",
        ),
        ("(uint8[1,1,1,1] x, uint8[1,1,0,1] w) => (int32 y) { y = ConvInteger(x, w) }", "nothing"),
        (
            "(float[5,1,4] x, float[1,12,4] w, float[1,12,3] r, float[1,24] b, int32[1] l,"
            " float[1,1,3] h, float[1,1,3] c, float[1,9] p) => (float[5,1,1,3] y)"
            " { y = LSTM<hidden_size = 3>(x, w, r, b, l, h, c, p) }",
            "peepholes",
        ),
        (
            "(float[1,16,1] x) => (float[A,B,C,D] y) <int64 s = {4}> { y = STFT(x, s) }",
            "length of frames",
        ),
        *(
            (f"(float[1,1,4,4] x) => (float[1,1,A,B] y) {{ y = MaxPool<{each}>(x) }}", "alone")
            for each in (
                "kernel_shape = [2,2], pads = [0,2,0,0]",
                "kernel_shape = [2,2], pads = [0,0,0,3], dilations = [1,2]",
            )
        ),
        (
            "(float[1,5,4] x, float[1,9,4] w, float[1,9,3] r) => (float[1,5,1,3] y)"
            " { y = GRU<hidden_size = 3, layout = 1>(x, w, r) }",
            "layout",
        ),
        (
            "(float[1,1,2,2] x) => (float[1,1,1,1] y)"
            " { y = MaxPool<ceil_mode = 1, kernel_shape = [1,1], strides = [2,2]>(x) }",
            "ceil_mode",
        ),
        (
            "(float[1,1,H,W] x) => (float[1,1,P,Q] y)"
            " { y = MaxPool<ceil_mode = 1, kernel_shape = [1,1], strides = [2,2]>(x) }",
            "ceil_mode",
        ),
        (
            "(float[1,1,2,3] x) => (float[1,1,1,3] y, int64[1,1,1,3] i)"
            " { y, i = MaxPool<kernel_shape = [2,1], storage_order = 1>(x) }",
            "storage_order",
        ),
        (
            "(float[1,1,4,4] x, float[4] s) => (float[1,1,H,W] y)"
            ' { y = Resize<mode = "linear", antialias = 1>(x, , s) }',
            "antialias",
        ),
        (
            "(float[1,1,4,4] x, int64[2] s) => (float[1,1,H,W] y)"
            ' { y = Resize<axes = [2,3], keep_aspect_ratio_policy = "not_larger">(x, , , s) }',
            "keep_aspect_ratio_policy",
        ),
        (
            "(float[1,1,4,4] x, float[4] s) => (float[1,1,H,W] y)"
            ' { y = Resize<mode = "cubic", exclude_outside = 1>(x, , s) }',
            "exclude_outside",
        ),
        (
            '(float[1,1,4,4] x, float[4] s) => (float[1,1,H,W] y) { y = Resize<mode = "linear",'
            ' coordinate_transformation_mode = "align_corners">(x, , s) }',
            "align_corners",
        ),
        (
            "(float[1,1,9,9] x, float[2,4] r, int64[2] b) => (float[2,1,1,1] y)"
            ' { y = RoiAlign<mode = "max">(x, r, b) }',
            "maximum",
        ),
        ("(float[1,1,2,3,4] x, int64[5] n) => (float[A,B,C,D,E] y) { y = Tile(x, n) }", "repeats"),
        ("(float x, int64[0] n) => (float y) { y = Tile(x, n) }", "repeats"),
        (
            "(float[N] x) => (float[A] y, float[B] z) { s = Constant<value = int64[2] {-1, 3}>()"
            " y, z = Split(x, s) }",
            "negative",
        ),
        (
            "(int32[2,2] x, int32[2,2] w) => (int32[2,2] y) { y = Gemm<alpha = 0.5>(x, w) }",
            "fraction",
        ),
        (
            "(float[1,1,H,W] x, float[1,1,2,2] w) => (float[1,1,P,Q] y)"
            ' { y = ConvTranspose<auto_pad = "SAME_UPPER">(x, w) }',
            "auto_pad",
        ),
        (
            "(float[1,1,3,3] x, float[1,1,2,2] w) => (float[1,1,P,Q] y)"
            ' { y = ConvTranspose<auto_pad = "SAME_LOWER", pads = [1,1,1,1]>(x, w) }',
            "auto_pad",
        ),
        (
            "(int64[A] x) => (int64[2,N] y) { c = Constant<value = bool[1,1] {1}>()"
            " y = NonZero(c) }",
            "that nothing has written",
        ),
        ("(int32[2] x) => (int32[2] y) { y = Shrink<lambd = 1.5>(x) }", "fractions"),
        (
            "(float[2] x) => (float y) { n = Constant<value = int64[1] {33}>()"
            " i = Constant<value = int64[1] {1}>() s = ConstantOfShape<value = int64[1] {1}>(n)"
            " e = Expand(x, s) y = ReduceSum<keepdims = 0>(e) }",
            "at most 32 axes",
        ),
        (
            "(float[N,M] x) => (float[A,B] y) { z = Constant<value = float[0,3] {}>()"
            " y = Concat<axis = 0>(x, z) }",
            "an empty constant",
        ),
        ("(float[A,B,C] x) => (float[A,B,C] y) { y = Hardmax<axis = 1>(x) }", "shape"),
        ("(float x, int64[0] s) => (float y) { y = Expand(x, s) }", "scalar"),
        ("(float[N,3] x, int64 a) => (float[N,1] y) { y = ReduceMax(x, a) }", "has 0 axes"),
        (
            "(float[1,1,4,4] x, float[1,1,1,1] w) => (float[1,1,2,2] y)"
            " { y = Conv<kernel_shape = [3,3]>(x, w) }",
            "kernel_shape",
        ),
        *(
            (
                "(float[1,128,1] x, float[N] w) => (float[A,B,C,D] y) <int64 s = {127},"
                f" int64 l = {{16}}> {{ y = STFT(x, s, w{length}) }}",
                "window",
            )
            for length in ("", ", l")
        ),
        *(
            (
                f"(float[1,1,{size}] x, float[1,1,3] w) => (float[1,1,N] y)"
                f" {{ y = ConvTranspose<strides = [2], {attribute}>(x, w) }}",
                reason,
            )
            for size, attribute, reason in (
                ("2", "output_padding = [2]", "output_padding"),
                ("N", "output_padding = [-1]", "output_padding"),
                ("2", "output_padding = [1], output_shape = [8]", "too small"),
                ("N", "output_shape = [8]", "any size"),
                ("3", "output_shape = [8, 8]", "rank"),
            )
        ),
        (
            "(float[1,1,4,4] x, float[1,1,H,W] w) => (float[1,1,C,D] y)"
            " { y = ConvTranspose<kernel_shape = [3,3]>(x, w) }",
            "kernel_shape",
        ),
        (
            "(float[1,1,4,4,4] x) => (float[A,B,C,D,E] y)"
            " { y = MaxPool<ceil_mode = 1, kernel_shape = [3,3]>(x) }",
            "rank",
        ),
        (
            "(float[1,1,4,4] x) => (float[A,B,C,D] y)"
            " { y = MaxPool<ceil_mode = 1, kernel_shape = [3,3], strides = [1]>(x) }",
            "rank",
        ),
        ("(float[N,3] x, int64 a) => (float[N,1] y) { y = ReduceLogSum(x, a) }", "has 0 axes"),
        ("(float[N,M] x, float s) => (float[N,M] y) { y = LayerNormalization(x, s) }", "rank"),
        (
            "(float[N,2,M] x, float[2,M] s, float[M] b) => (float[N,2,M] y)"
            " { y = LayerNormalization<axis = 1>(x, s, b) }",
            "rank",
        ),
        (
            "(float[N,C,2] x) => (float[N,C,2] y)"
            " { y = MeanVarianceNormalization<axes: ints = []>(x) }",
            "no axes",
        ),
        (
            "(float[N,M] x, int64[1] s) => (float[A,B] y)"
            " { y = CenterCropPad<axes: ints = []>(x, s) }",
            "first axes",
        ),
        (
            "(float[N,M] x, int64[1] s) => (float[A,B] y) { y = CenterCropPad(x, s) }",
            "first axes",
        ),
        (
            "(float[N,M] x, float[2] s) => (float[A,B] y)"
            ' { y = Resize<coordinate_transformation_mode = "align_corners">(x, , s) }',
            "whole size",
        ),
        (
            "(float[N,M] x, int64[2] s) => (float[A,B] y)"
            " { y = CenterCropPad<axes = [1, -1]>(x, s) }",
            "twice",
        ),
        (
            "(float[N,M] x, int64[2] s) => (float[A,B] y)"
            " { y = CenterCropPad<axes = [-2, -2]>(x, s) }",
            "twice",
        ),
        (
            "(float[N,M] x, int64[S] s) => (float[A,B] y) { y = CenterCropPad(x, s) }",
            "first axes",
        ),
        (
            "(float[N,C,M] x, float[S] s) => (uint8[N,C,M] y) { y = QuantizeLinear(x, s) }",
            "last axis",
        ),
        (
            "(float[N,C,M] x, float s, uint8[Z] z) => (uint8[N,C,M] y)"
            " { y = QuantizeLinear(x, s, z) }",
            "last axis",
        ),
        (
            "(uint8[L,N,K] x, uint8[K,M] w, uint8[Z] z) => (int32[L,N,M] y)"
            " { y = MatMulInteger(x, w, z) }",
            "each row",
        ),
        *(
            (
                f"({x}[{data}] x, float[{scales}] s, uint8[{points}] z) => ({y}[A,B,C] y)"
                f" {{ y = {layer}<block_size = 2>(x, s, z) }}",
                "of the blocks",
            )
            for layer, x, y in (
                ("DequantizeLinear", "uint8", "float"),
                ("QuantizeLinear", "float", "uint8"),
            )
            for data, scales, points in (
                ("1,4,2", "1,1,2", "1,1,2"),
                ("1,4,2", "1,2,2", "1,1,2"),
                ("1,4,2", "1,2,1", "1,2,1"),
                ("1,4,N", "1,2,N", "1,2,N"),
                ("1,N,2", "1,M,2", "1,M,2"),
            )
        ),
        ("(float[2] x) => (float[2] y) { y = Celu<alpha = 0.0>(x) }", "divides by it"),
        *(
            (
                "(float[L,N,2] x, float[1,Q,2] w, float[1,Q,3] r) => (float[A,B,C] y)"
                f" {{ _, y = {layer}<hidden_size = 3, clip = -1.0>(x, w, r) }}",
                "negative clip",
            )
            for layer in ("GRU", "LSTM", "RNN")
        ),
        ("(float[1,4,1,1] x) => (float[1,4,1,1] y) { y = LRN<size = 3, bias = 0.5>(x) }", "bias"),
        (
            "(float[1,1,4,4] x) => (float[A,B,C,D] y)"
            " { y = LpPool<ceil_mode = 1, kernel_shape = [3,3], strides = [2,2]>(x) }",
            "ceil_mode",
        ),
        *(
            (
                f"(float[1,1,{height},3] x) => (float[A,B,C,D] y) {{ y = AveragePool<ceil_mode = 1,"
                " count_include_pad = 1, kernel_shape = [3,3], pads = [1,1,1,1],"
                " strides = [3,3]>(x) }",
                "beyond the padding",
            )
            for height in ("3", "H")
        ),
        (
            "(float[1,2,4,8] q, float[1,2,6,8] k) => (float[1,2,4,8] y)"
            " { y = Attention<softmax_precision = 2>(q, k, k) }",
            "softmax_precision",
        ),
        (_quantized("float s", "uint8[2] z"), "each output channel"),
        *(
            (
                f"(float[{x}] x, float[{w}] w, float[{r}] r, float[{b}] b) => (float[A,B,C] y)"
                f" {{ _, y = {layer}<hidden_size = 3>(x, w, r, b) }}",
                "axes, and",
            )
            for layer in ("GRU", "LSTM", "RNN")
            for x, w, r, b in (
                ("L,N,P,2", "1,Q,2", "1,Q,3", "1,S"),
                ("N,2", "1,Q,2", "1,Q,3", "1,S"),
                ("L,N,2", "1,1,Q,2", "1,Q,3", "1,S"),
                ("L,N,2", "1,Q,2", "Q,3", "1,S"),
                ("L,N,2", "1,Q,2", "1,Q,3", "S"),
            )
        ),
        *(
            (
                f"(float[{a}] a, float[{b}] b, float[{c}] c) => (float[M,N] y)"
                " { y = Gemm(a, b, c) }",
                "axes, and",
            )
            for a, b, c in (("2,3,4", "4,5", "5"), ("2,3", "1,3,5", "5"), ("2,3", "3,5", "1,2,5"))
        ),
        (
            "(float[1,2,4,8] q, float[1,2,6,8] k) => (float[1,2,4,8] y)"
            " { y = Attention<scale = -1.0>(q, k, k) }",
            "negative scale",
        ),
        (
            "(float[1,2,4,8] q, float[1,2,6,8] k, float[2,6,8] v) => (float[1,2,4,8] y)"
            " { y = Attention(q, k, v) }",
            "another rank",
        ),
        (
            "(uint8[1,1,2,3,4] x, int64[5] s) => (uint8[A,B,C,D,E] y)"
            ' { y = Resize<mode = "cubic">(x, , , s) }',
            "overflow",
        ),
        ("() => (float[A] y) <float[2] x = {1, 2}> { y = Unique<axis = 1>(x) }", "of 1 axes"),
        ("(float[2] x) => (float[A] y) { y = Unique<axis = -2>(x) }", "axis -2"),
        *(
            (
                f"({kind}[2,1] x, float[1,1] s, uint8[{zero}] z) => ({made}[2,1] y)"
                f" {{ y = {operator}(x, s, z) }}",
                "no blocks",
            )
            for operator, kind, made in (
                ("QuantizeLinear", "float", "uint8"),
                ("DequantizeLinear", "uint8", "float"),
            )
            for zero in ("1,1", "2,1")
        ),
        *(
            (
                f"(float[2,3] x{', int64[N] a' if axes else ''}) => (float[A,B] y)"
                f" {{ y = {kind}<noop_with_empty_axes = 1>(x{', a' if axes else ''}) }}",
                "no axes",
            )
            for kind in ("ReduceL1", "ReduceL2", "ReduceLogSum")
            for axes in (True, False)
        ),
        *(
            (
                f"(float[2] x) => ({kind}[2] y) <float s = {{0.1}}, {kind} z = {{0}}>"
                " { y = QuantizeLinear(x, s, z) }",
                "16 bits",
            )
            for kind in ("int16", "uint16")
        ),
        (_quantized("float[2] s", "uint8 z"), "each output channel"),
        (_quantized("float[N] s", "uint8[1] z"), "each output channel"),
    ],
)
def test_what_it_would_get_wrong_is_refused(text: str, why: str) -> None:
    (reason,) = reasons(text, 25)[-1:]
    assert why in reason


@pytest.mark.parametrize(
    "text",
    [
        "(double[2] x) => (int64[1] y) { y = Shape(x) }",
        "(float[2] x) => (float[2] y) { c = Constant<value = double {0.5}>()"
        " h = Cast<to = 1>(c) y = Mul(x, h) }",
        "(float[9] x) => (float[M] y) { a = Constant<value = int64[1] {0}>()"
        " b = Constant<value = int64[1] {9223372036854775807}>() y = Slice(x, a, b) }",
        "(float[1,2,4,8] q, float[1,2,6,8] k) => (float[1,2,4,8] y)"
        " { y = Attention<is_causal = 1, left_window_size = -1>(q, k, k) }",
        *(
            f"(uint8[1,C,4,4] x, {weights}) => (int32[1,M,2,2] y) {{ y = ConvInteger({given}) }}"
            for weights, given in (
                ("uint8[2,28,3,3] w", "x, w"),
                ("uint8[2,28,3,3] w, uint8 z", "x, w, , z"),
                ("int8[2,57,3,3] w, uint8 z", "x, w, z"),
            )
        ),
        "(uint8[1,2,4,4] x, uint8 z) => (int32[1,1,4,4] y) <uint8[1,2,1,1] w = {3, 4}>"
        " { y = ConvInteger(x, w, z) }",
        "(float[1,128,1] x, float[16] w) => (float[A,B,C,D] y) <int64 s = {127}, int64 l = {16}>"
        " { y = STFT(x, s, w, l) }",
        *(
            f"(float[1,1,{size}] x, float[1,1,3] w) => (float[1,1,N] y)"
            f" {{ y = ConvTranspose<strides = [2], output_padding = [1]{shape}>(x, w) }}"
            for size, shape in (
                ("N", ""),
                ("3", ", output_shape = [8]"),
                ("4", ", output_shape = [8]"),
            )
        ),
        '(uint8[2] x, uint8[2] n) => (uint8[2] y) { y = BitShift<direction = "RIGHT">(x, n) }',
        '(uint16[2] x, uint16[2] n) => (uint16[2] y) { y = BitShift<direction = "LEFT">(x, n) }',
        '(uint32 x, uint32 n) => (uint32 y) { y = BitShift<direction = "LEFT">(x, n) }',
        "(float[1,4,1,1] x) => (float[1,4,1,1] y) { y = LRN<size = 3>(x) }",
        "(float[1,4,1,1] x) => (float[1,4,1,1] y) { y = LRN<size = 3, bias = 2.0>(x) }",
        "(float[2] x) => (float[2] y) { y = Celu<alpha = -2.0>(x) }",
        "(float[1,1,2,4] x) => (float[A,B,C,D] y) { y = AveragePool<ceil_mode = 1,"
        " count_include_pad = 1, kernel_shape = [3,3], pads = [1,1,1,1], strides = [3,3]>(x) }",
        "(float[1,2,4,8] q, float[1,2,6,8] k) => (float[1,2,4,8] y)"
        " { y = Attention<softmax_precision = 10>(q, k, k) }",
        "(float[L,N,2] x, float[1,3,2] w, float[1,3,3] r, float[1,6] b) => (float[A,B,C] y)"
        " { _, y = RNN<hidden_size = 3>(x, w, r, b) }",
        "(float[N,K] a, float[K,M] b, float c) => (float[N,M] y) { y = Gemm(a, b, c) }",
        "(float[N] x, int64[2] s) => (float[A] y, float[B] z) { y, z = Split(x, s) }",
        "(float[N] x) => (float[A] y, float[B] z) { y, z = Split<num_outputs = 2>(x) }",
        "(uint8[1,1,3,4] x, int64[4] s) => (uint8[A,B,C,D] y)"
        ' { y = Resize<mode = "cubic">(x, , , s) }',
        "(float[1,1,2,3,4] x, int64[5] s) => (float[A,B,C,D,E] y)"
        ' { y = Resize<mode = "cubic">(x, , , s) }',
        "(float[N,M] x, int64[1] k) => (float[A,B] y) { y = CumSum(x, k) }",
        "(float[2,3] x) => (float[A,B] y) <int64[1] a = {0}>"
        " { y = ReduceL1<noop_with_empty_axes = 1>(x, a) }",
        "(uint16[2] x) => (float[2] y) <float s = {0.1}, uint16 z = {9}>"
        " { y = DequantizeLinear(x, s, z) }",
        "(uint8[1,4,2] x, float[1,2,2] s) => (float[A,B,C] y)"
        " { y = DequantizeLinear<block_size = 2>(x, s) }",
        "(float[1,4,2] x, float[1,2,2] s, uint8[1,2,2] z) => (uint8[A,B,C] y)"
        " { y = QuantizeLinear<block_size = 2>(x, s, z) }",
        "(float[1,1,2,3] x) => (float[1,1,1,3] y)"
        " { y = MaxPool<kernel_shape = [2,1], storage_order = 1>(x) }",
        "(float[2] x) => (float8e4m3fn[2] y) { y = Cast<to = 17, saturate = 0>(x) }",
        "(float[4] x, float s) => (uint8[4] y) { y = QuantizeLinear(x, s) }",
        "(float[1,1,H,W] x) => (float[1,1,P,Q] y)"
        " { y = MaxPool<ceil_mode = 1, kernel_shape = [3,3], strides = [2,2]>(x) }",
        "(float[1,1,4,4] x) => (float[1,1,H,W] y) { s = Constant<value = float[4] {1, 1, 2, 2}>()"
        ' y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , s) }',
        f"(float[1,1,4,4] x) => (float[1,1,2,2] y) {{ s = {_SIZES}"
        ' y = Resize<axes = [2,3], mode = "linear",'
        ' coordinate_transformation_mode = "align_corners">(x, , , s) }',
        "(float[3,4] x, int64[2] n) => (float[A,B] y) { y = Tile(x, n) }",
        "(float[3,4] x) => (float[A,B] y, float z) { y = Unique<axis = -2>(x) z = Unique(x) }",
        "(float x) => (float[A] y) { y = Unique(x) }",
        "(float[1,3,2] x, float[2] s) => (float[1,3,2] y) { y = PRelu(x, s) }",
        "(float[N,2] x, float[2] s) => (float[N,2] y) { y = PRelu(x, s) }",
        "(float[N,M] x, float[M] s, float[M] b) => (float[N,M] y)"
        " { y = LayerNormalization(x, s, b) }",
        "(float[N,P,M] x, float[P,M] s) => (float[N,P,M] y)"
        " { y = LayerNormalization<axis = -2>(x, s) }",
        "(float[N,P,M] x, float[P,M] s) => (float[N,P,M] y)"
        " { y = LayerNormalization<axis = 1>(x, s) }",
        "(float[N,C,2] x) => (float[N,C,2] y) { y = MeanVarianceNormalization<axes = [2]>(x) }",
        "(float[N,M] x, int64[2] s) => (float[A,B] y) { y = CenterCropPad(x, s) }",
        "(float[N,M] x, int64[S] s) => (float[A,B] y) { y = CenterCropPad<axes = [1]>(x, s) }",
        "(float[N,M] x, int64[2] s) => (float[A,B] y) { y = CenterCropPad<axes = [-1, 0]>(x, s) }",
        "(float[N,3,M] x, float[3] s, uint8[3] z) => (uint8[N,3,M] y)"
        " { y = QuantizeLinear(x, s, z) }",
        "(float[N,C,M] x, float[S] s) => (uint8[N,C,M] y) { y = QuantizeLinear<axis = 2>(x, s) }",
        "(float[N,C,M] x, float[1] s, uint8[1] z) => (uint8[N,C,M] y)"
        " { y = QuantizeLinear(x, s, z) }",
        "(uint8[N,K] x, uint8[K,M] w, uint8[Z] z) => (int32[N,M] y) { y = MatMulInteger(x, w, z) }",
        "(uint8[L,N,K] x, uint8[K,M] w, uint8 z) => (int32[L,N,M] y)"
        " { y = MatMulInteger(x, w, z) }",
        _quantized("float s", "uint8 z"),
        _quantized("float[1] s", "uint8[1] z"),
    ],
)
def test_what_it_gets_right_is_not(text: str) -> None:
    assert reasons(text, 25) == []


@pytest.mark.parametrize(("opset", "refused"), [(23, True), (24, False)])
def test_a_causal_mask_after_past_keys_is_that_of_operator_set_24(
    opset: int, refused: bool
) -> None:
    text = """(float[1,2,4,8] q, float[1,2,4,8] k, float[1,2,3,8] p) => (float[1,2,4,8] y) {
        y, pk, pv = Attention<is_causal = 1>(q, k, k, , p, p)
    }"""
    assert bool(reasons(text, opset)) is refused


@pytest.mark.parametrize(("opset", "refused"), [(6, False), (7, True), (16, True)])
def test_a_list_of_slopes_belongs_to_the_second_axis_before_operator_set_7(
    opset: int, refused: bool
) -> None:
    text = "(float[1,2,2] x, float[2] s) => (float[1,2,2] y) { y = PRelu(x, s) }"
    assert bool(reasons(text, opset)) == refused


@pytest.mark.parametrize("operator", ["DynamicQuantizeLSTM", "DynamicQuantizeMatMul"])
def test_onnx_runtimes_operators_that_quantise_are_left_to_it(operator: str) -> None:
    node = ir.Node("com.microsoft", operator, [])
    assert "does not quantise" in (limits.reason(node, 1) or "")
    assert limits.reason(ir.Node("com.microsoft", "FusedMatMul", []), 1) is None


@pytest.mark.parametrize(
    ("scales", "refused"),
    [
        ("1, 1, 2, 2", False),
        ("1, 1, 1.5, 1", False),
        ("1, 1, 1.3, 1", True),
        ("1, 1, 0.5, 1", True),
    ],
)
def test_upsample_needs_scales_that_give_whole_sizes(scales: str, refused: bool) -> None:
    text = (
        f"(float[1,1,4,4] x) => (float[A,B,C,D] y) {{ s = Constant<value = float[4] {{{scales}}}>()"
        " y = Upsample(x, s) }"
    )
    assert bool(reasons(text, 9)) is refused
    assert reasons("(float[1,1,4,4] x, float[4] s) => (float[A,B,C,D] y) { y = Upsample(x, s) }", 9)


@pytest.mark.parametrize("op_type", ["Softsign", "Resize", "Upsample", "RoiAlign"])
def test_what_is_wrong_without_avx_is_refused_there_alone(op_type: str) -> None:
    node = ir.Node("", op_type, [])
    assert "without AVX" in (limits.reason(node, 1, ("FP32", "SSE4")) or "")
    assert "without AVX" not in (limits.reason(node, 1, ("FP32",)) or "")
    assert limits.reason(ir.Node("", "Relu", []), 1, ("FP32", "SSE4")) is None


def test_a_layer_inside_a_body_is_judged_too() -> None:
    text = """(bool c, double[2] x) => (bool y) {
        y = If(c) <
            then_branch = a () => (bool t) { s = Add(x, x) t = Constant<value = bool {1}>() },
            else_branch = b () => (bool e) { e = Constant<value = bool {0}>() }>
    }"""
    assert any("float64" in reason for reason in reasons(text, 25))


def test_a_clip_of_an_unknown_rank_needs_both_bounds() -> None:
    for bounds, refused in (("", True), (", l", True), (", l, h", False)):
        proto = parse(f"f (float x, float l, float h) => (float y) {{ y = Clip(x{bounds}) }}")
        for port in (proto.graph.input[0], *proto.graph.output):
            port.type.tensor_type.ClearField("shape")
        model = Network.from_bytes(proto.SerializeToString()).model
        infer_types(model)
        assert any("both bounds" in why for why in known_limits(model).values()) == refused


def test_a_single_factor_of_upsample_is_refused() -> None:
    text = "(float[1,1,2,2] x) => (float[1,1,4,4] y) { s = Constant<value = float {2}>() "
    assert reasons(text + "y = Upsample(x, s) }", 9)


@pytest.mark.parametrize("layer", ["ReduceL1", "ReduceLogSum", "ReduceLogSumExp"])
def test_a_reduction_whose_axes_are_an_attribute_is_refused(layer: str) -> None:
    text = "(float[2,3] x) => (float[2,1] y) { y = LAYER<axes = [1]>(x) }"
    for opset, refused in ((11, False), (13, True), (17, True)):
        assert bool(reasons(text.replace("LAYER", layer), opset)) == refused
    assert not reasons("(float[2,3] x) => (float[2,1] y) { y = ReduceMax<axes = [1]>(x) }", 17)


@pytest.mark.parametrize(
    ("layer", "opset", "refused"),
    [
        ("Softmax<axis = 0>", 11, True),
        ("Softmax", 12, True),
        ("Softmax<axis = 2>", 12, False),
        ("Softmax<axis = -1>", 11, False),
        ("Softmax<axis = 0>", 10, False),
        ("Softmax<axis = 0>", 13, False),
        ("LogSoftmax<axis = 0>", 11, False),
    ],
)
def test_a_softmax_of_several_axes_is_refused(layer: str, opset: int, refused: bool) -> None:
    text = f"(float[2,3,4] x) => (float[2,3,4] y) {{ y = {layer}(x) }}"
    assert bool(reasons(text, opset)) == refused
