"""Layers that OPENVINO does not give to OpenVINO, because of faults that no comparison of answers
finds: those that depend on a request's values, and those that end the process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import onnx_ir as ir

from headrace.runtime.network.constants import const_tensor

Rule: TypeAlias = Callable[[ir.Node], "str | None"]

SSE4: Final = "SSE4"  # the capability of a processor that has no AVX to OpenVINO
_NEED_AVX: Final = ("Resize", "RoiAlign", "Softsign", "Upsample")
_MOST_AXES: Final = 32
_SHAPES: Final[Mapping[str, int]] = MappingProxyType(
    {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Unsqueeze": 1}
)
"""Operators that take a shape, or axes to add, and the index of the input that holds it."""


def reason(node: ir.Node, capabilities: Collection[str] = ()) -> str | None:
    """Why the node is not given to OpenVINO. None if no such fault is known.

    Args:
        capabilities: the device's OPTIMIZATION_CAPABILITIES.
    """
    if node.domain not in ("", "ai.onnx"):
        return _of_onnx_runtime(node)
    if SSE4 in capabilities and node.op_type in _NEED_AVX:
        return "on processors without AVX, OpenVINO computes this operator wrongly"
    rule = _RULES.get(node.op_type)
    known = rule(node) if rule is not None else None
    return known or _axes(node) or _doubles(node)


def _of_onnx_runtime(node: ir.Node) -> str | None:
    """Checks operators that ONNX Runtime defines, for example DynamicQuantizeLSTM. Real networks
    with these operators were wrong by a quarter of the output's range."""
    if node.domain == "com.microsoft" and node.op_type.startswith("DynamicQuantize"):
        return "OpenVINO does not quantise this operator's input"
    return None


def _axes(node: ir.Node) -> str | None:
    """OpenVINO ends the process on a tensor of 33 axes."""
    ranks = [value.shape.rank() for value in (*node.inputs, *node.outputs) if value and value.shape]
    at = _SHAPES.get(node.op_type)
    given = _input_of(node, at) if at is not None else None
    if given is not None and given.shape and isinstance(given.shape[0], int):
        ranks.append(given.shape[0])
    if max(ranks, default=0) > _MOST_AXES:
        return f"OpenVINO has tensors of at most {_MOST_AXES} axes"
    return None


def _doubles(node: ir.Node) -> str | None:
    """test_operator_add_broadcast, test_cast_DOUBLE_to_FLOAT: float64 is computed in float32."""
    if node.op_type in ("Shape", "Size", "Constant"):
        return None
    casts = node.op_type in ("Cast", "CastLike")
    values = (each for each in node.inputs if not casts or _constant(each) is None)
    if any(v is not None and v.dtype == ir.DataType.DOUBLE for v in (*values, *node.outputs)):
        return "OpenVINO computes float64 in float32"
    return None


def _cast(node: ir.Node) -> str | None:
    """test_cast_FLOAT_to_FLOAT8E4M3FN, test_cast_FLOAT_to_FLOAT8E5M2,
    test_cast_e8m0_FLOAT_to_FLOAT8E8M0."""
    target = node.outputs[0].dtype
    if target == ir.DataType.FLOAT8E8M0:
        return "OpenVINO rounds to even and saturates whenever it casts to float8e8m0"
    saturates = node.attributes.get_int("saturate", 1)
    if saturates and target in (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2):
        return f"OpenVINO does not saturate when it casts to {target.name.lower()}"
    return None


def _dft(_: ir.Node) -> str:
    """test_dft_rfft, test_dft_axis and all other cases of DFT. One in a Scan ended the process."""
    return "OpenVINO's Fourier transforms return other shapes and have errors of 1e-4"


def _dynamic_quantize(_: ir.Node) -> str:
    """test_dynamicquantizelinear."""
    return "OpenVINO rounds some ties to the wrong integer"


def _quantize(node: ir.Node) -> str | None:
    """test_dynamicquantizelinear_expanded. If the scale is given, a tie that is rounded the wrong
    way costs no more accuracy than quantisation itself."""
    if node.outputs[0].dtype in (ir.DataType.INT16, ir.DataType.UINT16):
        return "OpenVINO leaves out a quantisation to 16 bits"
    scale = _input_of(node, 1)
    if scale is None or scale.is_graph_input() or _constant(scale) is not None:
        return None
    return "with a computed scale, OpenVINO rounds some ties to the wrong integer"


def _sum_of_products(_: ir.Node) -> str:
    """No case has a sum of more than 2**24."""
    return "OpenVINO adds products in float32, and a sum may be too large to be exact"


def _prelu(node: ir.Node) -> str | None:
    """If both are constants and do not fit each other, the process ends."""
    if all(_constant(_input_of(node, at)) is not None for at in range(2)):
        return "the data and the slopes are constants"
    return None


def _tile(node: ir.Node) -> str | None:
    """A scalar with computed repeats ends the process."""
    data = _input_of(node, 0)
    if _constant(_input_of(node, 1)) is None and data is not None and data.shape is not None:
        return None if data.shape.rank() else "a scalar with computed repeats ends the process"
    return None


def _unique(_: ir.Node) -> str:
    """With an axis out of bounds and constants, it ends the process."""
    return "its sizes follow from values of a request"


def _input_of(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The value's tensor, if the value is a constant that no caller can change."""
    return None if value is None or value.is_graph_input() else const_tensor(value)


_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "Cast": _cast,
        "CastLike": _cast,
        "ConvInteger": _sum_of_products,
        "DFT": _dft,
        "DynamicQuantizeLinear": _dynamic_quantize,
        "PRelu": _prelu,
        "QuantizeLinear": _quantize,
        "Tile": _tile,
        "Unique": _unique,
    }
)
