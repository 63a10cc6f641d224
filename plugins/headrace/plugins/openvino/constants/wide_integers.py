"""Constants that need more than 32 bits with a sign, in which OpenVINO computes integers.

OpenVINO takes the nearest integer that fits, and reports nothing. No backend case of onnx has a
constant like this. The networks of ``constants/test_wide_integers.py`` show which results are wrong
then, and which are still right. Each rule names its network there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import onnx_ir as ir

from headrace.plugins.openvino.constants.values import constant
from headrace.runtime.network.constants import const_tensor, tensor_of

REASON: Final = "OpenVINO computes integers in 32 bits, and a constant needs more"

_WIDE: Final = (ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64)
_LEAST: Final = -(2**31)
_GREATEST: Final = 2**31 - 1


def reason(node: ir.Node) -> str | None:
    """Why the node would be wrong because of a constant that it reads or makes. None if it would be
    right."""
    for tensor, low, high in _constants(node):
        if tensor.dtype not in _WIDE or not tensor.size:
            continue
        array = tensor.numpy()
        if (array.min() < _LEAST and not low) or (array.max() > _GREATEST and not high):
            return REASON
    return None


def _constants(node: ir.Node) -> Iterator[tuple[ir.TensorProtocol, bool, bool]]:
    """The constants that the node reads or makes, each with two flags. The first says whether the
    least integer that fits gives the same result as any integer below it. The second says whether
    the greatest integer that fits gives the same result as any integer above it."""
    for at, value in enumerate(node.inputs):
        if value is not None and (tensor := constant(value)) is not None:
            yield tensor, *_harmless(node, at)
    if node.op_type == "Constant" and node.outputs[0].is_graph_output():  # returned
        tensor = const_tensor(node.outputs[0])
        if tensor is not None:
            yield tensor, False, False
    if node.op_type == "ConstantOfShape" and "value" in node.attributes:  # constant_of_shape
        yield tensor_of(node.attributes["value"]), False, False


def _harmless(node: ir.Node, at: int) -> tuple[bool, bool]:
    match node.op_type, at:
        case ("Shape" | "Size", _):
            return True, True
        case ("Slice", 1 | 2 | 4) | ("Loop", 0):  # slice_ends, slice_step(_down), loop_trips
            return True, True
        case ("Max", _) | ("Clip", 1):  # max_low, max_high, clip_low, clip_min_high
            return True, False
        case ("Min", _) | ("Clip", 2):  # min_high, min_low, clip_high, clip_max_low
            return False, True
        case ("Cast" | "CastLike", 0):  # cast_to_float: the cast is folded before
            dtype = node.outputs[0].dtype
            folded = dtype is not None and dtype.is_floating_point()
            return folded, folded
    return False, False
