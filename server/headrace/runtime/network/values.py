"""Values that enter and leave a network: tensors, sequences of values, absent optionals.

A tensor is a NumPy array in host memory. An array lives as long as something refers to it. A job
keeps its inputs until the backend has returned, even if its caller has left before. So a buffer is
free once the last array that views it is gone.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy.typing as npt
import onnx_ir as ir

Array: TypeAlias = npt.NDArray[Any]

Value: TypeAlias = "Array | list[Value] | None"

NUMPY_NUMBERS: Final = frozenset(
    {
        ir.DataType.FLOAT,
        ir.DataType.FLOAT16,
        ir.DataType.DOUBLE,
        ir.DataType.BOOL,
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.INT32,
        ir.DataType.INT64,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
        ir.DataType.UINT64,
    }
)
"""The types that NumPy itself has, which every backend's binding passes on."""


def size_bytes(value: Value) -> int:
    """The bytes of the elements. For strings, it counts the pointers and not the text."""
    if isinstance(value, list):
        return sum(size_bytes(element) for element in value)
    return 0 if value is None else int(value.nbytes)
