"""ONNX Runtime's own operators, of which ONNX knows nothing.

Many of their kernels take for granted what a network from ONNX Runtime's optimiser has: ranks,
sizes, and indices. With other inputs they end the process or read foreign memory. The operators in
`CHECKED` were tried with inputs of wrong ranks and lengths by the fuzzer's sweep, and with its
random changes; `guards` has rules for some of them. In the server's process there are no others:
a network with others runs in a process of its own (`apart`).
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

DOMAIN: Final = "com.microsoft"
CHECKED: Final = frozenset(
    {
        "Attention",
        "BiasGelu",
        "CDist",
        "DequantizeLinear",
        "DynamicQuantizeLSTM",
        "EmbedLayerNormalization",
        "ExpandDims",
        "FastGelu",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "GatherND",
        "Gelu",
        "MatMulInteger16",
        "MatMulNBits",
        "MultiHeadAttention",
        "MurmurHash3",
        "Pad",
        "QLinearAdd",
        "QLinearConcat",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearSigmoid",
        "QLinearSoftmax",
        "QuantizeLinear",
        "QuickGelu",
        "Range",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "Tokenizer",
        "TransposeMatMul",
        "Trilu",
        "Unique",
    }
)


def reason(node: ir.Node) -> str | None:
    """Why the server's process does not run the node; None if it does, or if the node's operator is
    no operator of ONNX Runtime."""
    if not is_contributed(node) or (node.domain == DOMAIN and node.op_type in CHECKED):
        return None
    return (
        "inputs of this operator are not checked, and ONNX Runtime may not survive them; it runs "
        "in a process of its own, unless the device has ISOLATION=NONE"
    )


def is_contributed(node: ir.Node) -> bool:
    return is_domain(node.domain)


def is_domain(domain: str) -> bool:
    """Whether the domain is one of ONNX Runtime's own."""
    return domain == DOMAIN or domain.startswith(f"{DOMAIN}.")
