"""Packed numbers of tensors are read as onnx reads them, and are refused where onnx would fail."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from headrace.protobuf.fields import varint
from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.numbers import count_numbers, decode_integers
from headrace.runtime.intake.read import from_bytes
from headrace.testing.case import parse

SIZE = 6000  # more bytes than a tensor keeps inline, in every field
TYPES = [
    number
    for number in TensorProto.DataType.values()
    if number not in (TensorProto.UNDEFINED, TensorProto.STRING)
    and ir.DataType(number).bitwidth != 6
]


def with_weight(weight: TensorProto) -> onnx.ModelProto:
    model = parse("m (float[1] x) => (float[1] y) { y = Neg(x) }")
    weight.name = "w"
    model.graph.initializer.append(weight)
    return model


def read_weight(weight: TensorProto) -> ir.TensorProtocol:
    model = from_bytes(with_weight(weight).SerializeToString(), Limits())
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    return tensor


def typed(number: int, bits: bytes) -> TensorProto:
    """A tensor of this type whose elements have these bits, in its typed field."""
    dtype = ir.DataType(number)
    size = len(bits) * 8 // dtype.bitwidth
    tensor = TensorProto(data_type=number, dims=[size])
    match dtype:
        case ir.DataType.FLOAT | ir.DataType.COMPLEX64:
            tensor.float_data.extend(np.frombuffer(bits, "<f4"))
        case ir.DataType.DOUBLE | ir.DataType.COMPLEX128:
            tensor.double_data.extend(np.frombuffer(bits, "<f8"))
        case ir.DataType.INT64:
            tensor.int64_data.extend(np.frombuffer(bits, "<i8"))
        case ir.DataType.UINT32 | ir.DataType.UINT64:
            tensor.uint64_data.extend(np.frombuffer(bits, f"<u{dtype.bitwidth // 8}"))
        case ir.DataType.INT8 | ir.DataType.INT16 | ir.DataType.INT32:
            tensor.int32_data.extend(np.frombuffer(bits, f"<i{dtype.bitwidth // 8}"))
        case ir.DataType.BOOL:
            tensor.int32_data.extend(np.frombuffer(bits, np.uint8) & 1)
        case _:
            width = max(1, dtype.bitwidth // 8)
            tensor.int32_data.extend(np.frombuffer(bits, f"<u{width}"))
    return tensor


@pytest.mark.parametrize("number", TYPES, ids=TensorProto.DataType.Name)
def test_packed_numbers_have_the_bits_that_onnx_reads(number: int) -> None:
    bits = np.random.default_rng(number).bytes(8 * SIZE)
    if ir.DataType(number).bitwidth in (32, 64, 128):  # no NaN, whose bits a float may not keep
        bits = np.arange(SIZE, dtype="<f8").tobytes()
    tensor = typed(number, bits)
    found = read_weight(tensor)
    assert found.tobytes() == ir.serde.deserialize_tensor(tensor).tobytes()


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integers_of_any_length_are_decoded(values: list[int]) -> None:
    packed = memoryview(b"".join(varint(value % 2**64) for value in values))
    if values:
        assert count_numbers(packed, "int64_data") == len(values)
    assert np.frombuffer(decode_integers(packed, ir.DataType.INT64), "<i8").tolist() == values


def test_numbers_that_are_split_between_two_steps_stay_whole() -> None:
    values = np.full(100_000, -1, np.int64)  # ten bytes each
    tensor = TensorProto(data_type=TensorProto.INT64, dims=[len(values)], int64_data=values)
    np.testing.assert_array_equal(read_weight(tensor).numpy(), values)


@pytest.mark.parametrize(
    ("field", "tensor", "what"),
    [
        ("int64_data", helper.make_tensor("w", TensorProto.INT64, [SIZE], range(SIZE)), "5999"),
        ("float_data", helper.make_tensor("w", TensorProto.FLOAT, [SIZE], range(SIZE)), "5999"),
    ],
)
def test_a_number_too_few_is_refused(field: str, tensor: TensorProto, what: str) -> None:
    del getattr(tensor, field)[-1]
    with pytest.raises(InvalidModel, match=f"needs 6000 elements of {field}, but has {what}"):
        read_weight(tensor)


def test_numbers_of_another_type_s_field_are_refused() -> None:
    tensor = TensorProto(data_type=TensorProto.INT64, dims=[SIZE], float_data=range(SIZE))
    with pytest.raises(InvalidModel, match="needs 6000 elements of int64_data, but has 0"):
        read_weight(tensor)


def test_data_in_two_fields_are_refused() -> None:
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [SIZE], range(SIZE))
    tensor.raw_data = bytes(4 * SIZE)
    with pytest.raises(InvalidModel, match="in more than one field"):
        read_weight(tensor)


@pytest.mark.parametrize(
    "packed", [b"\xff" * 5000, b"\x01" * 5000 + b"\xff", b"\xff" * 20 + b"\1" * 5000]
)
def test_bytes_that_are_no_numbers_are_refused(packed: bytes) -> None:
    weight = TensorProto(data_type=TensorProto.INT64, dims=[5000]).SerializeToString()
    data = weight + b"\x3a" + varint(len(packed)) + packed
    graph = b"\x2a" + varint(len(data)) + data
    with pytest.raises(InvalidModel):
        from_bytes(b"\x08\x0a\x3a" + varint(len(graph)) + graph, Limits())


def test_a_long_text_is_refused_before_it_is_parsed() -> None:
    model = parse("m (float[1] x) => (float[1] y) { y = Neg(x) }")
    model.doc_string = "x" * 2**20
    from_bytes(model.SerializeToString(), Limits(value_bytes=2**20))
    model.doc_string += "x"
    with pytest.raises(InvalidModel, match="takes 1048577 bytes; at most 1048576"):
        from_bytes(model.SerializeToString(), Limits(value_bytes=2**20))
