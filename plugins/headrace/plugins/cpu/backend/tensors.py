"""Converts tensors between NumPy and ONNX Runtime.

The binding converts NumPy's own types. It knows none of the types of `ml_dtypes`, so this module
passes their bytes through OrtValues. An element has one or two bytes, or a byte has two or four
elements, the first in the low bits, as ONNX packs them. Strings are `str` in object arrays. `bytes`
are decoded first, because the binding would pass on their Python spelling.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from headrace.runtime.errors import InvalidArgument, Unimplemented
from headrace.runtime.network.network import Port
from headrace.runtime.network.values import NUMPY_NUMBERS, Array, Value

BINDING_CONVERTS = NUMPY_NUMBERS | {ir.DataType.STRING}


class TensorConversion:
    """Converts one network's inputs and outputs.

    `as_values`: the network runs on OrtValues, because NumPy lacks an output's type.
    `plain`: an ndarray needs no conversion.

    Raises:
        Unimplemented: the binding cannot express a combination of ports; names the port.
    """

    __slots__ = ("_input_types", "_output_types", "as_values", "plain")

    def __init__(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        self._input_types = {port.name: port.dtype for port in inputs}
        self._output_types = {port.name: port.dtype for port in outputs}
        self.as_values = any(port.dtype not in BINDING_CONVERTS for port in outputs)
        self.plain = not self.as_values and all(
            port.dtype in BINDING_CONVERTS and port.dtype != ir.DataType.STRING for port in inputs
        )
        for port in (*inputs, *outputs):
            if port.kind == "sequence" and (self.as_values or port.dtype not in BINDING_CONVERTS):
                raise Unimplemented(
                    f"ONNX Runtime cannot pass the sequence {port.name!r}, because an input or "
                    "output of the network has a type that NumPy lacks"
                )

    def feed(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """The feed for these inputs, for `Session.run` or, if `as_values`, `Session.run_values`.

        Raises:
            InvalidArgument: a string is not UTF-8, or not a string.
        """
        feed: dict[str, Any] = {}
        for name, value in values.items():
            dtype = self._input_types[name]
            if dtype == ir.DataType.STRING and value is not None:
                value = _strings(name, value)
            if isinstance(value, np.ndarray) and (self.as_values or dtype not in BINDING_CONVERTS):
                converted = to_ort(value, dtype)
                # In a feed of arrays the binding looks for the OrtValue inside its wrapper.
                feed[name] = converted._get_c_value() if self.as_values else converted
            elif value is not None or not self.as_values:
                feed[name] = value
        return feed

    def fetch(self, names: Iterable[str], values: Iterable[Any]) -> dict[str, Value]:
        """The outputs that `Session.run_values` gave, as arrays."""
        return {
            name: from_ort(value, self._output_types[name])
            for name, value in zip(names, values, strict=True)
        }


def to_ort(array: Array, dtype: ir.DataType) -> onnxruntime.OrtValue:
    """An OrtValue of the array's elements. It reads the array's own memory if the type is as wide
    in memory as in ONNX, and the array is contiguous and aligned. The caller must then keep the
    array."""
    array = aligned(array)
    if dtype in BINDING_CONVERTS:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    if dtype.bitwidth < 8:
        packed = _pack(array, dtype.bitwidth)
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), int(dtype))
        ctypes.memmove(value.data_ptr(), packed.ctypes.data, packed.nbytes)
        return value
    bits = array.view(np.uint8 if array.itemsize == 1 else np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, int(dtype))


def from_ort(value: Any, dtype: ir.DataType) -> Array:
    """The elements of an OrtValue that holds a tensor; a copy if NumPy lacks their type."""
    if dtype in BINDING_CONVERTS:
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    size = value.tensor_size_in_bytes()
    if not size:
        return np.empty(shape, dtype.numpy())
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint8)
    if dtype.bitwidth < 8:
        return _unpack(raw, dtype, shape)
    # A copy, so that the array may be written to like any other output.
    return raw.copy().view(dtype.numpy()).reshape(shape)


def aligned(array: Array) -> Array:
    """The array itself, or a copy if it is not contiguous or not aligned. Weights inside a
    serialised model are often not aligned, and vector code may fault on them."""
    return np.require(array, requirements=("C", "A"))


def _pack(array: Array, bits: int) -> Array:
    per_byte = 8 // bits
    elements = array.reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    padded = np.zeros(-(-elements.size // per_byte) * per_byte, np.uint8)
    padded[: elements.size] = elements
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    packed: Array = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return packed


def _unpack(raw: Array, dtype: ir.DataType, shape: tuple[int, ...]) -> Array:
    bits = dtype.bitwidth
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    elements = (raw[:, None] >> shifts) & ((1 << bits) - 1)
    elements = elements.reshape(-1)[: int(np.prod(shape))]
    if dtype.is_signed() and dtype.is_integer():
        sign = 1 << (bits - 1)  # arithmetic with an array without axes gives a scalar
        return ((elements.astype(np.int8) ^ sign) - sign).astype(dtype.numpy()).reshape(shape)
    return elements.astype(np.uint8).view(dtype.numpy()).reshape(shape)


def _strings(name: str, value: Array | list[Any]) -> Array | list[Any]:
    if isinstance(value, list):
        return [_strings(name, element) for element in value]
    flat = value.reshape(-1)
    decoded = np.empty(flat.size, object)
    for index, element in enumerate(flat):
        decoded[index] = _text(name, index, element)
    return decoded.reshape(value.shape)


def _text(name: str, index: int, element: object) -> str:
    if isinstance(element, str):
        return element
    if isinstance(element, bytes):
        try:
            return element.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(
                f"element {index} of input {name!r} is not UTF-8", field=f"inputs[{name!r}]"
            ) from None
    raise InvalidArgument(
        f"element {index} of input {name!r} is a {type(element).__name__}, not a string",
        field=f"inputs[{name!r}]",
    )
