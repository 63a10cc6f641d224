"""Tensors on their way to ONNX Runtime and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plugins.cpu.backend.tensors import TensorConversion, aligned, from_ort, to_ort
from headrace.runtime.errors import InvalidArgument, Unimplemented
from headrace.runtime.network.network import Port

PLAIN = [
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT16,
    ir.DataType.INT8,
    ir.DataType.INT64,
    ir.DataType.UINT16,
    ir.DataType.BOOL,
]
OTHERS = [
    ir.DataType.BFLOAT16,
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.FLOAT8E5M2FNUZ,
    ir.DataType.INT4,
    ir.DataType.UINT4,
    ir.DataType.INT2,
    ir.DataType.UINT2,
    ir.DataType.FLOAT4E2M1,
]


def port(dtype: ir.DataType, name: str = "x", **options: Any) -> Port:
    return Port(name, dtype, (None,), **options)


@pytest.mark.parametrize("dtype", PLAIN + OTHERS, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 3), (2, 0, 4)], ids=str)
def test_a_tensor_comes_back_as_it_went(dtype: ir.DataType, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype.numpy())
    back = from_ort(to_ort(array, dtype), dtype)
    assert back.dtype == array.dtype
    assert back.shape == shape
    np.testing.assert_array_equal(back.astype(np.float64), array.astype(np.float64))


@given(st.lists(st.integers(-8, 7), max_size=17))
def test_four_bits_keep_their_sign_and_their_order(values: list[int]) -> None:
    array = np.array(values, np.int8).astype(ml_dtypes.int4)
    assert from_ort(to_ort(array, ir.DataType.INT4), ir.DataType.INT4).astype(int).tolist() == (
        values
    )


def test_what_comes_back_can_be_written_to() -> None:
    array = np.ones(3, ml_dtypes.bfloat16)
    back = from_ort(to_ort(array, ir.DataType.BFLOAT16), ir.DataType.BFLOAT16)
    back[0] = 2


def test_an_aligned_contiguous_array_is_not_copied() -> None:
    array = np.ones((4, 4), np.float32)
    assert aligned(array) is array
    assert aligned(array.T).flags.c_contiguous


def test_elements_that_lie_across_their_alignment_are_copied() -> None:
    array = np.frombuffer(bytes(17), np.uint8)[1:].view(np.float32)
    assert not array.flags.aligned
    assert aligned(array).flags.aligned


def test_arrays_of_numpys_own_types_are_fed_as_they_are() -> None:
    conversion = TensorConversion([port(ir.DataType.FLOAT)], [port(ir.DataType.STRING, "y")])
    assert conversion.plain
    assert not conversion.as_values


def test_an_array_is_handed_over_as_it_is() -> None:
    conversion = TensorConversion([port(ir.DataType.FLOAT)], [port(ir.DataType.FLOAT, "y")])
    array = np.ones(2, np.float32)
    assert conversion.feed({"x": array})["x"] is array


def test_strings_become_text() -> None:
    conversion = TensorConversion([port(ir.DataType.STRING)], [port(ir.DataType.STRING, "y")])
    assert not conversion.plain
    fed = conversion.feed({"x": np.array([["a", "é".encode()]], object)})["x"]
    assert fed.tolist() == [["a", "é"]]


@pytest.mark.parametrize(
    ("element", "match"), [(b"\xff", "UTF-8"), (7, "int, not a string"), (None, "NoneType")]
)
def test_an_element_that_is_no_text_is_refused_by_its_place(element: Any, match: str) -> None:
    conversion = TensorConversion([port(ir.DataType.STRING)], [port(ir.DataType.STRING, "y")])
    with pytest.raises(InvalidArgument, match=match) as caught:
        conversion.feed({"x": np.array(["a", element], object)})
    assert caught.value.field == "inputs['x']"
    assert "element 1" in caught.value.message


def test_sequences_of_strings_are_converted_element_by_element() -> None:
    sequence = port(ir.DataType.STRING, kind="sequence")
    conversion = TensorConversion([sequence], [port(ir.DataType.INT64, "y")])
    fed = conversion.feed({"x": [np.array([b"a"], object)]})["x"]
    assert [each.tolist() for each in fed] == [["a"]]


def test_an_absent_optional_stays_absent() -> None:
    optional = port(ir.DataType.FLOAT, optional=True)
    assert TensorConversion([optional], [port(ir.DataType.FLOAT, "y")]).feed({"x": None}) == {
        "x": None
    }
    as_values = TensorConversion([optional], [port(ir.DataType.BFLOAT16, "y")])
    assert as_values.feed({"x": None}) == {}


def test_a_sequence_beside_a_type_that_numpy_lacks_is_refused_by_name() -> None:
    with pytest.raises(Unimplemented, match="cannot pass the sequence 'x'"):
        TensorConversion(
            [port(ir.DataType.FLOAT, kind="sequence")], [port(ir.DataType.BFLOAT16, "y")]
        )
