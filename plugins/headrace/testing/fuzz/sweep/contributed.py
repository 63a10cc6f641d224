"""ONNX Runtime's own operators, as in `operators`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MS = "com.microsoft"
_SCALE = "float s, uint8 z"

CONTRIBUTED: tuple[tuple[str, Mapping[str, Any]], ...] = (
    (f"(float[1,2,8] x, float[8,24] w, float[24] b) => (float y) {_MS}.Attention<num_heads=2>", {}),
    (
        "(float[1,2,8] x, float[8,24] w, float[24] b, int32[1,2] m) => (float y) "
        f"{_MS}.Attention<num_heads=2>",
        {},
    ),
    (
        "(float[1,2,8] x, float[8,24] w, float[24] b, int32[1,4] m, float[2,1,2,2,4] p) => "
        f"(float y, float q) {_MS}.Attention<num_heads=2, unidirectional=1>",
        {},
    ),
    (f"(float[2,3] x, float[3] b) => (float y) {_MS}.BiasGelu", {}),
    (
        "(int64[4] s, int64[2] c, int64 p, int64[3] d) => (int64 t, int64 n) "
        f"{_MS}.BifurcationDetector<min_ngram_size=1, max_ngram_size=3>",
        {},
    ),
    (f'(float[2,3] x, float[4,3] z) => (float y) {_MS}.CDist<metric="euclidean">', {}),
    (
        "(float[1,1,3,3] x, float[1,1,2,2] w, int64[4] p) => (float y) "
        f"{_MS}.ConvTransposeWithDynamicPads",
        {"p": 0},
    ),
    (
        "(float[1,1,5,5] x, float[1,4] r, int32[1] i, int32[2] c) => (float y) "
        f"{_MS}.CropAndResize",
        {"i": 0, "c": 2},
    ),
    (f"(uint8[2,3] x, {_SCALE}) => (float y) {_MS}.DequantizeLinear", {}),
    (f"(float[2,3] x, {_SCALE}) => (uint8 y) {_MS}.QuantizeLinear", {}),
    (
        "(float[2,1,3] x, int8[1,3,8] w, int8[1,2,8] r, float[1,16] b, int32[1] l, "
        "float[1,1,2] h, float[1,1,2] c, float[1,6] p, float[1] ws, int8[1] wz, float[1] rs, "
        f"int8[1] rz) => (float y) {_MS}.DynamicQuantizeLSTM<hidden_size=2>",
        {"l": 2},
    ),
    (
        "(float[2,3] x, uint8[3,4] w, float ws, uint8 wz, float[4] b) => (float y) "
        f"{_MS}.DynamicQuantizeMatMul",
        {},
    ),
    (f"(float[2,3] x) => (int32 y) {_MS}.DynamicTimeWarping", {}),
    (
        "(int32[1,2] i, int32[1,2] g, float[4,8] w, float[4,8] p, float[4,8] e, float[8] a, "
        f"float[8] b, int32[1,2] m) => (float y, int32 n) {_MS}.EmbedLayerNormalization",
        {},
    ),
    (f"(float[2,3] x, int32 a) => (float y) {_MS}.ExpandDims", {}),
    (f"(float[2,3] x, float[3] b) => (float y) {_MS}.FastGelu", {}),
    (
        "(float[1,1,3,3] x, float[1,1,2,2] w, float[1] b, float[1,1,2,2] z) => (float y) "
        f'{_MS}.FusedConv<activation="Relu">',
        {},
    ),
    (
        f'(float[2,3] x, float[3,4] w, float[4] b) => (float y) {_MS}.FusedGemm<activation="Relu">',
        {},
    ),
    (f"(float[2,3] x, float[3,4] w) => (float y) {_MS}.FusedMatMul", {}),
    (f"(float[2,2,3] x, float[2,2,4] w) => (float y) {_MS}.FusedMatMul<transA=1, alpha=2.0>", {}),
    (f"(float[3,2,2] x, float[2,2,4] w) => (float y) {_MS}.FusedMatMul<transBatchA=1>", {}),
    (f"(float[2,3] x, float[3,4] w) => (float y) {_MS}.TransposeMatMul", {}),
    (
        "(uint8[4,16] x, int64[2] i, float[4,1] s) => (float y) "
        f"{_MS}.GatherBlockQuantized<block_size=16, bits=8, quantize_axis=1>",
        {},
    ),
    (f"(float[2,3] x, int32[2,2] i) => (float y) {_MS}.GatherND", {}),
    (f"(float[2,3] x) => (float y) {_MS}.Gelu", {}),
    (f"(float[1,1,3,3] x, float[1,2,2,2] g) => (float y) {_MS}.GridSample", {}),
    (
        "(float[1,1,16] q, float[1,1,8] k, float[1,1,8] v, float[1,1,4,8] pk, float[1,1,4,8] pv, "
        "int32[1] s, int32 t) => (float y, float a, float b) "
        f"{_MS}.GroupQueryAttention<num_heads=2, kv_num_heads=1>",
        {"t": 2},
    ),
    (
        "(float[1,1,16] q, float[1,1,8] k, float[1,1,8] v, float[1,1,4,8] pk, float[1,1,4,8] pv, "
        "int32[1] s, int32 t, float[8,4] c, float[8,4] n) => (float y, float a, float b) "
        f"{_MS}.GroupQueryAttention<num_heads=2, kv_num_heads=1, do_rotary=1>",
        {"t": 2},
    ),
    (f"(float[2,3,3] x) => (float y) {_MS}.Inverse", {}),
    (
        "(float[2,8] x, uint8[32] w, float[2] a) => (float y) "
        f"{_MS}.MatMulBnb4<K=8, N=8, block_size=32, quant_type=0>",
        {},
    ),
    (f"(int16[2,3] x, int16[3,4] w) => (int32 y) {_MS}.MatMulInteger16", {}),
    (
        "(uint8[2,3] x, uint8[3,4] w, float a, float[4] s, uint8 xz, uint8[4] wz, float[4] b) => "
        f"(float y) {_MS}.MatMulIntegerToFloat",
        {},
    ),
    (
        "(float[2,16] x, uint8[4,1,8] w, float[4] s, uint8[4] z) => (float y) "
        f"{_MS}.MatMulNBits<K=16, N=4, bits=4, block_size=16>",
        {},
    ),
    (
        "(float[2,16] x, uint8[4,1,8] w, float[4] s, uint8[4] z, int32[16] g, float[4] b) => "
        f"(float y) {_MS}.MatMulNBits<K=16, N=4, bits=4, block_size=16>",
        {"g": 0},
    ),
    (
        "(float[2,16] x, uint8[4,1,16] w, float[4] s) => (float y) "
        f"{_MS}.MatMulNBits<K=16, N=4, bits=8, block_size=16, accuracy_level=4>",
        {},
    ),
    (
        "(float[1,1,4,4] x, int32[1,1,4,4] m) => (float y) "
        f"{_MS}.MaxpoolWithMask<kernel_shape=[2,2]>",
        {},
    ),
    (
        "(float[2,4] x, float[2,2] p, float[2,4,4] a, float[2,4] b, float[2,4,4] c, float[2,4] d) "
        f'=> (float y) {_MS}.MoE<k=1, activation_type="relu">',
        {},
    ),
    (
        "(float[1,2,8] q, float[1,2,8] k, float[1,2,8] v, float[24] b, int32[1,2] m, "
        f"float[1,2,2,2] a) => (float y) {_MS}.MultiHeadAttention<num_heads=2>",
        {},
    ),
    (
        "(float[1,2,8] q, float[1,2,8] k, float[1,2,8] v, float[24] b, int32[1,4] m, "
        "float[1,2,2,4] a, float[1,2,2,4] pk, float[1,2,2,4] pv) => (float y, float c, float d) "
        f"{_MS}.MultiHeadAttention<num_heads=2>",
        {},
    ),
    (
        "(float[1,1,8] q, float[1,1,8] k, float[1,1,8] v, int32[1,4] m, float[1,1,1,4] a, "
        "float[1,2,4,4] pk, float[1,2,4,4] pv, int32[1] l) => (float y, float c, float d) "
        f"{_MS}.DecoderMaskedMultiHeadAttention<num_heads=2, past_present_share_buffer=1>",
        {"l": 2},
    ),
    (f"(int32[3] x) => (uint32 y) {_MS}.MurmurHash3", {}),
    (
        f"(int64[1,4] i, float[1,3] s) => (float y) {_MS}.NGramRepeatBlock<ngram_size=2>",
        {},
    ),
    (f"(uint8[1,4,4,1] x) => (uint8 y) {_MS}.NhwcMaxPool<kernel_shape=[2,2]>", {}),
    (f"(float[2,3] x, int64[4] p, float v) => (float y) {_MS}.Pad", {"p": 1}),
    (
        "(uint8[1,2,8] x, uint8[8,24] w, float[24] b, float s, float t, int32[1] m, uint8 z, "
        f"uint8 u) => (float y) {_MS}.QAttention<num_heads=2>",
        {"m": 2},
    ),
    (
        "(uint8[2,3] x, float s, uint8 z, uint8[3,4] w, float t, uint8 u, int32[4] b, float r, "
        f"uint8 v) => (uint8 y) {_MS}.QGemm",
        {},
    ),
    *(
        (
            f"(uint8[2,3] x, {_SCALE}, uint8[2,3] w, float t, uint8 u, float r, uint8 v) => "
            f"(uint8 y) {_MS}.{each}",
            {},
        )
        for each in ("QLinearAdd", "QLinearMul")
    ),
    (
        f"(uint8[1,1,4,4] x, {_SCALE}, float r, uint8 v) => (uint8 y) "
        f"{_MS}.QLinearAveragePool<kernel_shape=[2,2]>",
        {},
    ),
    (
        f"(uint8[1,4,4,1] x, {_SCALE}, float r, uint8 v) => (uint8 y) "
        f"{_MS}.QLinearAveragePool<kernel_shape=[2,2], channels_last=1>",
        {},
    ),
    *(
        (f"(uint8[1,2,3,3] x, {_SCALE}, float r, uint8 v) => (uint8 y) {_MS}.{each}", {})
        for each in ("QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearSigmoid")
    ),
    (
        f"(uint8[2,3] x, {_SCALE}, float r, uint8 v) => (uint8 y) {_MS}.QLinearSoftmax<opset=13>",
        {},
    ),
    (
        "(float r, uint8 v, uint8[2,3] a, float s, uint8 z, uint8[2,3] b, float t, uint8 u) => "
        f"(uint8 y) {_MS}.QLinearConcat<axis=1>",
        {},
    ),
    (
        "(bool[2,3] c, uint8[2,3] x, float s, uint8 z, uint8[2,3] w, float t, uint8 u, float r, "
        f"uint8 v) => (uint8 y) {_MS}.QLinearWhere",
        {},
    ),
    (
        "(uint8[1,3,3,1] x, float s, uint8 z, uint8[1,1,2,2] w, float t, uint8 u, float r, "
        f"uint8 v, int32[1] b) => (uint8 y) {_MS}.QLinearConv<channels_last=1>",
        {},
    ),
    (f"(float[2,3] x) => (float y) {_MS}.QuickGelu", {}),
    (f"(float a, float b, float c) => (float y) {_MS}.Range", {"b": 4}),
    (
        "(float[1,2,8] x, int64[1,2] p, float[4,2] c, float[4,2] s) => (float y) "
        f"{_MS}.RotaryEmbedding<num_heads=2>",
        {},
    ),
    (
        "(float[1,2,2,4] x, int64[1] p, float[4,2] c, float[4,2] s) => (float y) "
        f"{_MS}.RotaryEmbedding",
        {},
    ),
    (f"(float[2,3] x) => (float y) {_MS}.SampleOp", {}),
    (
        "(float[1,2,4] x, float[1,2,4] s, float[4] a, float[4] b, float[4] c) => "
        f"(float y, float m, float v, float t) {_MS}.SkipLayerNormalization",
        {},
    ),
    (
        "(float[1,2,4] x, float[1,2,4] s, float[4] a, float[4] c) => "
        f"(float y, float m, float v, float t) {_MS}.SkipSimplifiedLayerNormalization",
        {},
    ),
    (
        f'(string[2] x) => (string y) {_MS}.Tokenizer<mark=0, mincharnum=1, pad_value="#", '
        'separators=[" "]>',
        {},
    ),
    (f"(float[3,3] x, int64 k) => (float y) {_MS}.Trilu", {}),
    (f"(float[2,6] x) => (float y) {_MS}.UnfoldTensor<dim=1, size=3, step=1>", {}),
    (f"(float[6] x) => (float y, int64 i, int64 c) {_MS}.Unique", {}),
    (
        "(int32[2,4] x, float[3,1,2,2] w, float[3] b, float[4,2] c) => (float y) "
        f"{_MS}.WordConvEmbedding<conv_window_size=2, embedding_size=3, char_embedding_size=2>",
        {},
    ),
    *(
        (f"(float[1,16,4,4] x) => (float y) com.microsoft.nchwc.{each}", {})
        for each in (
            "GlobalAveragePool",
            "MaxPool<kernel_shape=[2,2]>",
            "ReorderOutput<channels=16>",
            "Upsample<scales=[1,1,2,2]>",
        )
    ),
    ("(float[1,16,4,4] x, float[16,16,1,1] w) => (float y) com.microsoft.nchwc.Conv", {}),
    ("(float[1,16,4,4] x) => (float y) com.microsoft.nchwc.ReorderInput", {}),
)
