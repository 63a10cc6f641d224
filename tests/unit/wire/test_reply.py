"""Small replies: what protobuf would have read out of its own."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import ATTACHMENT_BYTES, encode_values
from headrace.wire.dtypes import NUMPY_TYPES, STRING, number_of
from headrace.wire.reply import MAX_NAME_LENGTH, encode_small_reply

TIMES = (0.5, 0.25, 0.125)


def by_protobuf(
    identifier: str, outputs: Any, times: Any, generation: int, version: str, in_flight: int = 0
) -> pb.InferReply:
    queue, execution, inference = times
    timings = pb.Timings(
        queue_seconds=queue, execution_seconds=execution, inference_seconds=inference
    )
    reply = pb.InferReply(id=identifier, generation=generation, version=version, timings=timings)
    reply.in_flight = in_flight
    encode_values(outputs, reply.outputs, [])
    return reply


seconds = st.floats(0, 1e9)
numbers = [dtype for number, dtype in NUMPY_TYPES.items() if number != STRING]
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
arrays = st.builds(
    lambda dtype, shape: np.arange(np.prod(shape)).astype(np.uint8).astype(dtype).reshape(shape),
    st.sampled_from(numbers),
    shapes,
)


@given(
    st.text(max_size=200),
    st.dictionaries(st.text(max_size=200), arrays, max_size=4),
    st.tuples(seconds, seconds, seconds),
    st.integers(0, 2**63),
    st.sampled_from(["", "1", "9" * 18]),
    st.integers(0, 2**32 - 1),
)
def test_a_reply_says_what_protobufs_own_would(
    identifier: str, outputs: Any, times: Any, generation: int, version: str, in_flight: int
) -> None:
    facts = times, generation, version, in_flight
    data = encode_small_reply(identifier, tuple(outputs), outputs, *facts)
    assert data is not None
    expected = by_protobuf(identifier, outputs, *facts)
    assert pb.InferReply.FromString(data) == expected


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(10, dtype=np.int64)[::2],
        np.array(3.5),
        np.ones((2, 2), ml_dtypes.bfloat16),
    ],
    ids=["transposed", "strided", "scalar", "bfloat16"],
)
def test_elements_go_in_c_order_however_they_lie(array: Any) -> None:
    data = encode_small_reply("r", ("y",), {"y": array}, TIMES, 1, "1")
    assert data is not None
    assert pb.InferReply.FromString(data) == by_protobuf("r", {"y": array}, TIMES, 1, "1")


@pytest.mark.parametrize(
    "value",
    [
        None,
        [np.ones(2)],
        np.array(["a"], object),
        np.ones(ATTACHMENT_BYTES + 1, np.uint8),
        np.ones(2, ">f4"),
        np.ones(2, "datetime64[s]"),
        np.ma.masked_array([1.0]),
    ],
    ids=["absent", "sequence", "string", "large", "big-endian", "no type", "subclass"],
)
def test_anything_else_is_left_to_protobuf(value: Any) -> None:
    assert encode_small_reply("r", ("x", "y"), {"x": np.ones(2), "y": value}, TIMES, 1, "1") is None


def test_long_names_are_left_to_protobuf() -> None:
    outputs: dict[str, Any] = {"y" * (MAX_NAME_LENGTH + 1): np.ones(2)}
    assert encode_small_reply("r", tuple(outputs), outputs, TIMES, 1, "1") is None


def test_an_output_in_shared_memory_has_a_place_and_no_bytes() -> None:
    outputs: dict[str, Any] = {
        "y": np.ones((300, 1024), np.float32),
        "z": np.ones(2, ml_dtypes.bfloat16),
        "small": np.ones(2),
    }
    places = {"y": ("memfd-1", 4096), "z": ("memfd-1", 0)}
    data = encode_small_reply("r", tuple(outputs), outputs, TIMES, 1, "1", 0, places)
    assert data is not None
    expected = by_protobuf("r", {"small": outputs["small"]}, TIMES, 1, "1")
    for name in ("z", "y"):
        value, (region, offset) = outputs[name], places[name]
        tensor = pb.Tensor(shape=value.shape, dtype=number_of(value.dtype))  # type: ignore[arg-type]
        place = pb.SharedMemory(region=region, offset=offset, bytes=value.nbytes)
        tensor.shared_memory.CopyFrom(place)
        expected.outputs.insert(0, pb.Value(name=name, tensor=tensor))
    assert pb.InferReply.FromString(data) == expected


@pytest.mark.parametrize("value", [None, [np.ones(2)], np.array(["a"], object), np.ones(2, ">f4")])
def test_anything_else_with_a_place_is_left_to_protobuf(value: Any) -> None:
    places = {"y": ("memfd-1", 0)}
    assert encode_small_reply("r", ("y",), {"y": value}, TIMES, 1, "1", 0, places) is None
