"""Decodes the packed numbers of a tensor, without parsing them into protobuf's lists.

Protobuf's lists take eight bytes for each number, and growing a list of many million numbers stops
every other thread for a third of a second.

The wire format: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

_WIDTHS: Final = {"float_data": 4, "double_data": 8}
"""The bytes of a packed number, for fields whose numbers all have the same size."""

_TYPED_FIELD: Final = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}
"""The field of the elements' type. All other types use int32_data."""

DATA_FIELDS: Final = frozenset(["int32_data", *_TYPED_FIELD.values()])
"""The fields in which tensors without raw data keep their elements."""

_STEP_BYTES: Final = 2**18
"""The bytes that are decoded in one go, while other threads wait. It takes some milliseconds."""

_LONGEST: Final = 10  # bytes of a number


def field_of(dtype: ir.DataType) -> str:
    """The field in which a tensor without raw data keeps its elements."""
    return _TYPED_FIELD.get(dtype, "int32_data")


def count_numbers(packed: memoryview, field: str) -> int:
    """Counts the numbers in a field of a tensor. -1 if the last number is cut short."""
    width = _WIDTHS.get(field)
    if width is not None:
        return len(packed) // width if len(packed) % width == 0 else -1
    return count_varints(packed) if packed[-1] < 128 else -1


def count_varints(packed: memoryview) -> int:
    """Counts varints. Only the last byte of each is less than 128."""
    steps = range(0, len(packed), _STEP_BYTES)
    return sum(
        int(np.count_nonzero(np.frombuffer(packed[at : at + _STEP_BYTES], np.uint8) < 128))
        for at in steps
    )


def decode_integers(packed: memoryview, dtype: ir.DataType) -> memoryview:
    """Decodes varints into the raw data of a tensor of type `dtype`.

    Numbers that are too large lose their upper bits, as they do in protobuf and in ONNX.

    Raises:
        ValueError: a number has more than ten bytes, or elements of this type are not whole parts
            of a byte.
    """
    if dtype.bitwidth == 6:
        raise ValueError(f"store {dtype.name} as raw data")
    storage: npt.DTypeLike = np.dtype(f"<u{max(1, dtype.bitwidth // 8)}")
    parts: list[npt.NDArray[Any]] = []
    begun = 0
    while begun < len(packed):
        end = begun + _STEP_BYTES
        while end < len(packed) and packed[end - 1] > 127:
            end += 1
        numbers = _varints(np.frombuffer(packed[begun:end], np.uint8))
        if dtype == ir.DataType.BOOL:
            numbers = numbers.astype(np.uint32) != 0
        parts.append(numbers.astype(storage))
        begun = end
    joined = np.concatenate(parts) if parts else np.empty(0, storage)
    return joined.view(np.uint8).data


def _varints(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    ends = np.flatnonzero(data < 128)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    longest = int(lengths.max(initial=0))
    if longest > _LONGEST:
        raise ValueError("a number has more than ten bytes")
    numbers = (data[starts] & 127).astype(np.uint64)
    for position in range(1, longest):
        (longer,) = np.nonzero(lengths > position)
        bits = (data[starts[longer] + position] & 127).astype(np.uint64)
        numbers[longer] |= bits << np.uint64(7 * position)
    return numbers
