"""Further networks that ONNX Runtime rewrites, in the form of the fuzzer's `fusions`."""

from __future__ import annotations

from typing import Final

FURTHER: Final = r"""
(float[40] x) <float s = 0.3, uint8 z = 5, float t = 0.07, uint8 w = 9>
    { a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) c = QuantizeLinear(b, t, w)
      y = DequantizeLinear(c, t, w) } @19
(float[40] x) <float s = 0.3, int8 z = 5, float t = 0.07, int8 w = 9>
    { a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) r = Relu(b)
      c = QuantizeLinear(r, t, w) y = DequantizeLinear(c, t, w) } @19
(float[8,5] x) <float s = 0.3, int8 z = 5, float t = 0.07, int64[2] k = 5 8>
    { a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) r = Reshape(b, k)
      c = QuantizeLinear(r, t, z) d = DequantizeLinear(c, t, z) y = Transpose(d) } @19
(float[1,2,4,4] x) <float s = 0.02, uint8 z = 5, float t = 0.07, float[2,2,3,3] w, float[2] b>
    { a = QuantizeLinear(x, s, z) d = DequantizeLinear(a, s, z) c = Conv(d, w, b)
      q = QuantizeLinear(c, t, z) y = DequantizeLinear(q, t, z) } @19
(float[3,4] x) <float s = 0.02, int8 z = 5, float t = 0.07, float[4,5] w, float[5] b>
    { a = QuantizeLinear(x, s, z) d = DequantizeLinear(a, s, z) c = Gemm(d, w, b) r = Relu(c)
      q = QuantizeLinear(r, t, z) y = DequantizeLinear(q, t, z) } @19
(float[1,2,4,4] x) <float s = 0.02, uint8 z = 5, float t = 0.07, int8[2,2,3,3] w, float[2] v = 1e-12
    0.01, int8[2] k = 0 0, float[2] b>
    { a = QuantizeLinear(x, s, z) d = DequantizeLinear(a, s, z)
      e = DequantizeLinear<axis=0>(w, v, k) c = Conv(d, e, b) q = QuantizeLinear(c, t, z)
      y = DequantizeLinear(q, t, z) } @19
(float[2,3,4] x) <float two = 2, float e = 1e-6, float[4] g>
    { p = Pow(x, two) v = ReduceMean<axes=[-1]>(p) a = Add(v, e) r = Sqrt(a) i = Reciprocal(r)
      n = Mul(x, i) y = Mul(n, g) }
(float[2,3,4] x) <float e = 1e-6, float[4] g, float one = 1>
    { p = Mul(x, x) v = ReduceMean<axes=[-1]>(p) a = Add(e, v) r = Sqrt(a) i = Div(one, r)
      n = Mul(x, i) y = Mul(g, n) }
(float[2,3,4] x) <float e = 1e-6, float[4] g, float[4] h>
    { m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) p = Mul(d, d) v = ReduceMean<axes=[-1]>(p)
      a = Add(v, e) r = Sqrt(a) n = Div(d, r) k = Mul(g, n) y = Add(h, k) }
(float[2,3,4] x) <float two = 2, float e = 1e-6, float[4] g, float[4] h>
    { m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) f = Sub(x, m) p = Pow(d, two)
      v = ReduceMean<axes=[-1]>(p) a = Add(v, e) r = Sqrt(a) n = Div(f, r) k = Mul(n, g)
      y = Add(k, h) }
(float[2,3,4] x) <float two = 2, float e = 1e-6, float[3,4] g>
    { p = Pow(x, two) v = ReduceMean<axes=[1,2]>(p) a = Add(v, e) r = Sqrt(a) n = Div(x, r)
      y = Mul(n, g) }
(float[2,3,4] x, float[2,3,4] t) <float two = 2, float e = 1e-6, float[4] g>
    { s = Add(x, t) p = Pow(s, two) v = ReduceMean<axes=[-1]>(p) a = Add(v, e) r = Sqrt(a)
      n = Div(s, r) k = Mul(n, g) y = Add(k, s) }
(float[2,3,4] x) <float two = 2, int64[1] at = -1, float e = 1e-6, float[4] g>
    { c = Cast<to=1>(x) p = Pow(c, two) v = ReduceMean(p, at) a = Add(v, e) r = Sqrt(a)
      n = Div(c, r) d = Cast<to=1>(n) y = Mul(d, g) } @18
(int64[2,3,4] x = 2, int64[2,3,4] z = 5) => (int64 y) <int64 one = 1>
    { d = Div(one, x) y = Mul(d, z) }
(int32[2,3,4] x = 2, int32[4] z = 5) => (int32 y) <int32[1] one = 1>
    { d = Div(one, x) y = Mul(z, d) }
(float[2,3,4] x, float[4] z) <float[1,1,1] one = 1> { d = Div(one, z) y = Mul(d, x) }
(float[4] x, float[4] z) <float[1,1,1] one = 1> { d = Div(one, z) y = Mul(d, x) }
(float[2,3,4] x) <float[1] none = 0> { a = Add(x, none) y = Relu(a) }
(float[2,3,4] x) <float[1] one = 1> { a = Mul(one, x) y = Relu(a) }
(float[2,3,4] x) <float[1] one = 1> { a = Div(x, one) b = Neg(a) y = Sub(b, one) }
(int64[3] x) => (int64 y) <int64[1] none = 0> { a = Sub(x, none) y = Neg(a) }
(float[2,3,4] x) <float a = 0.5, float b = 1> { r = Relu(x) y = Clip(r, a, b) }
(float[2,3,4] x) <float a = -0.5, float b = 1> { r = Clip(x, a, b) c = Clip(r, a, b) y = Relu(c) }
(float[2,3,4] x) => (int64 y) { c = Cast<to=7>(x) s = Shape(c) y = Identity(s) }
(float[2,3,4] x) { c = Cast<to=6>(x) d = Cast<to=1>(c) e = Cast<to=11>(d) y = Cast<to=1>(e) }
(float[2,3,4] x) { c = Cast<to=9>(x) d = Cast<to=6>(c) y = Cast<to=1>(d) }
(float[2,3,4] x) <int64[3] s = 2 12 1, int64[2] t = 6 -1>
    { a = Reshape(x, s) b = Reshape(a, t) y = Relu(b) }
(float[2,3,4] x) <int64[1] a = 0, int64[1] b = 1>
    { u = Unsqueeze(x, a) v = Unsqueeze(u, b) y = Relu(v) }
(float[2,3,4] x) <int64[1] s = 0, int64[1] e = 9, int64[1] a = 1>
    { p = Slice(x, s, e, a) y = Relu(p) }
(float[2,3,4] x, float[2,4,5] z) <float[1] k = 0.5, float[1] l = 3>
    { s = Mul(k, x) p = MatMul(s, z) y = Div(p, l) }
(float[2,3,4] x, float[2,5,4] z) <float k = 0.5>
    { t = Transpose<perm=[0,2,1]>(z) s = Mul(t, k) y = MatMul(x, s) }
(float[3,4] x, float[5,4] z) => (float y, float u)
    { t = Transpose<perm=[1,0]>(z) y = Gemm(x, t) u = Gemm<alpha=0.5>(x, t) }
(float[3,4] x, float[4,5] z) { p = Gemm<alpha=0.5, transA=0>(x, z) y = Transpose<perm=[1,0]>(p) }
(float[3,4] x, float[4,5] z, float[3,5] s) { p = Gemm<alpha=0.5, beta=2.0>(x, z) y = Sum(s, p) }
(float[3,4] x, float[4,5] z, float[1,5] s) { p = Gemm<alpha=0.5>(x, z) y = Sum(s, p) }
(float[2,3,4] x) <int64 i = -1, int64 j = 0>
    { a = Gather<axis=2>(x, i) b = Gather<axis=2>(x, j) c = Add(a, b) y = Relu(c) }
(float[2,6,4] x) <int64[3] i = 1 2 3> { g = Gather<axis=1>(x, i) y = Relu(g) }
(float[1,2,4,4] x) <int64[2] a = 0 0, int64[2] b = 1 0, int64[2] c = 0 1, int64[2] d = 1 1, int64[2]
    e = 9 9, int64[2] s = 2 2, int64[2] k = 2 3>
    { p = Slice(x, a, e, k, s) q = Slice(x, b, e, k, s) r = Slice(x, c, e, k, s)
      t = Slice(x, d, e, k, s) y = Concat<axis=1>(p, q, r, t) }
(float[2,3,4] x) <float half = 0.5, float k = 0.7978845, float cube = 0.044715, float one = 1>
    { a = Mul(x, k) b = Mul(cube, x) c = Mul(b, x) d = Add(c, one) e = Mul(a, d) f = Tanh(e)
      g = Add(one, f) h = Mul(x, half) y = Mul(h, g) }
(float[2,3,4] x) <float root = 0.70710678, float one = 1, float half = 0.5>
    { d = Mul(x, root) e = Erf(d) a = Add(one, e) h = Mul(half, x) y = Mul(h, a) }
(float[1,16,6,6] x) <float[16,16,3,3] w, float[16] b, float[16,1,1] k>
    { c = Conv(x, w, b) m = Mul(c, k) a = Add(m, k) y = Relu(a) }
(float[1,16,6,6] x, float[1,16,6,6] z) <float[16,16,3,3] w, float[16] b>
    { c = Conv<pads=[1,1,1,1]>(x, w, b) a = Add(c, z) r = Relu(a)
      y = MaxPool<kernel_shape=[2,2]>(r) }
(float[1,16,6,6] x) <float[16,16,1,1] w, float[16] b, float[32,16,1,1] v>
    { c = Conv(x, w, b) d = Conv(x, v) e = Concat<axis=1>(c, d) r = Relu(e)
      y = GlobalAveragePool(r) }
(float[1,16,6,6] x) <float[16,1,3,3] w, float[16] b, float[16] m, float[16] v, float[4] s = 1 1 2 2>
    { c = Conv<group=16>(x, w) n = BatchNormalization(c, b, b, m, v) r = Sigmoid(n)
      y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric",
          nearest_mode="floor">(r, , s) }
(float[1,6,6,16] x) <float[16,16,3,3] w, float[16] b>
    { t = Transpose<perm=[0,3,1,2]>(x) c = Conv<strides=[2,2]>(t, w, b) r = Relu(c)
      p = AveragePool<kernel_shape=[2,2], pads=[1,1,0,0]>(r) y = Transpose<perm=[0,2,3,1]>(p) }
(float[1,16,6,6] x) <float[16,16,3,3] w, float a = 0, float b = 6, int64[8] p = 0 0 1 1 0 0 1 1>
    { q = Pad(x, p) c = Conv(q, w) y = Clip(c, a, b) }
(float[1,16,6,6] x) <float[16,16,1,1] w, float[16,1,1] s>
    { c = Conv(x, w) r = Relu(c) d = Conv(r, w) e = Mul(d, s) y = Add(e, d) }
"""
