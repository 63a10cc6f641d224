"""Passes tensors between NumPy and OpenVINO, without a copy if possible.

OpenVINO uses memory in place, but its binding refuses read-only arrays. The arrays of a received
message are read-only. OpenVINO only reads inputs, so it gets a writeable array over the same
memory. Arrays of the types of `ml_dtypes` are passed as bytes, with OpenVINO's name for the type.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.openvino.library import openvino
from headrace.runtime.network.values import NUMPY_NUMBERS, Array

_BY_BYTES: Final[Mapping[ir.DataType, Any]] = MappingProxyType(
    {
        ir.DataType.BFLOAT16: openvino.Type.bf16,
        ir.DataType.FLOAT8E4M3FN: openvino.Type.f8e4m3,
        ir.DataType.FLOAT8E5M2: openvino.Type.f8e5m2,
        ir.DataType.FLOAT8E8M0: openvino.Type.f8e8m0,
    }
)
PASSED: Final = NUMPY_NUMBERS | _BY_BYTES.keys()
"""Element types that a network's inputs and outputs may have."""


def element_type(dtype: ir.DataType) -> openvino.Type:
    """OpenVINO's name for a type in `PASSED`."""
    return _BY_BYTES[dtype] if dtype in _BY_BYTES else openvino.Type(dtype.numpy())


def tensor(array: Array, dtype: ir.DataType) -> tuple[openvino.Tensor, Array]:
    """A tensor over the array's memory, and the array that must outlive the tensor's use. That
    array is `array` itself, or a copy if its elements are not contiguous and aligned. It is not
    written to."""
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = np.require(array, requirements=("C", "A"))
    kind, plain = dtype.numpy(), array
    if not array.flags.writeable:
        address, _ = array.__array_interface__["data"]
        memory: Any = (ctypes.c_char * array.nbytes).from_address(address)
        plain = np.ndarray(array.shape, kind, memory)
    elif array.dtype.num != kind.num:
        # NumPy has two equal types of 64 bits. The binding knows one of them, and ONNX Runtime
        # answers with the other.
        plain = array.view(kind)
    if dtype in NUMPY_NUMBERS:
        return openvino.Tensor(plain, shared_memory=True), array
    bits = plain.view(np.uint8 if array.itemsize == 1 else np.uint16)
    return openvino.Tensor(bits, array.shape, _BY_BYTES[dtype]), array


def array(value: openvino.Tensor, dtype: ir.DataType) -> Array:
    """The tensor's elements, without a copy. The array keeps the tensor alive."""
    data: Array = value.data
    return data if dtype in NUMPY_NUMBERS else data.view(dtype.numpy())
