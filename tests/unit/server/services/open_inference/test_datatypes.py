"""The protocol's datatypes and NumPy's."""

from __future__ import annotations

import struct
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import Unimplemented
from headrace.server.services.open_inference.datatypes import (
    CHUNK,
    MAX_ELEMENTS,
    NUMPY_TYPES,
    datatype_of,
    decode_bytes,
    decode_numbers,
    decode_raw,
    encode_bytes,
    encode_raw,
)
from headrace.wire.codec import CodecError

NUMBERS = [name for name in NUMPY_TYPES if name != "BYTES"]
LACKING = [
    each
    for each in ir.DataType
    if each not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
    and each.numpy() not in NUMPY_TYPES.values()
]


def refused(call: Any, *arguments: Any) -> CodecError:
    with pytest.raises(CodecError) as caught:
        call(*arguments)
    return caught.value


def test_the_datatypes_are_those_of_a_model_configuration() -> None:
    described = {name.removeprefix("TYPE_") for name, _ in oip.DataType.items()}
    assert described - {"INVALID", "STRING"} == set(NUMPY_TYPES) - {"BYTES"}


@pytest.mark.parametrize("datatype", NUMPY_TYPES)
def test_a_datatype_is_found_by_its_numpy_type(datatype: str) -> None:
    assert datatype_of(NUMPY_TYPES[datatype], "it") == datatype


@pytest.mark.parametrize("dtype", LACKING, ids=str)
def test_a_type_that_the_protocol_lacks_is_refused_by_name(dtype: ir.DataType) -> None:
    with pytest.raises(Unimplemented, match=f"output 'y' has type {dtype.numpy().name}, which"):
        datatype_of(dtype, "output 'y'")


@pytest.mark.parametrize("datatype", NUMBERS)
def test_raw_bytes_and_an_array_are_the_same_thing(datatype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(NUMPY_TYPES[datatype])
    decoded = decode_raw(datatype, (2, 3), bytes(encode_raw(array, datatype)))
    assert decoded.dtype == array.dtype
    np.testing.assert_array_equal(decoded, array)


def test_raw_bytes_are_viewed_and_not_copied() -> None:
    data = np.arange(4, dtype="<f4").tobytes()
    decoded = decode_raw("FP32", (4,), data)
    assert np.shares_memory(decoded, np.frombuffer(data, np.uint8))
    assert not decoded.flags.writeable


def test_raw_bytes_at_an_odd_place_become_an_aligned_array() -> None:
    data = memoryview(b"_" + np.arange(4, dtype="<f8").tobytes())[1:]
    decoded = decode_raw("FP64", (4,), data)
    assert decoded.flags.aligned
    assert decoded.tolist() == [0, 1, 2, 3]


def test_an_array_in_another_order_is_sent_row_major_and_little_endian() -> None:
    array = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    assert bytes(encode_raw(array, "INT32")) == np.arange(6, dtype="<i4").tobytes()


@given(elements=st.lists(st.one_of(st.text(), st.binary())))
@settings(max_examples=50)
def test_bytes_survive_the_way_there_and_back(elements: list[str | bytes]) -> None:
    array = np.empty(len(elements), object)
    array[:] = elements
    expected = [each.encode() if isinstance(each, str) else each for each in elements]
    raw = decode_raw("BYTES", (len(elements),), bytes(encode_raw(array, "BYTES")))
    typed = decode_bytes((len(elements),), list(encode_bytes(array)))
    for decoded in (raw, typed):
        assert list(encode_bytes(decoded)) == expected


def test_text_is_str_and_other_bytes_stay_bytes() -> None:
    assert decode_bytes((2,), ["grün".encode(), b"\xff"]).tolist() == ["grün", b"\xff"]


def test_an_element_that_is_no_text_is_refused() -> None:
    assert "int" in refused(encode_raw, np.array([1], object), "BYTES").message


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x01", "ends before element 0"),
        (struct.pack("<I", 5) + b"abc", "says that it has 5 bytes; 3 are left"),
        (struct.pack("<I", 2**32 - 1), "are left"),
        (struct.pack("<I", 1) + b"abc", "has 2 bytes after its last element"),
    ],
)
def test_broken_bytes_are_refused(data: bytes, why: str) -> None:
    assert why in refused(decode_raw, "BYTES", (1,), data).message


def test_more_elements_than_a_request_holds_are_refused_before_they_are_read() -> None:
    error = refused(decode_raw, "BYTES", (MAX_ELEMENTS + 1,), b"")
    assert error.field == ".shape"


@pytest.mark.parametrize("shape", [(3,), (2, 2), (), (0,)])
def test_raw_bytes_of_another_length_are_refused(shape: tuple[int, ...]) -> None:
    error = refused(decode_raw, "FP32", shape, b"\0" * 8)
    assert f"has 8 bytes, but shape {list(shape)} of FP32 takes" in error.message


@pytest.mark.parametrize("shape", [(-1,), (1,) * 65, (2**62, 2), (-1, -4)])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_a_shape_that_cannot_be_is_refused(shape: tuple[int, ...], datatype: str) -> None:
    assert refused(decode_raw, datatype, shape, b"").field == ".shape"
    elements = refused(decode_bytes, shape, []) if datatype == "BYTES" else None
    assert (elements or refused(decode_numbers, "FP32", shape, [])).field == ".shape"


def test_an_unknown_datatype_is_refused_with_those_that_there_are() -> None:
    error = refused(decode_raw, "FLOAT", (1,), b"")
    assert error.field == ".datatype"
    assert "FP32" in error.message


def test_a_bool_is_zero_or_one() -> None:
    assert decode_raw("BOOL", (2,), b"\x00\x01").tolist() == [False, True]
    assert "0 or 1" in refused(decode_raw, "BOOL", (2,), b"\x00\x02").message


@pytest.mark.parametrize("datatype", [each for each in NUMBERS if each not in ("FP16", "BF16")])
@given(data=st.data())
@settings(max_examples=20)
def test_numbers_of_a_datatype_become_its_array(datatype: str, data: Any) -> None:
    dtype = NUMPY_TYPES[datatype]
    expected = data.draw(hnp.arrays(dtype, 3))
    decoded = decode_numbers(datatype, (3,), expected.tolist())
    assert decoded.dtype == dtype
    np.testing.assert_array_equal(decoded, expected)


def test_many_numbers_are_converted_in_chunks() -> None:
    numbers = list(range(CHUNK + 1))
    assert decode_numbers("INT32", (CHUNK + 1,), numbers).tolist() == numbers


@pytest.mark.parametrize(
    ("datatype", "number"),
    [("INT8", 128), ("INT8", -129), ("UINT8", -1), ("UINT8", 256), ("INT32", 2**31)],
)
def test_a_number_outside_its_datatype_is_refused(datatype: str, number: int) -> None:
    assert datatype in refused(decode_numbers, datatype, (1,), [number]).message


def test_too_few_numbers_are_refused() -> None:
    error = refused(decode_numbers, "FP32", (2, 2), [1.0])
    assert error.message == "has 1 elements, but shape [2, 2] of FP32 takes 4"


def test_half_precision_keeps_its_numbers() -> None:
    for name, dtype in (("FP16", np.float16), ("BF16", ml_dtypes.bfloat16)):
        array = np.array([1.5, -2.25, 65504], dtype)
        np.testing.assert_array_equal(decode_raw(name, (3,), encode_raw(array, name)), array)
