"""Converts values between NumPy and tinygrad. For the backend's thread only."""

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

from headrace.runtime.network.constants import tensor_of
from headrace.runtime.network.values import Array

Value: TypeAlias = "Tensor | Array | None"
"""A tensor on the device, an array on the host, or None for an absent optional."""

_CONSTANTS: Final = 1024


def tiny_type(dtype: ir.DataType) -> DType:
    """
    Raises:
        ValueError: tinygrad does not have the type.
    """
    return OnnxDataType(int(dtype)).to_dtype()


def to_device(array: Array, device: str) -> Tensor:
    """The array's elements in device memory. They may be copied after this returns. The array is
    kept until they are copied."""
    array = np.require(array, requirements=("C", "W"))  # tinygrad takes no read-only memory
    if array.dtype == ml_dtypes.bfloat16:
        return Tensor(array.view(np.uint16), device=device).bitcast(dtypes.bfloat16).contiguous()
    return Tensor(array, device=device)


def to_constant(array: Array, device: str) -> Tensor:
    """As `to_device`, but a single element becomes a part of the kernels that read it."""
    if array.size == 1 and array.dtype != ml_dtypes.bfloat16:
        dtype = tiny_type(ir.DataType.from_numpy(array.dtype))
        return Tensor(array.item(), dtype=dtype, device=device).reshape(array.shape)
    return to_device(array, device)


def in_memory(tensor: Tensor, device: str) -> Tensor:
    """The tensor with memory on the device. A tensor that depends only on constants is on no device
    yet. tinygrad would put it on the processor, and has no compiler for that."""
    return tensor.clone(device=device) if tensor.device is None else tensor.contiguous()


def to_host(tensor: Tensor, device: str) -> Array:
    """The tensor's elements as an array with its own memory."""
    tensor = in_memory(tensor, device).realize()
    if tensor.dtype == dtypes.bfloat16:
        bits: Array = tensor.bitcast(dtypes.uint16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: Any = tensor.numpy()
    return np.asarray(array)


def realize(values: Sequence[Value]) -> None:
    """Makes the device compute all tensors among the values together. Does not wait for them."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    if tensors:
        Tensor.realize(*tensors)


def wait_for(device: str) -> None:
    """Waits until the device has done all work that it was given so far."""
    opened: Any = Device[device]
    opened.synchronize()


class Constants:
    """Keeps the most recently used small arrays on the device.

    Captured kernels do not run before the capture ends, so the arrays that they read must already
    be on the device.

    Args:
        device: tinygrad's name of the device, for example ``CL:0``.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._tensors: OrderedDict[tuple[str, tuple[int, ...], bytes], Tensor] = OrderedDict()

    def __call__(self, array: Array) -> Tensor:
        """The array's elements, already computed on the device."""
        key = (str(array.dtype), array.shape, array.tobytes())
        tensor = self._tensors.get(key)
        if tensor is None:
            tensor = self._tensors[key] = to_constant(array, self._device).realize()
            if len(self._tensors) > _CONSTANTS:
                self._tensors.popitem(last=False)
        self._tensors.move_to_end(key)
        return tensor


class Attributes:
    """The attributes of layers as tinygrad's functions take them, each read once.

    Args:
        device: as for `Constants`.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._known: dict[ir.Node, dict[str, Any]] = {}

    def __call__(self, node: ir.Node) -> dict[str, Any]:
        known = self._known.get(node)
        if known is None:
            pairs = node.attributes.items()
            known = self._known[node] = {name: self._value(value) for name, value in pairs}
        return known

    def _value(self, attribute: ir.Attr) -> Any:
        if attribute.type == ir.AttributeType.TENSOR:
            return to_constant(tensor_of(attribute).numpy(), self._device)
        value = attribute.value
        return tuple(value) if attribute.type.name.endswith("S") else value
