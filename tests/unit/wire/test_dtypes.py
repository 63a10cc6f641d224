"""The table of data types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import dtypes


def test_every_data_type_of_the_protocol_has_a_numpy_type() -> None:
    numbers = set(pb.DataType.values()) - {pb.DataType.DATA_TYPE_UNSPECIFIED}
    assert set(dtypes.NUMPY_TYPES) == numbers


def test_the_numbers_are_those_of_onnx() -> None:
    onnx = pytest.importorskip("onnx")
    ours = {name: number for name, number in pb.DataType.items() if number}
    theirs = {name: number for name, number in onnx.TensorProto.DataType.items() if number}
    assert ours == {name: theirs[name] for name in ours}


@pytest.mark.parametrize("number", sorted(dtypes.NUMPY_TYPES))
def test_names_and_numpy_types_lead_back_to_the_number(number: int) -> None:
    assert dtypes.parse_name(dtypes.name_of(number)) == number
    assert dtypes.parse_name(pb.DataType.Name(number)) == number
    assert dtypes.number_of(dtypes.numpy_type(number)) == number


def test_float_is_the_name_onnx_gives_to_32_bits() -> None:
    assert dtypes.parse_name("float") == pb.DataType.FLOAT


def test_byte_order_does_not_matter() -> None:
    assert dtypes.number_of(np.dtype(">f4")) == pb.DataType.FLOAT
    assert dtypes.number_of("<i8") == pb.DataType.INT64
    assert dtypes.number_of(ml_dtypes.bfloat16) == pb.DataType.BFLOAT16


@pytest.mark.parametrize("text", ["U5", "S3", "O"])
def test_text_of_any_kind_is_strings(text: str) -> None:
    assert dtypes.number_of(np.dtype(text)) == dtypes.STRING


@pytest.mark.parametrize("other", ["M8[s]", "m8[s]", "V7", [("a", "f4")]])
def test_types_that_onnx_lacks_are_refused(other: object) -> None:
    with pytest.raises(ValueError, match="ONNX has no type"):
        dtypes.number_of(np.dtype(other))  # type: ignore[call-overload]


def test_unknown_names_and_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown data type 'float33'; known: float32, uint8"):
        dtypes.parse_name("float33")
    with pytest.raises(ValueError, match="99 is not a data type"):
        dtypes.numpy_type(99)
