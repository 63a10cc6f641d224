"""Small networks of layers that ONNX Runtime rewrites, or computes as one, for the sweep of ranks.

The rewritten network is computed by other kernels than its layers are, and some of these look less
at their inputs. A network's line has inputs, outputs unless they are ``(float y)``, weights, and
layers, and the operator set unless it is 17. Values that are not arbitrary follow a tensor's name.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.testing.fuzz.sweep.between import BETWEEN

_LINES: Final = r"""
(float[2,3,4] x) <float root = 1.4142135, float one = 1, float half = 0.5>
    { d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half) }
(float[2,3,4] x, float[4] b) <float root = 1.4142135, float one = 1, float half = 0.5>
    { s = Add(x, b) d = Div(s, root) e = Erf(d) a = Add(e, one) m = Mul(s, a) y = Mul(m, half) }
(float[2,3,4] x, float[4] b) { s = Add(x, b) y = Gelu(s) } @20
(float[2,3,4] x) <float[4] b> { s = Add(x, b) y = Gelu(s) } @20
(float[2,3,4] x) <float[4] b> { s = Add(x, b) y = Gelu<approximate="tanh">(s) } @20
(float[2,3,4] x) <float cube = 0.044715, float p = 1, float q = 0.7978845, float one = 1, float
    half = 0.5, float three = 3>
    { c = Pow(x, three) d = Mul(c, cube) s = Add(x, d) t = Mul(s, q) u = Tanh(t)
      v = Add(u, one) w = Mul(x, half) y = Mul(w, v) }
(float[2,3,4] x) <float k = 1.7> { a = Mul(x, k) s = Sigmoid(a) y = Mul(x, s) }
(float[2,3,4] x) { s = Sigmoid(x) y = Mul(x, s) }
(float[2,3,4] x, float[2,3,4] z) { s = Sigmoid(x) y = Mul(z, s) }
(float[2,3,4] x, float[4] b) { s = Add(x, b) y = Softmax(s) }
(float[2,3,4] x, float[2,1,4] b) { s = Add(b, x) y = Softmax<axis=2>(s) }
(float[2,3,4] x, float[1,3,4] b) { s = Add(x, b) y = Softmax<axis=1>(s) }
(float[2,3,4] x, float[2,3,4] z, float[4] b) { s = Add(z, b) y = Add(s, x) }
(float[2,3,4] x, bool[2,3,4] c, float[2,3,4] z) { n = Not(c) y = Where(n, x, z) }
(float[2,3,4] x, float[2,3,4] z) <float one = 1> { d = Div(one, z) y = Mul(x, d) }
(float[2,3,4] x) <float one = 1> { r = Relu(x) y = Clip(r, , one) }
(float[2,3,4] x) { c = Cast<to=10>(x) d = Cast<to=1>(c) y = Relu(d) }
(float[2,3,4] x) { c = Cast<to=11>(x) d = Cast<to=1>(c) y = Relu(d) }
(float[2,3,4] x, float[2,3,4] z) { a = Relu(x) b = Relu(x) c = Add(a, b) y = Add(c, z) }
(float[3,4] x, float[5] b) <float[4,5] w> { p = MatMul(x, w) y = Add(p, b) }
(float[3,4] x) <float[4,5] w, float[5] b> { p = MatMul(x, w) y = Add(p, b) }
(float[3,4] x, float[4,5] w, float[3,5] b) { p = MatMul(x, w) y = Add(b, p) }
(float[2,3,4] x) <float[4,5] w, float[5] b> { p = MatMul(x, w) y = Add(p, b) }
(float[2,3,4] x) <float[4,5] w, float[5] b> { p = MatMul(x, w) s = Add(p, b) y = Gelu(s) } @20
(float[2,3,4] x, float[2,4,5] z) <float half = 0.5> { p = MatMul(x, z) y = Mul(p, half) }
(float[2,3,4] x, float[2,4,5] z) <float two = 2> { s = Div(x, two) y = MatMul(s, z) }
(float[2,3,4] x, float[2,5,4] z) { t = Transpose<perm=[0,2,1]>(z) y = MatMul(x, t) }
(float[2,4,3] x, float[2,4,5] z) { t = Transpose<perm=[0,2,1]>(x) y = MatMul(t, z) }
(float[3,2,4] x, float[2,4,5] z) { t = Transpose<perm=[1,0,2]>(x) y = MatMul(t, z) }
(float[4,2,3] x, float[4,2,5] z)
    { t = Transpose<perm=[1,2,0]>(x) u = Transpose<perm=[1,0,2]>(z) y = MatMul(t, u) }
(float[2,5,4] x, float[2,5,4] z)
    { t = Transpose<perm=[0,2,1]>(z) c = Cast<to=1>(t) y = MatMul(x, c) }
(float[3,4] x, float[4,5] z, float[3,5] s) { p = Gemm(x, z) y = Sum(p, s) }
(float[4,3] x, float[5,4] z) { t = Transpose(x) u = Transpose(z) y = Gemm(t, u) }
(float[3,4] x, float[4,5] z) { p = Gemm(x, z) y = Transpose(p) }
(float[3,4] x, float[4,5] z, float[5] b) { p = Gemm(x, z, b) y = Relu(p) }
(float[3,4] x, float[4,5] z, float[5] b) { p = Gemm(x, z, b) y = Sigmoid(p) }
(float[3,4] x, float[4,5] z, float[5] b) { p = Gemm(x, z, b) y = Tanh(p) }
(float[3,4] x, float[4,5] z, float[5] b) { p = Gemm(x, z, b) y = LeakyRelu(p) }
(float[3,4] x, float[4,5] z, float[5] b) { p = Gemm(x, z, b) y = Softplus(p) }
(float[3,4] x, float[4,5] z, float[5] b) { p = Gemm(x, z, b) y = HardSigmoid(p) }
(float[3,4] x, float[4,5] z, float[5] b) { p = Gemm(x, z, b) y = Elu(p) }
(float[2,3,4] x, float[2,4,5] z) { p = MatMul(x, z) y = Relu(p) }
(float[2,3,4] x, float[2,4,5] z) { p = MatMul(x, z) y = LeakyRelu(p) }
(float[3,4] x) <float[4,5] w, float[5] g, float[5] h, float[5] m, float[5] v>
    { p = MatMul(x, w) y = BatchNormalization(p, g, h, m, v) }
(float[3,4] x) <float[4,5] w, float[5] b, float[5] g, float[5] h, float[5] m, float[5] v>
    { p = Gemm(x, w, b) y = BatchNormalization(p, g, h, m, v) }
(float[2,4] x) <uint8[4,3] w, float s, uint8 z>
    { q, t, u = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, u, z) c = Cast<to=1>(p)
      m = Mul(t, s) y = Mul(c, m) }
(float[2,4] x, float[3] b) <uint8[4,3] w, float[3] s, uint8[3] z>
    { q, t, u = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, u, z) c = Cast<to=1>(p)
      m = Mul(t, s) k = Mul(c, m) y = Add(k, b) }
(uint8[2,4] x, float s) <uint8[4,3] w, float r>
    { p = MatMulInteger(x, w) c = Cast<to=1>(p) m = Mul(s, r) y = Mul(c, m) }
(float[2,32] x) <uint8[32,8] w, float[2,8] s, uint8[2,8] z>
    { d = DequantizeLinear<axis=0, block_size=16>(w, s, z) y = MatMul(x, d) } @21
(float[2,32] x) <int8[32,8] w, float[2,8] s, int8[2,8] z>
    { d = DequantizeLinear<axis=0, block_size=16>(w, s, z) y = MatMul(x, d) } @21
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b> { c = Conv(x, w, b) y = Relu(c) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b> { c = Conv(x, w, b) y = Sigmoid(c) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b> { c = Conv(x, w, b) y = Tanh(c) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b> { c = Conv(x, w, b) y = LeakyRelu(c) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b> { c = Conv(x, w, b) y = HardSigmoid(c) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b> { c = Conv(x, w, b) y = HardSwish(c) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b>
    { c = Conv(x, w, b) y = MaxPool<kernel_shape=[2,2]>(c) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b> { c = Conv(x, w, b) y = GlobalAveragePool(c) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b>
    { c = Conv(x, w, b) y = AveragePool<kernel_shape=[2,2]>(c) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b> { c = Conv(x, w, b) y = Clip(c) }
(float[1,2,4,4] x, float[1,2,2,2] z) <float[2,2,3,3] w, float[2] b>
    { c = Conv(x, w, b) y = Add(c, z) }
(float[1,2,4,4] x, float[1,2,2,2] z) <float[2,2,3,3] w, float[2] b>
    { c = Conv(x, w, b) s = Add(z, c) y = Relu(s) }
(float[1,2,4,4] x, float[1,2,2,2] z) <float[2,2,3,3] w, float[2] b>
    { c = Conv(x, w, b) s = Sum(c, z) y = Relu(s) }
(float[1,2,4,4] x, float[1,2,4,4] z) <float[2,2,3,3] w, float[2] b>
    { c = Conv(x, w, b) d = Conv(z, w, b) y = Add(c, d) }
(float[1,2,4,4] x, float[1,2,4,4] z) <float[2,2,3,3] w, float[2] b>
    { c = Conv(x, w, b) d = Conv(z, w, b) y = Concat<axis=1>(c, d) }
(float[1,2,4,4] x, float[1,2,2,2] z) <float[2,2,3,3] w, float[2] b>
    { c = Conv(x, w, b) y = Mul(c, z) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b, float[2,1,1] k>
    { c = Conv(x, w, b) y = Mul(c, k) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b, float[1,2,1,1] k>
    { c = Conv(x, w) y = Add(c, k) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b, float[2] m, float[2] v>
    { c = Conv(x, w) y = BatchNormalization(c, b, b, m, v) }
(float[1,2,4,4] x) <float[2,2,3,3] w, float[2] b, int64[8] p = 0 0 1 1 0 0 1 1>
    { q = Pad(x, p) y = Conv(q, w, b) }
(float[1,2,4,4] x) <int64[8] p = 0 0 1 1 0 0 1 1>
    { q = Pad(x, p) y = AveragePool<kernel_shape=[2,2]>(q) }
(float[1,2,4,4] x) <int64[8] p = 0 0 1 1 0 0 1 1>
    { q = Pad(x, p) y = MaxPool<kernel_shape=[2,2]>(q) }
(float[1,4,4,2] x) <float[2,2,3,3] w, float[2] b>
    { t = Transpose<perm=[0,3,1,2]>(x) c = Conv(t, w, b) y = Transpose<perm=[0,2,3,1]>(c) }
(float[1,2,4] x) <float[2,2,3] w, float[2] b> { c = Conv(x, w, b) y = Relu(c) }
(float[2,3,4] x) <int64 i = 0, int64[1] a = 0, int64[1] k = -1>
    { s = Shape(x) g = Gather(s, i) u = Unsqueeze(g, a) c = Concat<axis=0>(u, k)
      y = Reshape(x, c) }
(float[2,3,4] x) <int64[1] i = 1, int64[1] k = -1>
    { s = Shape(x) g = Gather(s, i) c = Concat<axis=0>(g, k) y = Reshape(x, c) }
(float[2,3,4] x) <int64[1] b = 0, int64[1] e = 2, int64[1] a = 0, int64[1] k = -1>
    { s = Shape(x) g = Slice(s, b, e, a) c = Concat<axis=0>(g, k) y = Reshape(x, c) }
(float[2,3,4] x, int64[2] s = 6 4) { r = Reshape(x, s) y = Softmax(r) }
(float[2,3,4] x, int64[3] s = 1) { e = Expand(x, s) y = Relu(e) }
(float[2,3,4] x) <int64[3] s = 1> { e = Expand(x, s) y = Relu(e) }
(float[2,3,4] x) => (float y, float z) <int64 i = 0, int64 j = 1>
    { y = Gather<axis=1>(x, i) z = Gather<axis=1>(x, j) }
(float[2,3,2] x) => (float y, float z) <int64 i = 0, int64 j = 1>
    { a = Gather<axis=2>(x, i) b = Gather<axis=2>(x, j) y = Relu(a) z = Neg(b) }
(float[2,3,4] x) <int64[2] i = 0 1> { g = Gather<axis=1>(x, i) y = Relu(g) }
(float[1,2,4,4] x) <int64[2] a = 0 0, int64[2] b = 0 1, int64[2] e = 4 4, int64[2] f = 4 4, int64[2]
    s = 2 2, int64[2] g = 2 3>
    { p = Slice(x, a, e, g, s) q = Slice(x, b, f, g, s) y = Concat<axis=1>(p, q) }
(float[2,3,4] x, int64[1] s = 0) <int64[1] e = 3, int64[1] a = 1, int64[1] f = 2>
    { p = Slice(x, s, e, a) y = Slice(p, s, f, a) }
(float[2,3,4] x, int64[1] a = 0) { u = Unsqueeze(x, a) y = Squeeze(u, a) }
(float[2,1,4] x) <int64[1] a = 1> { u = Squeeze(x, a) y = Unsqueeze(u, a) }
(float[2,3,4] x, float[2,3,4] z) { s = Shape(z) y = Expand(x, s) }
(float[2,3,4] x, float[2,3,4] z) <int64 i = 1>
    { s = Shape(z) g = Gather(s, i) a = Add(g, g) r = Range(i, a, g) f = Cast<to=1>(r)
      k = Size(x) c = Cast<to=1>(k) y = Add(f, c) }
(float[2,3,4] x, float[2,3,4] z) { s = Shape(z) y = Reshape(x, s) }
(string[3] x) => (int64 y)
    { a = ai.onnx.ml.LabelEncoder<keys_strings=["ab","c"], values_int64s=[1,2]>(x)
      y = ai.onnx.ml.LabelEncoder<keys_int64s=[1,2], values_int64s=[3,4]>(a) }
(float[2,3,4] x, float r = 0, bool t = 0) { s, m = Dropout(x, r, t) y = Relu(s) }
(float[2,3,4] x, float[2,3,4] z) <float[4] b> { a = Add(x, b) d, m = Dropout(a) y = Add(d, z) }
(int64[2,3] i, int64[2,3] k) <float[5,4] e, float[2,4] f, float[6,4] p, int64[1,3] at = 0 1 2,
    float[4] g, float[4] h>
    { a = Gather(e, i) b = Gather(p, at) c = Add(a, b) d = Gather(f, k) t = Add(c, d)
      y = LayerNormalization(t, g, h) }
(int64[2,3] i, int64[2,3] k, int64[2,3] at) <float[5,4] e, float[2,4] f, float[6,4] p,
    float[4] g, float[4] h>
    { a = Gather(e, i) b = Gather(p, at) c = Add(a, b) d = Gather(f, k) t = Add(c, d)
      y = LayerNormalization(t, g, h) }
(float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v, float[1,1,3,3] m) <float s = 2>
    { t = Transpose<perm=[0,1,3,2]>(k) p = MatMul(q, t) d = Div(p, s) a = Add(d, m)
      w = Softmax(a) y = MatMul(w, v) }
(float[1,3,8] x) <float[8,8] w, float[8] b, int64[4] s = 0 0 2 4, float r = 2, int64[3] o = 0 0 8>
    { p = MatMul(x, w) a = Add(p, b) h = Reshape(a, s) q = Transpose<perm=[0,2,1,3]>(h)
      k = Transpose<perm=[0,2,3,1]>(h) m = MatMul(q, k) d = Div(m, r) c = Softmax(d)
      v = MatMul(c, q) t = Transpose<perm=[0,2,1,3]>(v) y = Reshape(t, o) }
"""
_SUMS: Final = r"""
(float[2,3,4] x) t = Relu(x)
(float[2,3,4] x, float[2,3,4] s) t = Add(x, s)
(float[2,3,4] x, float[3,4] s) t = Add(x, s)
(float[2,3,4] x, float[1,3,4] s) t = Add(s, x)
(float[2,3,4] x, float[2,3,4] s) u = Add(x, s) t = Add(u, h)
(float[2,3,4] x, float[2,3,4] s) u = Add(x, h) t = Add(u, s)
"""
_NORMALIZATIONS: Final = r"""
y = LayerNormalization(t, g, h)
y = LayerNormalization(t, g)
y = RMSNormalization(t, g)
m = ReduceMean<axes=[-1]>(t) d = Sub(t, m) e = Pow(d, two) v = ReduceMean<axes=[-1]>(e)
    a = Add(v, small) r = Sqrt(a) n = Div(d, r) k = Mul(n, g) y = Add(k, h)
e = Pow(t, two) v = ReduceMean<axes=[-1]>(e) a = Add(v, small) r = Sqrt(a) n = Div(t, r)
    y = Mul(n, g)
"""


def lines_of(lines: str) -> list[str]:
    """The lines of a table. A line goes on in the next one if that begins with a space."""
    return re.split(r"\n(?! )", lines.strip())


def _normalized(line: str, layers: str) -> str:
    ports, _, added = line.partition(") ")
    opset = 23 if "RMS" in layers else 17
    weights = "float[4] g, float[4] h, float two = 2, float small = 1e-5"
    return f"{ports}) <{weights}> {{ {added} {layers} }} @{opset}"


FUSIONS: Final = (
    *lines_of(_LINES),
    *(
        _normalized(line, layers)
        for line in lines_of(_SUMS)
        for layers in lines_of(_NORMALIZATIONS)
    ),
    *BETWEEN,
)
