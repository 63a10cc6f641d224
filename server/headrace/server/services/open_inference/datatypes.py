"""Converts the protocol's datatypes to NumPy's, and raw bytes and typed contents to arrays.

Errors are `CodecError`s. Their field is relative to the tensor, for example ``.shape``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
import onnx_ir as ir

from headrace.runtime.errors import Unimplemented
from headrace.wire.bounds import MAX_PARTS
from headrace.wire.codec import Array, Buffer, CodecError, check_shape

BYTES: Final = "BYTES"
BOOL: Final = "BOOL"

NUMPY_TYPES: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {
        BOOL: np.dtype(np.bool_),
        "UINT8": np.dtype(np.uint8),
        "UINT16": np.dtype(np.uint16),
        "UINT32": np.dtype(np.uint32),
        "UINT64": np.dtype(np.uint64),
        "INT8": np.dtype(np.int8),
        "INT16": np.dtype(np.int16),
        "INT32": np.dtype(np.int32),
        "INT64": np.dtype(np.int64),
        "FP16": np.dtype(np.float16),
        "FP32": np.dtype(np.float32),
        "FP64": np.dtype(np.float64),
        BYTES: np.dtype(object),
        "BF16": np.dtype(ml_dtypes.bfloat16),
    }
)
"""Datatype → NumPy dtype in native byte order. Elements of BYTES are `str`, or `bytes` if they
are not UTF-8."""

MAX_ELEMENTS: Final = MAX_PARTS
"""The most elements of a BYTES tensor. Each element is a Python object."""

CHUNK: Final = 1 << 15
"""Numbers that are converted at a time. This limits how long the event loop waits."""

_SMALL: Final = 1 << 12
"""Bytes that are copied in less time than a view of them takes."""

_DATATYPES = {dtype: name for name, dtype in NUMPY_TYPES.items()}
_LENGTH = struct.Struct("<I")

Numbers: TypeAlias = "Sequence[int] | Sequence[float] | Sequence[bool]"


def datatype_of(dtype: np.dtype[Any] | ir.DataType, what: str) -> str:
    """The protocol's name of a type.

    Args:
        what: the thing that has the type, for the error.

    Raises:
        Unimplemented: the protocol has no such type.
    """
    exact = dtype.numpy() if isinstance(dtype, ir.DataType) else dtype
    name = _DATATYPES.get(exact)
    if name is None:
        raise Unimplemented(
            f"{what} has type {exact.name}, which the Open Inference Protocol lacks; convert it in "
            "the model or by the output's dtype at load, or use headrace's own protocol"
        )
    return name


def numpy_type(datatype: str) -> np.dtype[Any]:
    """
    Raises:
        CodecError: the protocol has no such datatype.
    """
    dtype = NUMPY_TYPES.get(datatype)
    if dtype is None:
        known = ", ".join(NUMPY_TYPES)
        raise CodecError(".datatype", f"{datatype[:100]!r} is none of {known}")
    return dtype


def decode_raw(datatype: str, shape: Sequence[int], data: Buffer) -> Array:
    """Makes a tensor from its little-endian, row-major bytes.

    The tensor is a read-only view of the bytes. It is a copy if the address of the bytes is not a
    multiple of an element's size.
    """
    dtype = NUMPY_TYPES.get(datatype) or numpy_type(datatype)
    check_shape(shape)
    if datatype == BYTES:
        return _strings(_split(data, _count(shape)), shape)
    size = dtype.itemsize * math.prod(shape)
    if len(data) != size:
        raise CodecError(
            "", f"has {len(data)} bytes, but shape {list(shape)} of {datatype} takes {size}"
        )
    array: Array = np.ndarray(shape, dtype, data)
    if not array.flags.aligned:
        array = array.copy()
    array.flags.writeable = False
    if datatype == BOOL and array.view(np.uint8).max(initial=0) > 1:
        raise CodecError("", "a BOOL is one byte, 0 or 1")
    return array


def decode_numbers(datatype: str, shape: Sequence[int], numbers: Numbers) -> Array:
    """Makes a tensor from its elements as numbers in row-major order. BYTES is not allowed."""
    dtype = numpy_type(datatype)
    check_shape(shape)
    _check_count(len(numbers), shape, datatype)
    wide = _WIDE.get(dtype.kind, dtype)
    array: Array = np.empty(len(numbers), dtype)
    for start in range(0, len(numbers), CHUNK):
        chunk = _converted(numbers[start : start + CHUNK], wide, datatype)
        if wide.itemsize > dtype.itemsize and dtype.kind in "iu":
            _check_range(chunk, dtype, datatype)
        array[start : start + CHUNK] = chunk
    array = array.reshape(tuple(shape))
    array.flags.writeable = False
    return array


def decode_bytes(shape: Sequence[int], elements: Sequence[bytes]) -> Array:
    """Makes a BYTES tensor from its elements in row-major order."""
    check_shape(shape)
    _check_count(len(elements), shape, BYTES)
    return _strings(elements, shape)


def encode_raw(array: Array, datatype: str) -> Buffer:
    """The inverse of `decode_raw`. Returns a view of the array's memory if possible, or a copy if
    it is small.

    Raises:
        CodecError: an element is neither text nor bytes.
    """
    if datatype == BYTES:
        return b"".join(
            part for text in encode_bytes(array) for part in (_LENGTH.pack(len(text)), text)
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.nbytes <= _SMALL:
        return array.tobytes()
    # ml_dtypes arrays do not support the buffer protocol, but views of their bytes do.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def encode_bytes(array: Array) -> Iterable[bytes]:
    """The elements of a BYTES tensor.

    Raises:
        CodecError: an element is neither text nor bytes.
    """
    for element in array.reshape(-1).tolist():
        if isinstance(element, bytes):
            yield element
        elif isinstance(element, str):
            yield element.encode("utf-8", "surrogatepass")
        else:
            kind = type(element).__name__
            raise CodecError("", f"holds a {kind}; elements must be str or bytes")


_WIDE: Final = {"i": np.dtype(np.int64), "u": np.dtype(np.uint64)}
"""The types that integers are read as, before the check that they fit their own type."""


def _converted(numbers: Any, dtype: np.dtype[Any], datatype: str) -> Array:
    try:
        return np.array(numbers, dtype)
    except (OverflowError, ValueError, TypeError) as error:
        raise CodecError("", f"holds a value that is not a {datatype}: {error}") from None


def _check_range(numbers: Array, dtype: np.dtype[Any], datatype: str) -> None:
    limits = np.iinfo(dtype)
    if numbers.size and not (limits.min <= numbers.min() and numbers.max() <= limits.max):
        raise CodecError(
            "", f"holds a number outside {limits.min} to {limits.max}, which {datatype} takes"
        )


def _count(shape: Sequence[int]) -> int:
    count = math.prod(shape)
    if count > MAX_ELEMENTS:
        raise CodecError(
            ".shape", f"has {count} elements of BYTES; a request holds at most {MAX_ELEMENTS}"
        )
    return count


def _check_count(count: int, shape: Sequence[int], datatype: str) -> None:
    if count != math.prod(shape):
        raise CodecError(
            "",
            f"has {count} elements, but shape {list(shape)} of {datatype} takes {math.prod(shape)}",
        )


def _split(data: Buffer, count: int) -> list[bytes]:
    """Splits raw BYTES data into elements. Each has its length in four bytes, then its bytes."""
    elements = []
    position, end = 0, len(data)
    for index in range(count):
        if position + 4 > end:
            raise CodecError("", f"ends before element {index} of {count}")
        (length,) = _LENGTH.unpack_from(data, position)
        position += 4
        if length > end - position:
            raise CodecError(
                "", f"element {index} says that it has {length} bytes; {end - position} are left"
            )
        elements.append(bytes(data[position : position + length]))
        position += length
    if position != end:
        raise CodecError("", f"has {end - position} bytes after its last element")
    return elements


def _strings(elements: Sequence[bytes], shape: Sequence[int]) -> Array:
    array: Array = np.empty(len(elements), dtype=object)
    for index, element in enumerate(elements):
        try:
            array[index] = element.decode("utf-8")
        except UnicodeDecodeError:
            array[index] = element
    array = array.reshape(tuple(shape))
    array.flags.writeable = False
    return array
