"""Values between NumPy and tinygrad. For the backend's thread only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
import onnx_ir as ir
from tinygrad.device import Device
from tinygrad.dtype import DType, dtypes
from tinygrad.nn.onnx import OnnxDataType
from tinygrad.tensor import Tensor

from headrace.runtime.network.values import Array

Value: TypeAlias = "Tensor | Array | list[Value] | None"
"""On the device, known on the host, a sequence, or an absent optional."""

_CONSTANTS: Final = 1024


def tiny_type(dtype: ir.DataType) -> DType:
    """
    Raises:
        ValueError: tinygrad lacks it.
    """
    return OnnxDataType(int(dtype)).to_dtype()


def to_device(array: Array, device: str) -> Tensor:
    """The array's elements in device memory, copied when this returns or later; the array is kept
    until then."""
    array = np.require(array, requirements=("C", "W"))  # tinygrad takes no read-only memory
    if array.dtype == ml_dtypes.bfloat16:
        return Tensor(array.view(np.uint16), device=device).bitcast(dtypes.bfloat16).contiguous()
    return Tensor(array, device=device)


def to_constant(array: Array, device: str) -> Tensor:
    """As `to_device`, but one element becomes a part of the kernels that read it."""
    if array.size == 1 and array.dtype != ml_dtypes.bfloat16:
        dtype = tiny_type(ir.DataType.from_numpy(array.dtype))
        return Tensor(array.item(), dtype=dtype, device=device).reshape(array.shape)
    return to_device(array, device)


def in_memory(tensor: Tensor, device: str) -> Tensor:
    """The tensor with memory on the device. One that depends on constants alone is on no device as
    yet, and tinygrad would put it on the processor, for which it has no compiler."""
    return tensor.clone(device=device) if tensor.device is None else tensor.contiguous()


def to_host(tensor: Tensor, device: str) -> Array:
    """The elements, in memory of their own."""
    tensor = in_memory(tensor, device).realize()
    if tensor.dtype == dtypes.bfloat16:
        bits: Array = tensor.bitcast(dtypes.uint16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: Any = tensor.numpy()
    return np.asarray(array)


def realize(values: Sequence[Value]) -> None:
    """Has the device compute the tensors among the values, together, without waiting for them."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    if tensors:
        Tensor.realize(*tensors)


def wait_for(device: str) -> None:
    """Returns when the device has computed all that it was given so far."""
    opened: Any = Device[device]
    opened.synchronize()


class Constants:
    """Small arrays on the device, kept: those used last.

    Kernels that are captured do not run before the capture ends, so what they read must be there.

    Args:
        device: as tinygrad calls it, ``CL:0``.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._tensors: OrderedDict[tuple[str, tuple[int, ...], bytes], Tensor] = OrderedDict()

    def __call__(self, array: Array) -> Tensor:
        """The array's elements, computed."""
        key = (str(array.dtype), array.shape, array.tobytes())
        tensor = self._tensors.get(key)
        if tensor is None:
            tensor = self._tensors[key] = to_constant(array, self._device).realize()
            if len(self._tensors) > _CONSTANTS:
                self._tensors.popitem(last=False)
        self._tensors.move_to_end(key)
        return tensor
