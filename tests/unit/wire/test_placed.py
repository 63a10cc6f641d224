"""Requests in shared memory that are like earlier ones: read as protobuf reads them, or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import framing
from headrace.wire.codec import encode_values
from headrace.wire.layouts import MAX_PARTS
from headrace.wire.placed import MAX_BYTES, MAX_REMEMBERED
from headrace.wire.request import InRegion, RequestLayouts


def request(region: str = "r", identifier: str = "one", **fields: Any) -> pb.InferRequest:
    """One with two inputs and an output in a region, and an input in the message."""
    made = pb.InferRequest(network="net", id=identifier, **fields)
    for name, offset in (("x", 0), ("y", 64)):
        place = pb.SharedMemory(region=region, offset=offset, bytes=24)
        tensor = pb.Tensor(dtype=pb.FLOAT, shape=[2, 3], shared_memory=place)
        made.inputs.add(name=name, tensor=tensor)
    encode_values({"scale": np.array([True, False])}, made.inputs, [])
    made.output_regions["out"].CopyFrom(pb.SharedMemory(region=region, offset=128, bytes=256))
    return made


def learnt(*messages: pb.InferRequest) -> RequestLayouts:
    layouts = RequestLayouts()
    for each in messages:
        for _ in range(2):
            layouts.learn_in_region(each.SerializeToString(), each)
    return layouts


def read(layouts: RequestLayouts, data: bytes) -> InRegion | None:
    found = layouts.read(data)
    assert found is None or isinstance(found, InRegion)
    return found


def test_what_it_says_is_found_without_parsing() -> None:
    layouts = learnt(request(priority=3, timeout_seconds=2.5, outputs=["out"]))
    again = request(identifier="zwölf", priority=3, timeout_seconds=2.5, outputs=["out"])
    found = read(layouts, again.SerializeToString())
    assert found is not None
    assert found.request[:6] == ("net", "zwölf", ("out",), 3, False, 2.5)
    placed = found.placed
    assert (placed.region, placed.extent, placed.input_bytes, placed.moved_bytes) == (
        "r",
        384,
        48,
        304,
    )
    assert [(each.name, each.shape, each.start, each.end) for each in placed.inputs] == [
        ("x", (2, 3), 0, 24),
        ("y", (2, 3), 64, 88),
    ]
    np.testing.assert_array_equal(placed.others["scale"], [True, False])
    assert placed.outputs == (("out", 128, 256),)
    assert placed.places == {"out": ("r", 128)}
    assert found.message() == again


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_whatever_byte_differs_it_is_what_protobuf_reads_or_not_read(place: int, flip: int) -> None:
    data = request().SerializeToString()
    layouts = learnt(request())
    changed = bytearray(data)
    changed[place % len(data)] ^= flip
    found = read(layouts, bytes(changed))
    if found is not None:
        assert found.message() == pb.InferRequest.FromString(bytes(changed))


@given(st.text(max_size=140), st.text(max_size=140))
def test_requests_may_differ_in_their_ids(one: str, other: str) -> None:
    found = read(learnt(request(identifier=one)), request(identifier=other).SerializeToString())
    if found is not None:
        assert found.request.id == other
        assert found.message() == request(identifier=other)
    assert (found is not None) == all(len(each.encode()) < 128 for each in (one, other))


def without(change: Callable[[pb.InferRequest], object]) -> pb.InferRequest:
    made = request()
    change(made)
    return made


@pytest.mark.parametrize(
    "other",
    [
        without(lambda made: made.session.CopyFrom(pb.Session(id="s"))),
        without(lambda made: made.attachments.append(b"x")),
        without(lambda made: setattr(made, "traceparent", "00-" + "1" * 32 + "-" + "1" * 16)),
        without(lambda made: setattr(made.inputs[0].tensor, "dtype", pb.BOOL)),
        without(lambda made: setattr(made.inputs[0].tensor, "dtype", pb.STRING)),
        without(lambda made: setattr(made.inputs[0].tensor, "data", bytes(24))),
        without(lambda made: setattr(made.inputs[0].tensor.shared_memory, "region", "other")),
        without(lambda made: setattr(made.inputs[0].tensor.shared_memory, "bytes", 20)),
        without(lambda made: setattr(made.inputs[1], "name", "x")),
        without(lambda made: setattr(made.inputs[2], "name", "x")),
        without(lambda made: setattr(made, "priority", 11)),
        without(lambda made: setattr(made, "tracestate", "x" * MAX_BYTES)),
        without(lambda made: made.inputs[0].tensor.shape.__setitem__(slice(None), [-2, -3])),
        pb.InferRequest(network="net", id="one"),
    ],
    ids=[
        "session",
        "attachment",
        "trace",
        "bool",
        "string",
        "data too",
        "two regions",
        "wrong size",
        "name twice",
        "name in both",
        "bad priority",
        "long",
        "negative shape",
        "no region",
    ],
)
def test_others_are_always_parsed(other: pb.InferRequest) -> None:
    assert read(learnt(other, other), other.SerializeToString()) is None


def test_an_id_given_twice_is_left_to_protobuf() -> None:
    data = request().SerializeToString() + pb.InferRequest(id="two").SerializeToString()
    layouts = RequestLayouts()
    for _ in range(3):
        layouts.learn_in_region(data, pb.InferRequest.FromString(data))
    assert read(layouts, data) is None


def test_an_id_that_is_not_text_is_left_to_protobuf() -> None:
    data = request().SerializeToString()
    layouts = learnt(request())
    assert read(layouts, data) is not None
    assert read(layouts, data.replace(b"one", b"\xed\xa0\x80")) is None


def test_one_that_came_once_is_not_known() -> None:
    layouts = RequestLayouts()
    layouts.learn_in_region(request().SerializeToString(), request())
    assert read(layouts, request().SerializeToString()) is None


def test_the_oldest_is_forgotten() -> None:
    layouts = learnt(request("first"), *(request(f"r{each}") for each in range(MAX_REMEMBERED)))
    assert read(layouts, request("first").SerializeToString()) is None
    assert read(layouts, request("r0").SerializeToString()) is not None
    assert len(layouts._placed) == MAX_REMEMBERED


def test_a_stream_s_message_is_learnt_and_read_request_by_request() -> None:
    layouts = RequestLayouts()

    def message(*each: pb.InferRequest) -> bytes:
        return pb.InferStreamRequest(requests=each).SerializeToString()

    for _ in range(2):
        both = request("a", "1"), request("b", "2")
        layouts.learn_stream(message(*both), both)
    found = layouts.read_stream(message(request("b", "3"), request("a", "4")))
    assert found is not None
    assert [(each.request.id, each.placed.region) for each in found] == [("3", "b"), ("4", "a")]  # type: ignore[union-attr]
    assert layouts.read_stream(message(request("a", "5"), request("c", "6"))) is None
    cut = message(request("a", "7"))
    assert framing.split(cut, 0, len(cut), 1) is not None
    assert layouts.read_stream(cut[:-1]) is None


def of_many(count: int) -> pb.InferRequest:
    made = pb.InferRequest(network="net", id="one")
    for number in range(count):
        place = pb.SharedMemory(region="r", bytes=4)
        made.inputs.add(name=str(number), tensor=pb.Tensor(dtype=pb.FLOAT, shared_memory=place))
    return made


def test_a_request_of_very_many_parts_is_not_remembered_because_they_take_much_memory() -> None:
    most, more = of_many(MAX_PARTS), of_many(MAX_PARTS + 1)
    assert more.ByteSize() <= MAX_BYTES
    assert read(learnt(most), most.SerializeToString()) is not None
    assert read(learnt(more), more.SerializeToString()) is None
    most.outputs.append("")
    assert read(learnt(most), most.SerializeToString()) is None


@pytest.mark.parametrize(
    "value",
    [np.array(["text"], object), [np.zeros(1, np.float32)]],
    ids=["strings", "sequence"],
)
def test_values_that_could_change_or_grow_are_not_shared_by_requests(value: Any) -> None:
    made = request()
    encode_values({"more": value}, made.inputs, [])
    assert read(learnt(made), made.SerializeToString()) is None
