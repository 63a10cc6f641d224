"""The table of the protocol's data types and NumPy's. The protocol's numbers are those of ONNX.

NumPy lacks bfloat16, float8 and the 2- and 4-bit types. ml_dtypes adds them; an element of a small
type takes one byte. Strings are object arrays of `str`, or of `bytes` where they are not UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from headrace.v1 import inference_engine_pb2 as pb

STRING: Final[int] = pb.DataType.STRING
BOOL: Final[int] = pb.DataType.BOOL

_OBJECT = np.dtype(object)

NUMPY_TYPES: Final[Mapping[int, np.dtype[Any]]] = MappingProxyType(
    {
        int(pb.DataType.FLOAT): np.dtype(np.float32),
        int(pb.DataType.UINT8): np.dtype(np.uint8),
        int(pb.DataType.INT8): np.dtype(np.int8),
        int(pb.DataType.UINT16): np.dtype(np.uint16),
        int(pb.DataType.INT16): np.dtype(np.int16),
        int(pb.DataType.INT32): np.dtype(np.int32),
        int(pb.DataType.INT64): np.dtype(np.int64),
        int(pb.DataType.STRING): _OBJECT,
        int(pb.DataType.BOOL): np.dtype(np.bool_),
        int(pb.DataType.FLOAT16): np.dtype(np.float16),
        int(pb.DataType.DOUBLE): np.dtype(np.float64),
        int(pb.DataType.UINT32): np.dtype(np.uint32),
        int(pb.DataType.UINT64): np.dtype(np.uint64),
        int(pb.DataType.COMPLEX64): np.dtype(np.complex64),
        int(pb.DataType.COMPLEX128): np.dtype(np.complex128),
        int(pb.DataType.BFLOAT16): np.dtype(ml_dtypes.bfloat16),
        int(pb.DataType.FLOAT8E4M3FN): np.dtype(ml_dtypes.float8_e4m3fn),
        int(pb.DataType.FLOAT8E4M3FNUZ): np.dtype(ml_dtypes.float8_e4m3fnuz),
        int(pb.DataType.FLOAT8E5M2): np.dtype(ml_dtypes.float8_e5m2),
        int(pb.DataType.FLOAT8E5M2FNUZ): np.dtype(ml_dtypes.float8_e5m2fnuz),
        int(pb.DataType.UINT4): np.dtype(ml_dtypes.uint4),
        int(pb.DataType.INT4): np.dtype(ml_dtypes.int4),
        int(pb.DataType.FLOAT4E2M1): np.dtype(ml_dtypes.float4_e2m1fn),
        int(pb.DataType.FLOAT8E8M0): np.dtype(ml_dtypes.float8_e8m0fnu),
        int(pb.DataType.UINT2): np.dtype(ml_dtypes.uint2),
        int(pb.DataType.INT2): np.dtype(ml_dtypes.int2),
    }
)
"""Number of the protocol's DataType → NumPy dtype in native byte order."""

_NUMBERS = {dtype: number for number, dtype in NUMPY_TYPES.items()}
_BY_NAME = {
    **{dtype.name: number for number, dtype in NUMPY_TYPES.items()},
    "string": STRING,
    "str": STRING,
    **{
        name.casefold(): number
        for name, number in pb.DataType.items()
        if number != pb.DataType.DATA_TYPE_UNSPECIFIED
    },
}
_TEXT_KINDS = frozenset("OSUT")


def numpy_type(number: int) -> np.dtype[Any]:
    """The NumPy dtype of a DataType; strings are `object`.

    Raises:
        ValueError: the number is no data type.
    """
    try:
        return NUMPY_TYPES[number]
    except KeyError:
        raise ValueError(f"{number} is not a data type") from None


def number_of(dtype: npt.DTypeLike) -> int:
    """The DataType of a NumPy dtype in either byte order.

    Raises:
        ValueError: ONNX has no such type (dates, structures, long doubles).
    """
    number = _NUMBERS.get(dtype) if isinstance(dtype, np.dtype) else None
    if number is not None:
        return number
    exact = np.dtype(dtype)
    if exact.kind in _TEXT_KINDS:
        return STRING
    number = _NUMBERS.get(exact.newbyteorder("="))
    if number is None:
        raise ValueError(f"ONNX has no type for NumPy's {exact}")
    return number


def name_of(number: int) -> str:
    """NumPy's name of a DataType, as ``float32``; ``string`` for strings.

    Raises:
        ValueError: the number is no data type.
    """
    return "string" if number == STRING else numpy_type(number).name


def parse_name(name: str) -> int:
    """The DataType called `name`: NumPy's ``float32``, or ONNX's ``FLOAT`` in any case.

    ``float`` is ONNX's name of float32.

    Raises:
        ValueError: no type has this name; the message lists the names that exist.
    """
    number = _BY_NAME.get(name.casefold())
    if number is None:
        known = ", ".join(name_of(number) for number in NUMPY_TYPES)
        raise ValueError(f"unknown data type {name!r}; known: {known}")
    return number
