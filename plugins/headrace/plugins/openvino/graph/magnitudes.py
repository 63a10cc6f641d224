"""Absolute values that OpenVINO's compiler does not lose."""

from __future__ import annotations

from headrace.plugins.openvino.library import openvino, operations


def magnitude(value: openvino.Output) -> openvino.Node:
    """The absolute value. If a list follows from constants or shapes, the compiler takes none of
    its values for negative, and removes the Abs. So a list gets the larger one of each value and
    its opposite. No case shows it."""
    shape, kind = value.get_partial_shape(), value.get_element_type()
    is_list = shape.rank.is_dynamic or len(shape) == 1
    if not is_list or not (kind.is_real() or kind.is_signed()):
        return operations.absolute(value)
    return operations.maximum(value, operations.negative(value))
