"""Values go to a worker and back as they are, small ones in the message, large ones beside it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headrace.ipc.link import Disconnected
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.isolation.wire.values import INLINE_BYTES, decode, encode

_TYPES = [
    dtype.numpy()
    for dtype in ir.DataType
    if dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
]


def through(values: dict[str, Any]) -> dict[str, Any]:
    """The values after a journey."""
    encoded = encode(values)
    segment = np.zeros(encoded.segment_bytes, np.uint8) if encoded.segment_bytes else None
    if segment is not None:
        encoded.place(segment)
    body = memoryview(bytearray(b"".join(encoded.body)))
    return decode(encoded.description, body, segment)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, list):
        assert isinstance(other, list)
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif one is None:
        assert other is None
    elif one.dtype == object:
        assert one.tolist() == other.tolist()
    else:
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", _TYPES, ids=str)
@pytest.mark.parametrize("size", [0, 3, 2 * INLINE_BYTES], ids=["empty", "small", "large"])
def test_every_type_goes_through(dtype: np.dtype[Any], size: int) -> None:
    array = np.arange(size).astype(np.int8).astype(dtype)
    assert_same(array, through({"x": array})["x"])


_numbers = arrays.arrays(
    st.sampled_from([np.float32, np.int64, np.bool_, np.float16]), arrays.array_shapes(min_side=0)
)
_strings = st.lists(st.text() | st.binary(), max_size=5).map(lambda each: np.array(each, object))
_values = st.recursive(
    st.none() | _numbers | _strings, lambda inner: st.lists(inner, max_size=4), max_leaves=8
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.text(max_size=5), _values, max_size=4))
def test_values_go_through_as_they_are(values: dict[str, Any]) -> None:
    received = through(values)
    assert list(received) == list(values)
    for name, value in values.items():
        assert_same(value, received[name])


def test_an_array_may_have_any_strides() -> None:
    small = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)[::-1]
    large = np.arange(90_000, dtype=np.float32).reshape(300, 300).T
    received = through({"small": small, "large": large, "scalar": np.float32(2.5)})
    assert np.array_equal(received["small"], small)
    assert np.array_equal(received["large"], large)
    assert received["scalar"].shape == ()


def test_what_is_small_costs_no_shared_memory_and_what_is_large_no_message() -> None:
    assert encode({"x": np.zeros(INLINE_BYTES, np.uint8)}).segment_bytes == 0
    encoded = encode({"x": np.zeros(INLINE_BYTES + 1, np.uint8)})
    assert encoded.segment_bytes > INLINE_BYTES
    assert not encoded.body


@pytest.mark.parametrize("size", [8, INLINE_BYTES + 8])
def test_what_was_sent_does_not_change_any_more(size: int) -> None:
    """The worker checks values, which may come from memory that a client writes to."""
    array = np.zeros(size, np.uint8)
    encoded = encode({"x": array})
    segment = np.zeros(encoded.segment_bytes, np.uint8)
    encoded.place(segment)
    array[:] = 1
    body = memoryview(b"".join(encoded.body))
    received = decode(encoded.description, body, segment)["x"]
    np.testing.assert_array_equal(received, np.zeros(size, np.uint8))


def test_many_small_arrays_make_no_long_message() -> None:
    values = {str(at): np.full(INLINE_BYTES, at, np.uint8) for at in range(20)}
    encoded = encode(values)
    assert sum(map(len, encoded.body)) <= 65_536
    for name, value in through(values).items():
        assert np.array_equal(value, values[name])


def test_arrays_are_aligned_whatever_lies_before_them() -> None:
    values: dict[str, Any] = {
        str(at): np.ones(size, dtype)
        for at, (size, dtype) in enumerate([(3, np.int8), (5, np.complex128), (1, np.bool_)] * 3)
    }
    values["large"] = np.ones(INLINE_BYTES + 1, np.int8)
    values["larger"] = np.ones(INLINE_BYTES, np.float64)
    assert all(array.flags.aligned for array in through(values).values())


def test_the_receiver_may_write_to_the_arrays() -> None:
    received = through({"x": np.ones(2), "y": np.ones(INLINE_BYTES), "z": [np.ones(2)]})
    assert all(array.flags.writeable for array in (received["x"], received["y"], *received["z"]))


def test_elements_of_all_sequences_together_are_bounded() -> None:
    many: Any = [None] * 2**15
    assert through({"x": many, "y": [many[1:]]})["y"] == [many[1:]]
    with pytest.raises(InvalidArgument, match="'y': sequences hold more than 65536 elements"):
        encode({"x": many, "y": [many]})


def test_what_is_no_value_is_refused_with_its_name() -> None:
    with pytest.raises(InvalidArgument, match=r"'x'.*element 1 is a int") as caught:
        encode({"x": np.array(["a", 1], object)})
    assert caught.value.field == "inputs['x']"
    with pytest.raises(InvalidArgument, match="not a type of ONNX"):
        encode({"x": np.array(["2020-01-01"], "datetime64[D]")})


@pytest.mark.parametrize(
    "description",
    [
        [1, [4], 0, 0, 16],  # beyond the body
        [1, [1], 0, -4, 4],
        [1, [-1], 0, 0, 4],
        [1, [1], 1, 0, 4],  # in a segment that is not there
        [999, [1], 0, 0, 4],
        [8, [1], 0, 0, 400],
        [8, [2**40], 0, 0, 8],
        [8, [1], 0, 4, 4],
        [1, "abc", 0, 0, 4],
        "text",
        {"t": []},
        [1],
    ],
    ids=str,
)
def test_a_description_that_leads_astray_is_refused(description: Any) -> None:
    body = memoryview(bytearray(b"\xff\x00\x00\x00\xff\x00\x00\x00"))
    with pytest.raises(Disconnected):
        decode({"x": description}, body, None)


def test_floats_of_few_bits_keep_their_type() -> None:
    array = np.array([0.5, 1.5], ml_dtypes.bfloat16)
    assert through({"x": array})["x"].dtype == ml_dtypes.bfloat16
