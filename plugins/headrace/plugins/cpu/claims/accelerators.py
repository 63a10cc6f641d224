"""Layers that a provider for accelerators gets wrong or does not check, by the provider's name.

The faults were found by running onnx's backend cases. What kernels do with an index that is far out
of bounds was tried on a GPU, one operator after another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from headrace.plugins.cpu.claims import refusals
from headrace.runtime.device.compiled_plugin import Support
from headrace.runtime.network import index_bounds
from headrace.runtime.network.shapes import operators

CUDA: Final = "CUDAExecutionProvider"

_SOFTPLUS: Final = "it rounds 1 + exp(x), so small results have few right digits"
_LABELS: Final = "its kernels do not check labels, and read what lies beside the scores"
_COMPARISONS: Final = ("Equal", "IsInf", "IsNaN")
_BYTE: Final = 8


def _always(reason: str) -> Support:
    return lambda _: reason


def _resize(node: ir.Node) -> str | None:
    return "antialias is not supported" if node.attributes.get_int("antialias", 0) else None


def _attention(node: ir.Node) -> str | None:
    wanted = len(node.outputs) > 3 and bool(node.outputs[3].name)
    later = node.attributes.get_int("qk_matmul_output_mode", 0)
    return "no kernel for this qk_matmul_output_mode" if wanted and later else None


def _to_four_bits(node: ir.Node) -> str | None:
    is_so = node.outputs[0].dtype == ir.DataType.FLOAT4E2M1
    return "float4e2m1 is rounded wrongly, or has no kernel" if is_so else None


def _in_blocks(node: ir.Node) -> str | None:
    quantized = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    dtype = None if quantized is None else quantized.dtype
    wide = dtype is None or dtype.bitwidth >= _BYTE
    in_blocks = node.attributes.get_int("block_size", 0)
    return "no kernel for blocks of integers of 8 bits or more" if wide and in_blocks else None


def _log_of_sum(node: ir.Node) -> str | None:
    data = node.inputs[0]
    shape = None if data is None else data.shape
    if shape is not None and all(isinstance(size, int) and size for size in shape):
        return None
    return "of no elements it does not make minus infinity, and the input may be empty"


def _extreme(node: ir.Node) -> str | None:
    users = (use.node.op_type for use in node.outputs[0].uses())
    if not any(user in _COMPARISONS for user in users):
        return None
    return "of infinities alone it makes the largest number, and the network looks for infinities"


_OF_PROVIDER: Final[Mapping[str, Mapping[str, Support]]] = MappingProxyType(
    {
        CUDA: {
            "Attention": _attention,
            "Cast": _to_four_bits,
            "CastLike": _to_four_bits,
            "DequantizeLinear": _in_blocks,
            "NegativeLogLikelihoodLoss": _always(_LABELS),
            "QuantizeLinear": _in_blocks,
            "ReduceLogSum": _log_of_sum,
            "ReduceLogSumExp": _log_of_sum,
            "ReduceMax": _extreme,
            "ReduceMin": _extreme,
            "ReverseSequence": _always("a length out of bounds ends all that the GPU does"),
            "SoftmaxCrossEntropyLoss": _always(_LABELS),
        },
        "WebGpuExecutionProvider": {
            "DFT": _always("its sums are off by more than their last digits"),
            "Mish": _always(_SOFTPLUS),
            "Resize": _resize,
            "Softplus": _always(_SOFTPLUS),
        },
    }
)
_WITHIN: Final[Mapping[str, Collection[str]]] = MappingProxyType(
    {CUDA: ("Gather", "GatherND", "RotaryEmbedding", "ScatterND")}
)
"""By provider: operators whose kernels stay within the data, whatever the indices. So a network may
compute their indices."""


def of_provider(name: str, model: ir.Model) -> Support:
    """Says why the provider of that name does not run a node of a model; None if nothing is known.

    With an index out of bounds, a kernel of a GPU reads what another request has left in memory.
    """
    rules, within = _OF_PROVIDER.get(name, {}), _WITHIN.get(name, ())

    def reason(node: ir.Node) -> str | None:
        if node.op_identifier() in model.functions:
            return "a function that was not inlined, for DISABLE_TRANSFORMATIONS is set"
        operator = operators.operator(node)
        rule = rules.get(operator)
        return (
            refusals.reason(node)
            or (rule(node) if rule is not None else None)
            or (None if operator in within else index_bounds.why_unchecked(node, model.graph))
        )

    return reason
