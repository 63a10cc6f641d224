"""Conditions on unsigned integers, under the rules of `conditions`.

Kernels have these integers in 32 bits with a sign. The network returns one that needs all bits as
it should be, but other kernels take it for a negative one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from headrace.plugins.openvino.guards.integers import WIDE
from headrace.plugins.openvino.guards.terms import Condition, all_hold, follows_values
from headrace.plugins.openvino.library import openvino, operations

_UNSIGNED: Final = (openvino.Type.u32, openvino.Type.u64)
_SIGN: Final = np.int32(-(2**31))
_MAKING_SIGNS: Final = frozenset(
    ["Add", "BitwiseLeftShift", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Subtract"]
)
"""Operations that make an integer with a sign of at most one bit too many."""


def without_sign(operation: openvino.Node) -> Iterator[Condition]:
    """The condition that no unsigned integer that another kernel reads needs all 32 bits."""
    kind = operation.get_type_name()
    if kind != "Multiply" and kind not in _MAKING_SIGNS:
        return
    output = operation.output(0)
    if output.get_element_type() not in _UNSIGNED or not follows_values(output):
        return
    if all(port.get_node().get_type_name() == "Result" for port in output.get_target_inputs()):
        return
    if kind == "Multiply":
        values = (operations.convert(each, "f32") for each in operation.input_values())
        holds = operations.less_equal(operations.multiply(*values), np.float32(2**31 - 2**7))
    else:
        sign = operations.bitwise_and(operations.convert(output, "i32"), _SIGN)
        holds = operations.greater_equal(operations.convert(sign, "f32"), np.float32(0))
    yield all_hold(holds), WIDE
