"""Layers of quantised networks that OpenVINO accepts but computes differently. `limits` has the
others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.openvino.constants.values import constant, input_of, sizes_of

_EXACT: Final = 2**24
"""The largest integer up to which float32 has all integers."""
_SUMS: Final = "OpenVINO adds products in float32, and a sum may be too large to be exact"
_QUANTIZED_ALONG_AN_AXIS: Final = 13
"""The operator set since which QuantizeLinear has an axis."""


def of_onnx_runtime(node: ir.Node) -> str | None:
    """Checks operators that ONNX Runtime defines, for example DynamicQuantizeLSTM. Real networks
    with these operators were wrong by a quarter of the output's range."""
    if node.domain == "com.microsoft" and node.op_type.startswith("DynamicQuantize"):
        return "OpenVINO does not quantise this operator's input"
    return None


def _dynamic_quantize(*_: object) -> str:
    """test_dynamicquantizelinear."""
    return "OpenVINO rounds some ties to the wrong integer"


def _quantize(node: ir.Node, version: int) -> str | None:
    """test_dynamicquantizelinear_expanded. If the scale is given, a tie that is rounded the wrong
    way costs no more accuracy than quantisation itself.

    No case has a list of scales or zero points for an axis of unknown size. Such a list belongs to
    the last axis in OpenVINO."""
    if (found := _blocks(node, version)) is not None:
        return found
    if node.outputs[0].dtype in (ir.DataType.INT16, ir.DataType.UINT16):
        return "OpenVINO leaves out a quantisation to 16 bits"
    scale = input_of(node, 1)
    lists = [each for each in (scale, input_of(node, 2)) if _may_be_list(each)]
    if lists and not _is_last_or_known(node, version):
        return "if an axis has no known size, OpenVINO applies its scales along the last axis"
    if scale is None or scale.is_graph_input() or constant(scale) is not None:
        return None
    return "with a computed scale, OpenVINO rounds some ties to the wrong integer"


def _blocks(node: ir.Node, _: int) -> str | None:
    """No case has scales or zero points whose number is not that of the blocks, or sizes that are
    not known. Without blocks, they are scalars or lists."""
    block, axis = node.attributes.get_int("block_size", 0), node.attributes.get_int("axis", 1)
    data, *given = (sizes_of(value) for value in node.inputs if value is not None)
    if not block:
        deep = any(sizes is not None and len(sizes) > 1 for sizes in given)
        return "a scale or zero point has several axes, and there are no blocks" if deep else None
    if data is None or not -len(data) <= axis < len(data) or block < 0:
        return "the blocks do not fit the tensor"
    blocks = list(data)
    size = blocks[axis]
    blocks[axis] = None if size is None else -(-size // block)
    if None in blocks or any(sizes != blocks for sizes in given):
        return "OpenVINO repeats scales or zero points whose shape is not that of the blocks"
    return None


def _is_last_or_known(node: ir.Node, version: int) -> bool:
    """Whether the size of the axis that is quantised is known, or the axis is the last one."""
    sizes, axis = sizes_of(input_of(node, 0)), node.attributes.get_int("axis", 1)
    if sizes is None or version < _QUANTIZED_ALONG_AN_AXIS or not -len(sizes) <= axis < len(sizes):
        return False
    return sizes[axis] is not None or axis in (-1, len(sizes) - 1)


def _product(node: ir.Node, _: int) -> str | None:
    """No case has a list of zero points for rows of more than one matrix. ONNX has such lists for
    single matrices."""
    sizes = sizes_of(input_of(node, 0))
    if _may_be_list(input_of(node, 2)) and (sizes is None or len(sizes) != 2):
        return "OpenVINO takes a list of zero points for one of each row"
    return None


def sum_of_products(node: ir.Node) -> str | None:
    """Checks the sums of a ConvInteger. No case has one of more than 2**24."""
    most = _farthest(node, 0, 2)
    weights, sizes = constant(input_of(node, 1)), sizes_of(input_of(node, 1))
    zeros, given = constant(input_of(node, 3)), input_of(node, 3) is not None
    if not sizes or None in sizes[1:]:
        return _SUMS
    if weights is None or not weights.size or (given and zeros is None):
        most *= math.prod(size or 0 for size in sizes[1:]) * _farthest(node, 1, 3)
    else:
        array = weights.numpy().astype(np.float64)
        points = np.zeros(1) if zeros is None else zeros.numpy().astype(np.float64).ravel()
        if points.size not in (1, len(array)):
            return _SUMS
        rows = array.reshape(len(array), -1)
        most *= int(np.abs(rows - points[:, np.newaxis]).sum(axis=1).max())
    return _SUMS if most > _EXACT else None


def _farthest(node: ir.Node, at: int, zero_point: int) -> int:
    """The greatest distance of an 8-bit integer from its zero point."""
    value, zero = input_of(node, at), constant(input_of(node, zero_point))
    least = 0 if value is not None and value.dtype == ir.DataType.UINT8 else -128
    if zero is None and input_of(node, zero_point) is not None:
        return 255
    points = [0] if zero is None or not zero.size else zero.numpy().astype(np.int64)
    return int(max(np.max(points) - least, least + 255 - np.min(points)))


def _may_be_list(value: ir.Value | None) -> bool:
    """Whether the value may be a list of other than one element."""
    if value is None:
        return False
    sizes = sizes_of(value)
    return sizes is None or (len(sizes) == 1 and sizes != [1])


QUANTIZING: Final[Mapping[str, Callable[[ir.Node, int], str | None]]] = MappingProxyType(
    {
        "DequantizeLinear": _blocks,
        "DynamicQuantizeLinear": _dynamic_quantize,
        "MatMulInteger": _product,
        "QuantizeLinear": _quantize,
    }
)
