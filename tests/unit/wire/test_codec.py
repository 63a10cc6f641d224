"""Values on the wire: tensors, sequences, absent optionals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.extra.numpy as arrays
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import codec, dtypes
from headrace.wire.codec import CodecError

NUMERIC = [number for number in sorted(dtypes.NUMPY_TYPES) if number != dtypes.STRING]

NUMPYS_OWN = [dtypes.numpy_type(n) for n in NUMERIC if dtypes.numpy_type(n).isbuiltin == 1]


def encode(value: codec.Value, attachments: list[codec.Buffer]) -> pb.Value:
    reply = pb.InferReply()
    codec.encode_values({"x": value}, reply.outputs, attachments)
    return reply.outputs[0]


def decode(message: pb.Value, attachments: Sequence[codec.Buffer] = ()) -> codec.Value:
    decoded: codec.Value = codec.decode_values([message], attachments)[message.name]
    return decoded


def through_the_wire(value: codec.Value) -> codec.Value:
    attachments: list[codec.Buffer] = []
    message = encode(value, attachments)
    received = pb.Value.FromString(message.SerializeToString())
    return decode(received, [bytes(attachment) for attachment in attachments])


def tensor(**fields: Any) -> pb.Value:
    return pb.Value(name="x", tensor=pb.Tensor(**fields))


@given(
    st.sampled_from(NUMPYS_OWN).flatmap(
        lambda dtype: arrays.arrays(
            st.sampled_from([dtype, dtype.newbyteorder(">")]),
            arrays.array_shapes(min_dims=0, min_side=0, max_side=5),
        )
    )
)
def test_numeric_types_that_numpy_has_arrive_as_they_were(array: codec.Array) -> None:
    received = through_the_wire(array)
    assert isinstance(received, np.ndarray)
    assert received.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(received, array)


@pytest.mark.parametrize("number", NUMERIC)
def test_every_numeric_type_arrives_bit_by_bit(number: int) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtypes.numpy_type(number))
    received = through_the_wire(array)
    assert isinstance(received, np.ndarray)
    assert received.dtype == array.dtype
    assert received.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "view",
    [lambda a: a.T, lambda a: a[::2, 1:], lambda a: a[::-1], np.asfortranarray],
    ids=["transposed", "strided", "reversed", "fortran"],
)
@pytest.mark.parametrize("side", [4, 400], ids=["inline", "attached"])
def test_any_memory_order_arrives_in_order(view: Callable[[Any], Any], side: int) -> None:
    array = view(np.arange(side * side, dtype=np.float32).reshape(side, side))
    np.testing.assert_array_equal(through_the_wire(array), array)


def test_large_arrays_become_attachments_without_a_copy() -> None:
    array = np.zeros(codec.ATTACHMENT_BYTES + 1, np.uint8)
    attachments: list[codec.Buffer] = []
    message = encode(array, attachments)
    assert message.tensor.attachment == 1
    assert not message.tensor.data
    assert np.shares_memory(np.frombuffer(attachments[0], np.uint8), array)


def test_large_bfloat16_arrays_become_attachments() -> None:
    array = np.linspace(0, 1, 20_000).astype(ml_dtypes.bfloat16)
    received = through_the_wire(array)
    assert isinstance(received, np.ndarray)
    assert received.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(received, array)


def test_decoded_arrays_are_read_only_views_of_the_message() -> None:
    attachment = bytes(40_000)
    array = decode(tensor(dtype=1, shape=[100, 100], attachment=1), [attachment])
    assert isinstance(array, np.ndarray)
    assert np.shares_memory(array, np.frombuffer(attachment, np.uint8))
    assert not array.flags.writeable


def test_a_misaligned_attachment_is_copied_to_an_aligned_place() -> None:
    data = bytes(range(9))
    array = decode(tensor(dtype=1, shape=[2], attachment=1), [memoryview(data)[1:]])
    assert isinstance(array, np.ndarray)
    assert array.flags.aligned
    assert not array.flags.writeable
    assert array.tobytes() == data[1:]


def test_strings_arrive_as_str_and_other_bytes_as_bytes() -> None:
    array = np.array([["a", "ä𝄞"], ["", b"\xff\x00"]], dtype=object)
    received = through_the_wire(array)
    assert isinstance(received, np.ndarray)
    assert received.tolist() == [["a", "ä𝄞"], ["", b"\xff\x00"]]


@pytest.mark.parametrize("dtype", ["U3", "S3"])
def test_numpy_text_arrays_are_strings(dtype: str) -> None:
    received = through_the_wire(np.array(["ab", "c"], dtype=dtype))
    assert isinstance(received, np.ndarray)
    assert received.tolist() == ["ab", "c"]


def test_an_empty_string_tensor_keeps_its_shape() -> None:
    received = through_the_wire(np.empty((0, 3), dtype=object))
    assert isinstance(received, np.ndarray)
    assert received.shape == (0, 3)


def test_sequences_and_absent_optionals_arrive() -> None:
    received = through_the_wire([np.array(1.0), None, [], [np.arange(3)]])
    assert isinstance(received, list)
    assert received[0] == np.array(1.0)
    assert received[1:3] == [None, []]
    np.testing.assert_array_equal(received[3][0], np.arange(3))  # type: ignore[index]


BAD_TENSORS: dict[str, tuple[dict[str, Any], str, str]] = {
    "too few bytes": ({"dtype": 1, "shape": [2, 3], "data": bytes(20)}, ".data", "takes 24"),
    "too many bytes": ({"dtype": 1, "shape": [], "data": bytes(8)}, ".data", "takes 4"),
    "negative size": ({"dtype": 1, "shape": [-1], "data": bytes(4)}, ".shape", "negative"),
    "two negative sizes": ({"dtype": 2, "shape": [-1, -4], "data": bytes(4)}, ".shape", "negative"),
    "overflow": ({"dtype": 1, "shape": [2**32, 2**32]}, ".shape", "overflows"),
    "overflow hidden by a zero": ({"dtype": 1, "shape": [2**62, 2**62, 0]}, ".shape", "overflows"),
    "too many dimensions": (
        {"dtype": 2, "shape": [1] * 65, "data": b"a"},
        ".shape",
        "65 dimensions",
    ),
    "no dtype": ({"shape": [1], "data": bytes(4)}, ".dtype", "0 is not a data type"),
    "unknown dtype": ({"dtype": 77, "shape": [1], "data": bytes(4)}, ".dtype", "77"),
    "attachment out of range": ({"dtype": 1, "shape": [1], "attachment": 4}, ".attachment", "is 4"),
    "attachment and data": (
        {"dtype": 2, "shape": [1], "attachment": 1, "data": b"a"},
        ".data",
        "must be empty",
    ),
    "strings in a float tensor": (
        {"dtype": 2, "shape": [1], "data": b"a", "strings": [b"a"]},
        ".strings",
        "must be empty",
    ),
    "a bool of two": ({"dtype": 9, "shape": [1], "data": b"\x02"}, ".data", "0 or 1"),
    "too few strings": ({"dtype": 8, "shape": [2], "strings": [b"a"]}, ".strings", "takes 2"),
    "data in a string tensor": ({"dtype": 8, "shape": [0], "data": b"a"}, ".data", "fill strings"),
    "negative size of strings": ({"dtype": 8, "shape": [-1]}, ".shape", "negative"),
    "overflow of strings": ({"dtype": 8, "shape": [2**62, 2**62, 0]}, ".shape", "overflows"),
}


@pytest.mark.parametrize(("fields", "field", "message"), BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_a_bad_tensor_is_refused_naming_the_field(
    fields: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(CodecError) as caught:
        codec.decode_values([tensor(**fields)], [b"a"])
    assert caught.value.field == f"inputs['x']{field}"
    assert message in caught.value.message


@pytest.mark.parametrize("data", [b"", b"a"])
def test_a_huge_number_of_dimensions_is_refused_before_they_are_multiplied(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(codec, "math")
    with pytest.raises(CodecError, match="100000 dimensions"):
        codec.decode_values([tensor(dtype=1, shape=[2**62] * 100_000, data=data)])


def test_a_name_that_no_model_may_have_is_refused_without_repeating_it() -> None:
    with pytest.raises(CodecError) as caught:
        codec.decode_values([tensor(dtype=1, data=bytes(4)), pb.Value(name="y" * 4097)])
    assert str(caught.value) == "inputs[1].name: has 4097 characters; at most 4096 are possible"


def test_an_attachment_serves_one_tensor_alone() -> None:
    value = tensor(dtype=2, shape=[1], attachment=1)
    other = pb.Value(name="y", tensor=value.tensor)
    with pytest.raises(CodecError, match=r"inputs\['y'\].attachment: attachment 1 is used twice"):
        codec.decode_values([value, other], [b"a"])


def test_a_name_may_be_given_once() -> None:
    value = tensor(dtype=2, shape=[1], data=b"a")
    with pytest.raises(CodecError, match=r"inputs\['x'\]: is given twice"):
        codec.decode_values([value, value])


def test_a_value_without_a_kind_is_refused() -> None:
    with pytest.raises(CodecError, match=r"inputs\['x'\]: holds neither"):
        codec.decode_values([pb.Value(name="x")])


def test_the_path_of_an_element_leads_through_its_sequences() -> None:
    bad = tensor(dtype=1, shape=[1], data=b"")
    inner = pb.Value(sequence=pb.Sequence(elements=[pb.Value(absent=pb.Absent()), bad]))
    outer = pb.Value(name="s", sequence=pb.Sequence(elements=[inner]))
    with pytest.raises(CodecError) as caught:
        codec.decode_values([outer])
    assert caught.value.field == "inputs['s'][0][1].data"


def test_nesting_is_bounded_both_ways() -> None:
    value: codec.Value = []
    message = pb.Value(name="s", sequence=pb.Sequence())
    for _ in range(codec.MAX_NESTING):
        value = [value]
        message = pb.Value(name="s", sequence=pb.Sequence(elements=[message]))
    with pytest.raises(CodecError, match="nest deeper"):
        encode(value, [])
    with pytest.raises(CodecError, match="nest deeper"):
        decode(message)


def test_elements_of_all_sequences_together_are_bounded() -> None:
    half = pb.Sequence(elements=[pb.Value(absent=pb.Absent())] * (codec.MAX_SEQUENCE_ELEMENTS // 2))
    message = pb.Value(sequence=pb.Sequence(elements=[pb.Value(sequence=half)] * 2))
    with pytest.raises(CodecError, match="more than 65536 elements"):
        decode(message)
    with pytest.raises(CodecError, match="more than 65536 elements"):
        encode([[None] * (codec.MAX_SEQUENCE_ELEMENTS // 2)] * 2, [])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(2, "M8[s]"), r"x'\].dtype: ONNX has no type"),
        (np.array([1, "a"], object), r"x'\].strings: holds a int"),
        (np.array(["\ud800"], object), r"x'\].strings: .* is not Unicode"),
        ({"a": 1}, r"x'\]: a dict is neither"),
        ([np.zeros(1), "text"], r"x'\]\[1\]: a str is neither"),
    ],
)
def test_values_that_onnx_has_no_type_for_are_refused(value: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        codec.encode_values({"x": value}, pb.InferReply().outputs, [])
