"""Networks of a layer between two others, which ONNX Runtime moves or drops: see `fusions`."""

from __future__ import annotations

from typing import Final

_TRANSPOSED: Final = r"""
int64[8] p = 0 0 1 1 0 0 1 1; Pad(t, p)
int64[4] p, int64[2] a = 2 3; Pad(t, p, , a)
float[4] s = 1 1 2 2; Resize(t, , s)
int64[4] s = 1 2 8 6; Resize(t, , , s)
int64[2] s = 8 6; Resize<axes=[2,3]>(t, , , s)
float[8] r = 0 0 0 0 1 1 1 1, int64[4] s = 1 2 8 6; \
    Resize<coordinate_transformation_mode="tf_crop_and_resize">(t, r, , s)
int64[4] r = 1 1 2 2; Tile(t, r)
int64[4] s = 1 2 4 3; Expand(t, s)
int64[4] s = 1 2 12 1; Reshape(t, s)
int64[2] s = 0 0, int64[2] e; Slice(t, s, e)
int64[2] s = 0 0, int64[2] e, int64[2] a = 2 3; Slice(t, s, e, a)
int64[2] s = 0 0, int64[2] e, int64[2] a = 2 3, int64[2] i; Slice(t, s, e, a, i)
int64[2] a = 2 3; ReduceSum(t, a)
int64[1] a = 2; ReduceMean<keepdims=0>(t, a)
int64[1] a = 2; Unsqueeze(t, a)
int64[1] a = 0; Squeeze(t, a)
int64[2] i = 0 1; Gather<axis=2>(t, i)
int64 i; Gather<axis=2>(t, i)
int64[2] s = 2 2; CenterCropPad<axes=[2,3]>(t, s)
float[2,1,1] z; Add(t, z)
float[1,2,4,3] z; Mul(z, t)
float[1,2,4,3] z; Concat<axis=1>(t, z)
float[2,1,1] z, bool[3] c; Where(c, t, z)
float[2] s, float[2] b; InstanceNormalization(t, s, b)
float[2] s, float[2] b; GroupNormalization<num_groups=1>(t, s, b)
float[3] s; LayerNormalization(t, s)
float[2] s, float[2] b, float[2] k, float[2] v; BatchNormalization(t, s, b, k, v)
float s, uint8 z; QuantizeLinear(t, s, z)
float[2] s, uint8[2] z; QuantizeLinear<axis=1>(t, s, z)
int64 k = 2; CumSum(t, k)
float[2,1,1] s; PRelu(t, s)
int64[1,2,4,3] i = 0; GatherElements<axis=1>(t, i)
int64[2,4] i = 0; GatherND(t, i)
; Softmax<axis=1>(t)
; ArgMax<axis=1>(t)
; Flatten(t)
; SpaceToDepth<blocksize=1>(t)
; LpNormalization(t)
; MaxPool<kernel_shape=[2,2]>(t)
; Identity(t)
"""
_QUANTIZED: Final = r"""
uint8[1,2,4,4] x; uint8[2,2,3,3] w; Conv(a, c)
uint8[1,2,4,4] x; uint8[2,2,3,3] w, int32[2] k; Conv(a, c, l)
uint8[1,2,4] x; uint8[2,2,3] w; Conv(a, c)
uint8[2,4] x; uint8[4,3] w; MatMul(a, c)
uint8[2,4] x, uint8[4,3] w; ; MatMul(a, c)
uint8[2,4] x; uint8[4,3] w; Gemm(a, c)
uint8[2,4] x, uint8[4] w; ; Add(a, c)
uint8[2,4] x, uint8[2,4] w; ; Mul(a, c)
uint8[2,4] x, uint8[2,4] w; ; Concat<axis=0>(a, c)
uint8[2,4] x, bool[4] o, uint8[2,4] w; ; Where(o, a, c)
uint8[1,2,4,4] x; ; AveragePool<kernel_shape=[2,2]>(a)
uint8[1,2,4,4] x; ; GlobalAveragePool(a)
uint8[1,2,4,4] x; ; MaxPool<kernel_shape=[2,2]>(a)
uint8[1,2,4,4] x; ; DepthToSpace<blocksize=1>(a)
uint8[1,2,4,4] x, float[4] o = 1 1 2 2; ; Resize(a, , o)
uint8[1,2,4,4] x, int64[8] o = 0 0 1 1 0 0 1 1; ; Pad(a, o)
uint8[1,2,4,4] x, float[2] o; ; InstanceNormalization(a, o, o)
uint8[2,4] x; ; LeakyRelu(a)
uint8[2,4] x; ; Sigmoid(a)
uint8[2,4] x; ; Softmax(a)
uint8[2,4] x; ; Relu(a)
uint8[2,4] x; ; Transpose(a)
uint8[2,4] x; ; Flatten(a)
uint8[2,4] x, int64[1] o; ; ReduceMean(a, o)
uint8[2,4] x, int64[2] o = 4 2; ; Reshape(a, o)
uint8[2,4] x, int64[2] o = 0 1; ; Gather(a, o)
uint8[2,4] x, int64[2] o = 2 4; ; Expand(a, o)
uint8[2,4] x, int64[2] o; ; Tile(a, o)
uint8[2,4] x, int64[1] o; ; Unsqueeze(a, o)
uint8[1,4] x, int64[1] o = 0; ; Squeeze(a, o)
uint8[2,4] x, float[4] o; ; PRelu(a, o)
uint8[2,4] x, float[4] o; ; LayerNormalization(a, o)
"""
_REST: Final = (
    "(uint8[2,4] x) => (uint8 y, uint8 v) <float s = 0.5, uint8 z, int64[2] n = 2> "
    "{ a = DequantizeLinear(x, s, z) m, o = Split<axis=1>(a, n) y = QuantizeLinear(m, s, z) "
    "v = QuantizeLinear(o, s, z) } @19",
    "(uint8[2,4] x) => (int64 y) <float s = 0.5, uint8 z> "
    "{ a = DequantizeLinear(x, s, z) y = ArgMax(a) } @19",
    "(float[2,4] x, float s, uint8 z) "
    "{ q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) b = QuantizeLinear(a, s, z) "
    "y = DequantizeLinear(b, s, z) } @19",
    "(float[1,4,3,2] x, float[4] s = 1 1 2 2) "
    "{ t = Transpose<perm=[0,3,1,2]>(x) m = Upsample(t, s) y = Transpose<perm=[0,2,3,1]>(m) } @9",
)


def _transposed(line: str, last: str) -> str:
    inputs, _, layer = line.partition(";")
    ports = ", ".join(filter(None, ["float[1,4,3,2] x", inputs]))
    opset = 21 if "Group" in layer else 18
    kind = {"Arg": "int64", "Qua": "uint8"}.get(layer.strip()[:3], "float")
    layers = f"t = Transpose<perm=[0,3,1,2]>(x) m = {layer} y = {last}(m)"
    return f"({ports}) => ({kind} y) {{ {layers} }} @{opset}"


def _quantized(line: str) -> str:
    ports, weights, layer = line.split(";")
    operands = ["a = DequantizeLinear(x, s, z)"]
    if " w" in ports + weights:
        operands.append("c = DequantizeLinear(w, s, z)")
    if " k" in weights:
        operands.append("l = DequantizeLinear(k, u)")
    scales = "float s = 0.5, uint8 z, float u = 0.25"
    return (
        f"({ports}) => (uint8 y) <{', '.join(filter(None, [weights.strip(), scales]))}> "
        f"{{ {' '.join(operands)} m = {layer} y = QuantizeLinear(m, s, z) }} @19"
    )


BETWEEN: Final = (
    *(
        _transposed(line, last)
        for line in _TRANSPOSED.replace("\\\n", "").strip().splitlines()
        for last in ("Transpose<perm=[0,2,3,1]>", "Identity")
    ),
    *map(_quantized, _QUANTIZED.strip().splitlines()),
    *_REST,
)
