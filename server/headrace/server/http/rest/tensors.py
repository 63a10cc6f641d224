"""Converts a tensor's ``data`` in JSON, flat or nested like its shape, to an array and back.

Errors are `CodecError`s. Their field is relative to the tensor, for example ``.data``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson

from headrace.runtime.errors import FailedPrecondition
from headrace.server.services.open_inference.datatypes import (
    BOOL,
    BYTES,
    CHUNK,
    decode_bytes,
    decode_numbers,
    encode_bytes,
    numpy_type,
)
from headrace.wire.codec import Array, CodecError, check_shape

_BINARY_ONLY: Final = ("FP16", "BF16")

_ELEMENTS: Final[dict[str, frozenset[type]]] = {
    BOOL: frozenset({bool}),
    BYTES: frozenset({str}),
    "FP32": frozenset({int, float}),
    "FP64": frozenset({int, float}),
}
_WHOLE: Final = frozenset({int})
_NAMES: Final = {
    bool: "true or false",
    str: "text",
    int: "a whole number",
    float: "a number with a point",
}


def decode_data(datatype: str, shape: Sequence[int], data: Any) -> Array:
    """
    Raises:
        CodecError: the data are not of this type and shape.
    """
    numpy_type(datatype)  # raises an error that lists the datatypes
    check_shape(shape)
    if datatype in _BINARY_ONLY:
        raise CodecError(".data", f"cannot hold {datatype}; send it as binary data")
    flat = _flat(data, shape)
    _check_elements(flat, datatype)
    try:
        if datatype == BYTES:
            return decode_bytes(shape, [text.encode() for text in flat])
        with np.errstate(over="ignore"):
            array = decode_numbers(datatype, shape, flat)
    except CodecError as error:
        raise error.under("" if error.field else ".data") from None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CodecError(".data", f"holds a number that is too large for {datatype}")
    return array


def _flat(data: Any, shape: Sequence[int]) -> list[Any]:
    """The elements in row-major order."""
    if type(data) is not list:
        raise CodecError(".data", "must be a list")
    flat, depth = data, 0
    while flat and type(flat[0]) is list:
        if depth + 1 >= len(shape):
            raise CodecError(".data", f"nests deeper than its shape {list(shape)}")
        if len(flat) != math.prod(shape[: depth + 1]):
            raise _ragged(shape)
        if any(type(item) is not list for item in flat) or len(set(map(len, flat))) > 1:
            raise _ragged(shape)
        flat = list(chain.from_iterable(flat))
        depth += 1
    return flat


def _ragged(shape: Sequence[int]) -> CodecError:
    return CodecError(".data", f"does not nest as its shape {list(shape)}; flat data do as well")


def _check_elements(flat: list[Any], datatype: str) -> None:
    allowed = _ELEMENTS.get(datatype, _WHOLE)
    for start in range(0, len(flat), CHUNK):
        chunk = flat[start : start + CHUNK]
        if wrong := set(map(type, chunk)) - allowed:
            kind = wrong.pop()
            if allowed == _WHOLE and kind is float and any(map(_is_wide, chunk)):
                raise CodecError(".data", f"holds a number that is too large for {datatype}")
            what = "null" if kind is type(None) else _NAMES.get(kind, "a list or an object")
            takes = " or ".join(sorted(_NAMES[each] for each in allowed))
            raise CodecError(".data", f"holds {what}, and {datatype} takes {takes}")


def _is_wide(element: Any) -> bool:
    """Whether it is a number beyond 64 bits. It is read as a float even if it has no point."""
    return type(element) is float and not -(2.0**63) < element < 2.0**64


def encode_data(array: Array, datatype: str, name: str) -> Iterator[bytes]:
    """The flat JSON list, in pieces that each take one or two milliseconds.

    Raises:
        FailedPrecondition: JSON cannot hold the output `name`. The error suggests binary data.
    """
    if datatype in _BINARY_ONLY:
        raise _unspeakable(name, f"is of {datatype}")
    flat = array.reshape(-1)
    before = b"["
    for start in range(0, flat.size, CHUNK):
        chunk: Any = flat[start : start + CHUNK]
        if datatype == BYTES:
            chunk = _texts(chunk, name)
        elif chunk.dtype.kind == "f" and not np.isfinite(chunk).all():
            raise _unspeakable(name, "holds NaN or an infinity")
        else:
            chunk = np.ascontiguousarray(chunk, chunk.dtype.newbyteorder("="))
        yield before + orjson.dumps(chunk, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        before = b","
    yield b"]" if flat.size else b"[]"


def _texts(elements: Array, name: str) -> list[str]:
    try:
        return [element.decode() for element in encode_bytes(elements)]
    except UnicodeDecodeError:
        raise _unspeakable(name, "holds bytes that are not UTF-8") from None


def _unspeakable(name: str, what: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"output {name!r} {what}, which JSON cannot hold; ask for it with the parameter "
        "binary_data: true",
        field=f"outputs[{name!r}]",
    )
