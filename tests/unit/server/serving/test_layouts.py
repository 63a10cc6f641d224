"""Requests that are like earlier ones: read as protobuf reads them, or left to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protobuf.fields import header
from headrace.runtime.execution.job import Sequence
from headrace.server.services.inference import decode, part_spans
from headrace.server.serving.call import InferCall, SharedTensor
from headrace.server.serving.layouts import MAX_IN_REGIONS, MAX_LAYOUTS, MAX_PARTS, CallLayouts
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import CodecError, encode_values
from headrace.wire.message import SMALL_BYTES, parse_infer_request, serialize
from headrace.wire.request import MAX_ID_LENGTH, MAX_PRIORITY, MAX_TIMEOUT_SECONDS


def message(inputs: dict[str, Any], **fields: Any) -> bytes:
    request = pb.InferRequest(**{"network": "net", **fields})
    attachments: list[Any] = []
    encode_values(inputs, request.inputs, attachments, "inputs")
    return serialize(request, attachments)


def parsed(data: bytes) -> InferCall:
    return decode(*parse_infer_request(data))


def learn(layouts: CallLayouts, data: bytes, times: int = 2) -> None:
    for _ in range(times):
        layouts.learn(data, parsed(data))


def assert_same(one: InferCall, other: InferCall) -> None:
    assert replace(one, inputs={}) == replace(other, inputs={})
    assert list(one.inputs) == list(other.inputs)
    for mine, theirs in zip(one.inputs.values(), other.inputs.values(), strict=True):
        assert isinstance(mine, np.ndarray)
        assert isinstance(theirs, np.ndarray)
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert mine.tobytes() == theirs.tobytes()
        assert mine.flags.aligned
        assert not mine.flags.writeable


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
dtypes = st.sampled_from([np.float32, np.int64, np.uint8, np.float16, np.complex128])
tensors = st.dictionaries(st.text(max_size=5), st.tuples(dtypes, shapes), max_size=3)
fields = st.fixed_dictionaries(
    {},
    optional={
        "outputs": st.lists(st.text(max_size=5), max_size=2),
        "priority": st.integers(-10, 10),
        "timeout_seconds": st.floats(0, MAX_TIMEOUT_SECONDS),
        "performance_counts": st.booleans(),
    },
)


@given(tensors, fields, st.randoms(use_true_random=False))
def test_a_request_like_one_that_came_twice_is_read_as_protobuf_reads_it(
    kinds: dict[str, tuple[Any, tuple[int, ...]]], others: dict[str, Any], random: Any
) -> None:
    def some() -> bytes:
        values = {}
        for name, (dtype, shape) in kinds.items():
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            values[name] = np.frombuffer(random.randbytes(size), dtype).reshape(shape)
        return message(values, **others)

    layouts = CallLayouts(part_spans)
    learn(layouts, some())
    data = some()
    found = layouts.read(data)
    if found is not None:
        assert_same(found, parsed(data))
    # A tensor without elements has no data in its message, and nothing that would differ.
    assert (found is not None) == all(np.prod(shape) for _, shape in kinds.values())


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_whatever_byte_differs_it_is_read_as_protobuf_reads_it_or_not_at_all(
    place: int, flip: int
) -> None:
    values = {"a": np.arange(6, dtype=np.int32).reshape(2, 3), "b": np.ones(3, np.float32)}
    data = message(values, priority=3, outputs=["y"])
    layouts = CallLayouts(part_spans)
    learn(layouts, data)
    changed = bytearray(data)
    changed[place % len(data)] ^= flip
    found = layouts.read(bytes(changed))
    if found is not None:
        assert_same(found, parsed(bytes(changed)))


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_whatever_byte_beside_attachments_differs_the_same_holds(place: int, flip: int) -> None:
    data = large(0)
    layouts = CallLayouts(part_spans)
    learn(layouts, data)
    changed = bytearray(data)
    beside = [*range(64), *range(SMALL_BYTES, SMALL_BYTES + 64), *range(len(data) - 64, len(data))]
    changed[beside[place % len(beside)]] ^= flip
    found = layouts.read(bytes(changed))
    if found is not None:
        assert_same(found, parsed(bytes(changed)))


def large(first: int) -> bytes:
    """A request with two attachments, a tensor in the message between them, and an id."""
    values = np.arange(first, first + SMALL_BYTES // 4, dtype=np.int32)
    return message({"a": values, "b": X + first, "c": -values}, id="one")


def test_attachments_are_read_in_place() -> None:
    layouts = CallLayouts(part_spans)
    learn(layouts, large(0))
    data = large(7)
    found = layouts.read(data)
    assert found is not None
    assert_same(found, parsed(data))
    whole = np.frombuffer(data, np.uint8)
    for name in "ac":
        assert np.shares_memory(np.asarray(found.inputs[name]), whole)


def test_an_attachment_that_is_not_aligned_is_copied() -> None:
    def data(first: int) -> bytes:
        plain = message({"a": np.arange(first, first + SMALL_BYTES, dtype=np.float32)})
        return pb.InferRequest(version="1").SerializeToString() + plain  # three bytes more

    layouts = CallLayouts(part_spans)
    learn(layouts, data(0))
    found = layouts.read(data(7))
    assert found is not None
    assert_same(found, parsed(data(7)))


X = np.ones((1, 4), np.float32)


@pytest.mark.parametrize(
    "data",
    [
        message({"x": X}, id="é" * MAX_ID_LENGTH),
        message({"x": X}, session=pb.Session(id="s")),
        message({"x": np.array([True, False])}),
        message({"x": np.array(["a", "b"], object)}),
        message({"x": [X, X]}),
        message({"x": None}),
        message({"x": X, "y": None}),
        message({"x": X}) + header(100, SMALL_BYTES) + bytes(SMALL_BYTES),
    ],
    ids=["long id", "session", "bool", "string", "sequence", "absent", "in part", "much else"],
)
def test_others_are_always_parsed(data: bytes) -> None:
    layouts = CallLayouts(part_spans)
    learn(layouts, data, times=3)
    assert layouts.read(data) is None


def test_a_value_that_is_written_in_two_pieces_is_parsed() -> None:
    value = pb.Value(name="x", tensor=pb.Tensor(dtype=pb.DataType.FLOAT, shape=[4]))
    rest = pb.Value(tensor=pb.Tensor(data=bytes(16))).SerializeToString()
    whole = value.SerializeToString() + rest  # merged by whoever reads it
    data = pb.InferRequest(network="net").SerializeToString()
    data += b"\x1a" + bytes([len(whole)]) + whole
    assert np.shape(parsed(data).inputs["x"]) == (4,)  # type: ignore[arg-type]
    layouts = CallLayouts(part_spans)
    learn(layouts, data)
    assert layouts.read(data) is None


@given(st.text(max_size=MAX_ID_LENGTH), st.text(max_size=MAX_ID_LENGTH))
def test_requests_may_differ_in_their_ids(one: str, other: str) -> None:
    layouts = CallLayouts(part_spans)
    learn(layouts, message({"x": X}, id=one))
    data = message({"x": -X}, id=other)
    found = layouts.read(data)
    assert (found is not None) == (len(one.encode()) == len(other.encode()) <= MAX_ID_LENGTH)
    if found is not None:
        assert_same(found, parsed(data))


def test_an_id_is_found_behind_the_inputs_too() -> None:
    def data(identifier: str) -> bytes:
        return message({"x": X}) + pb.InferRequest(id=identifier).SerializeToString()

    layouts = CallLayouts(part_spans)
    learn(layouts, data("one"))
    found = layouts.read(data("two"))
    assert found is not None
    assert_same(found, parsed(data("two")))


def test_an_id_that_is_not_text_or_given_twice_is_left_to_protobuf() -> None:
    data = message({"x": X}, id="one")
    layouts = CallLayouts(part_spans)
    learn(layouts, data)
    assert layouts.read(data.replace(b"one", b"\xed\xa0\x80")) is None  # a surrogate
    twice = data + pb.InferRequest(id="two").SerializeToString()
    learn(layouts, twice)
    assert layouts.read(twice) is None


def test_one_that_came_once_is_not_known() -> None:
    layouts = CallLayouts(part_spans)
    learn(layouts, message({"x": X}), times=1)
    assert layouts.read(message({"x": X})) is None


@pytest.mark.parametrize(
    "other",
    [
        lambda: message({"x": X}, network="met"),
        lambda: message({"x": X.reshape(4, 1)}),
        lambda: message({"y": X}),
        lambda: message({"x": X.view(np.int32)}),
        lambda: message({"x": X})[:-1],
    ],
    ids=["network", "shape", "name", "type", "cut off"],
)
def test_one_that_differs_elsewhere_is_another(other: Callable[[], bytes]) -> None:
    layouts = CallLayouts(part_spans)
    learn(layouts, message({"x": X}))
    assert layouts.read(message({"x": X})) is not None
    assert layouts.read(other()) is None


def test_one_of_very_many_parts_is_always_parsed() -> None:
    for outputs, known in ((MAX_PARTS - 1, True), (MAX_PARTS, False)):
        data = message({"x": X}, outputs=["y"] * outputs)
        layouts = CallLayouts(part_spans)
        learn(layouts, data)
        assert (layouts.read(data) is not None) is known


def test_only_so_many_are_remembered_the_oldest_go() -> None:
    layouts = CallLayouts(part_spans)
    every = [message({"x": X}, network=f"net{number:03}") for number in range(MAX_LAYOUTS + 1)]
    for data in every:
        learn(layouts, data)
    assert layouts.read(every[0]) is None
    assert layouts.read(every[1]) is not None
    assert layouts.read(every[-1]) is not None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"session": pb.Session(start=True)}, "session.id"),
        ({"session": pb.Session(id="i" * (MAX_ID_LENGTH + 1))}, "session.id"),
        ({"priority": MAX_PRIORITY + 1}, "priority"),
        ({"priority": -MAX_PRIORITY - 1}, "priority"),
        ({"timeout_seconds": -1.0}, "timeout_seconds"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds"),
        ({"timeout_seconds": 2 * MAX_TIMEOUT_SECONDS}, "timeout_seconds"),
    ],
)
def test_a_field_out_of_its_bounds_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(CodecError) as refused:
        parsed(message({"x": X}, **fields))
    assert refused.value.field == field


def test_a_request_says_which_session_it_belongs_to() -> None:
    request = parsed(message({"x": X}, session=pb.Session(id="s" * MAX_ID_LENGTH, end=True)))
    assert request.sequence == Sequence("s" * MAX_ID_LENGTH, start=False, end=True)
    assert parsed(message({"x": X})).sequence is None


def test_fields_at_their_bounds_are_taken() -> None:
    most = {
        "id": "i" * MAX_ID_LENGTH,
        "priority": -MAX_PRIORITY,
        "timeout_seconds": MAX_TIMEOUT_SECONDS,
    }
    request = parsed(message({"x": X}, **most))
    assert {name: getattr(request, name) for name in most} == most


def in_region(identifier: str = "one", offset: int = 0, region: str = "r", **fields: Any) -> bytes:
    request = pb.InferRequest(network="net", id=identifier, **fields)
    tensor = request.inputs.add(name="x").tensor
    tensor.dtype = pb.FLOAT
    tensor.shape.append(4)
    tensor.shared_memory.CopyFrom(pb.SharedMemory(region=region, offset=offset, bytes=16))
    request.output_regions["y"].CopyFrom(pb.SharedMemory(region=region, offset=64, bytes=16))
    data: bytes = request.SerializeToString()
    return data


def test_requests_in_shared_memory_are_known_for_each_segment_and_id() -> None:
    layouts = CallLayouts(part_spans)
    for region in "rs":
        learn(layouts, in_region(region=region))
    for region in "sr":
        data = in_region("two", region=region)
        found, expected = layouts.read(data), parsed(data)
        assert found is not None
        assert (found.id, found.wanted) == ("two", expected.wanted)
        x, wanted = found.inputs["x"], expected.inputs["x"]
        assert isinstance(x, SharedTensor)
        assert isinstance(wanted, SharedTensor)
        assert x[:-1] == wanted[:-1]
        assert np.asarray(x.decode(X.tobytes())).tolist() == [1.0] * 4
        assert np.asarray(x.decode(X.tobytes())).tolist() == [1.0] * 4  # again


@pytest.mark.parametrize(
    "other",
    [
        in_region(offset=1),
        in_region(region="q"),
        in_region(priority=1),
        in_region(session=pb.Session(id="s")),
        message({"x": X}, id="one"),
    ],
    ids=["place", "region", "priority", "session", "in the message"],
)
def test_others_are_parsed(other: bytes) -> None:
    layouts = CallLayouts(part_spans)
    learn(layouts, in_region())
    assert layouts.read(in_region()) is not None
    assert layouts.read(other) is None


def test_a_run_that_replaces_its_inputs_changes_no_later_request() -> None:
    layouts, data = CallLayouts(part_spans), in_region()
    call = parsed(data)
    for _ in range(2):
        layouts.learn(data, call)
    call.inputs["x"] = X
    first = layouts.read(data)
    assert first is not None
    first.inputs["x"] = X
    second = layouts.read(data)
    assert second is not None
    assert isinstance(second.inputs["x"], SharedTensor)


def test_only_so_many_requests_in_shared_memory_are_remembered() -> None:
    layouts = CallLayouts(part_spans)
    every = [in_region(region=f"{number:04}") for number in range(MAX_IN_REGIONS + 1)]
    for data in every:
        learn(layouts, data)
    assert layouts.read(every[0]) is None
    assert layouts.read(every[-1]) is not None


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_whatever_byte_of_one_in_shared_memory_differs_it_is_read_as_it_is_parsed(
    place: int, flip: int
) -> None:
    data = in_region("one", priority=3)
    layouts = CallLayouts(part_spans)
    learn(layouts, data)
    changed = bytearray(data)
    changed[place % len(data)] ^= flip
    found = layouts.read(bytes(changed))
    if found is not None:
        expected = parsed(bytes(changed))
        assert (found.network, found.id, found.wanted, found.priority) == (
            expected.network,
            expected.id,
            expected.wanted,
            expected.priority,
        )
