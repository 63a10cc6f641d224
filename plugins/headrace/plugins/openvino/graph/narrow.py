"""Integers of 16 bits. OpenVINO has integers of 16 bits in 32, and removes a cast to them and back.

ONNX drops the upper bits, so they are dropped by bitwise operations. No case shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.library import openvino, operations

_WIDER: Final = tuple(
    getattr(openvino.Type, name) for name in ("i8", "i16", "u16", "i32", "u32", "i64", "u64")
)
"""The types that have integers which 16 bits with or without a sign do not have."""


def narrowed(value: openvino.Node, kind: openvino.Type) -> openvino.Node:
    """The lower bits of an int32, in a type of 8 or 16 bits."""
    if kind in (openvino.Type.i16, openvino.Type.u16):
        value = operations.bitwise_and(value, np.int32(0xFFFF))
    if kind == openvino.Type.i16:
        sign = np.int32(0x8000)
        value = operations.subtract(operations.bitwise_xor(value, sign), sign)
    return operations.convert(value, kind)


def _cast(operation: openvino.Node) -> openvino.Node | None:
    source, kind = operation.input_value(0), operation.get_output_element_type(0)
    of = source.get_element_type()
    if kind not in (openvino.Type.i16, openvino.Type.u16) or of not in _WIDER or of == kind:
        return None
    return narrowed(operations.convert(source, "i32"), kind)


NARROW: Final[Mapping[str, Callable[[openvino.Node], openvino.Node | None]]] = MappingProxyType(
    {"Convert": _cast, "ConvertLike": _cast}
)
