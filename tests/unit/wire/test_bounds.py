"""The parts of a message: counted before protobuf builds them, and bounded."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.protobuf.fields import header
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import bounds, message, stream
from headrace.wire.bounds import check_parts
from headrace.wire.codec import CodecError

LARGE = message.SMALL_BYTES

payloads = st.sampled_from([0, 1, 127, 300, 17_000]).map(bytes)
tensors = st.builds(
    pb.Tensor,
    dtype=st.sampled_from([0, 1, 8]),
    shape=st.lists(st.integers(0, 2**63 - 1), max_size=5),
    data=payloads,
    strings=st.lists(payloads),
    attachment=st.integers(0, 300),
)
values = st.recursive(
    st.one_of(
        st.builds(pb.Value, name=st.text(max_size=3), tensor=tensors),
        st.builds(pb.Value, absent=st.just(pb.Absent())),
    ),
    lambda inner: st.builds(
        pb.Value, sequence=st.builds(pb.Sequence, elements=st.lists(inner, max_size=4))
    ),
    max_leaves=8,
)
infer_requests = st.builds(
    pb.InferRequest,
    network=st.text(max_size=3),
    inputs=st.lists(values, max_size=4),
    outputs=st.lists(st.text(max_size=3), max_size=4),
    priority=st.integers(-10, 10),
    timeout_seconds=st.floats(0, 1),
    attachments=st.lists(payloads, max_size=3),
)
names = st.text(max_size=3)
config = st.dictionaries(names, names, max_size=4)
options = st.builds(
    pb.InputOptions, layout=names, mean=st.lists(st.floats(width=32, allow_nan=False), max_size=5)
)
messages = st.one_of(
    infer_requests,
    st.builds(
        pb.InferStreamRequest,
        requests=st.lists(infer_requests, max_size=3),
        cancel=st.lists(names, max_size=4),
    ),
    st.builds(
        pb.LoadNetworkRequest,
        model=st.builds(pb.ModelSource, data=st.binary(max_size=300)),
        config=config,
        inputs=st.dictionaries(names, options, max_size=3),
    ),
    st.builds(pb.ImportNetworkRequest, options=st.builds(pb.ImportOptions, config=config)),
)
small_limits = st.integers(0, 80)


def parts(built: Any) -> int:
    """How many parts a message has, counted from what protobuf makes of it."""
    count = 0
    for field, content in built.ListFields():
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            nested = kind.fields_by_name["value"].message_type is not None
            count += sum(1 + (entry(*item) if nested else 0) for item in content.items())
        elif kind is not None:
            each = content if field.is_repeated else [content]
            count += sum(1 + within(inner.ByteSize(), parts(inner)) for inner in each)
        elif field.is_packed:
            alone = type(built)(**{field.name: content}).ByteSize()
            count += 1 + (alone - 2) // 2
        else:
            count += len(content) if field.is_repeated else 1
    return count


def within(size: int, count: int) -> int:
    """The parts in a message of this size that has so many."""
    return size // 2 if size < 24 else count


def entry(key: str, value: Any) -> int:
    """The parts in an entry of a map of messages."""
    size = len(key.encode()) + value.ByteSize() + 4
    return within(size, 2 + within(value.ByteSize(), parts(value)))


def field(number: int, payload: bytes) -> bytes:
    return header(number, len(payload)) + payload


@given(messages, small_limits)
def test_every_part_counts_at_every_depth(built: Any, limit: int) -> None:
    data = built.SerializeToString()
    if parts(built) > limit:
        with pytest.raises(CodecError, match=f"more than {limit} parts"):
            check_parts(type(built), data, limit)
    else:
        check_parts(type(built), data, limit)


@given(infer_requests, small_limits)
def test_a_request_within_the_limit_is_read_as_protobuf_reads_it(
    request: pb.InferRequest, limit: int
) -> None:
    request.attachments.append(bytes(LARGE))
    data = request.SerializeToString()
    with mock.patch.object(message, "MAX_PARTS", limit):
        if parts(request) > limit:
            with pytest.raises(CodecError, match=f"more than {limit} parts"):
                message.parse_infer_request(data)
        else:
            received, attachments = message.parse_infer_request(data)
            assert list(map(bytes, attachments)) == list(request.attachments)
            for each in (received, request):
                del each.attachments[:]
            assert received == request


PIECES = [
    pb.InferRequest(network="n", outputs=["a", "b"]).SerializeToString(),
    pb.InferRequest(inputs=[pb.Value(tensor=pb.Tensor(strings=[b"a"] * 3))]).SerializeToString(),
    field(3, field(2, b"\x22\x80\x00\x22\x80\x80\x00")),  # strings, lengths longer than need be
    field(3, field(2, b"\xa2\x00\x00\xa2\x80\x80\x80\x00\x01a")),  # … and their tags
    field(3, field(2, b"\x10\x01\x10\x81\x00\x12\x02\x01\x01")),  # a shape in pieces
    field(3, b"\x10\x01\x25\x01\x02\x03\x04\x21" + bytes(8)),  # numbers where messages are due
    b"\x82\x01\x00\x82\x01\x00",  # fields 16, empty
    b"\x82\x01\x82\x01" + bytes(130),  # … and long
    b"\xf8\xff\xff\xff\x0f\x96\x01",  # the last field number there is
]


@given(st.lists(st.sampled_from(PIECES), max_size=5), st.integers(0, 12), st.data())
def test_what_protobuf_takes_is_not_called_malformed(
    pieces: list[bytes], limit: int, data: st.DataObject
) -> None:
    whole = b"".join(pieces)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        check_parts(pb.InferRequest, cut, limit)
    except CodecError as error:
        if "parts" not in error.message:
            with pytest.raises(DecodeError):
                pb.InferRequest.FromString(cut)


@given(st.binary(max_size=300), st.integers(0, 12))
@example(b"\x80" * 20, 0)
@example(b"\x1a\x80" * 5, 0)
@example(b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 0)
def test_garbage_is_no_message_or_has_too_many_parts(garbage: bytes, limit: int) -> None:
    said = ""
    try:
        check_parts(pb.InferRequest, garbage, limit)
    except CodecError as error:
        said = error.message
    assert not said or re.search(
        r"more than \d+ parts|of the type headrace\.v1\.InferRequest", said
    )


def test_what_is_nested_deeper_than_protobuf_reads_is_refused() -> None:
    data = field(14, bytes(1000))  # so that there is something to count to the end
    for depth in range(101):
        data = field(1 if depth % 2 else 3, data)
    with pytest.raises(DecodeError):
        pb.Value.FromString(data)
    with pytest.raises(CodecError, match=r"of the type headrace\.v1\.Value"):
        check_parts(pb.Value, data, 110)


def test_groups_hide_nothing() -> None:
    data = b"\x5b\x5c" + field(3, field(2, field(4, b"") * 50))
    with pytest.raises(CodecError, match=r"of the type headrace\.v1\.InferRequest"):
        check_parts(pb.InferRequest, data, 40)
    many = b"\x5b\x5c" + field(4, b"") * LARGE
    with pytest.raises(CodecError, match="more than 4096 parts"):
        message.parse_infer_request(many)


TOO_MANY = bounds.MAX_CONTROL_PARTS + 1
NESTED = [
    (pb.InferRequest, field(3, field(2, b"\x22\x00" * 41)), "inputs.tensor.strings"),
    (pb.InferRequest, field(3, field(3, b"\x0a\x00" * 41)), "inputs.sequence.elements"),
    (pb.InferRequest, field(3, field(2, field(2, bytes(90)))), "inputs.tensor.shape"),
    (pb.InferRequest, field(3, field(2, b"\x10\x01" * 41)), "inputs.tensor.shape"),
    (pb.InferRequest, field(3, field(2, b"\x08\x01" * 41)), "inputs"),
    (pb.InferRequest, field(3, b"\x12\x00\x1a\x00" * 30), "inputs"),
    (pb.InferRequest, b"\x72\x00" * 41, ""),
    (pb.InferStreamRequest, field(1, field(4, b"") * 41), "requests.outputs"),
    (pb.InferStreamRequest, b"\x12\x00" * 41, "cancel"),
    (pb.LoadNetworkRequest, b"\x3a\x00" * 41, "affinities"),
    (pb.LoadNetworkRequest, field(5, field(2, field(5, bytes(90)))), "inputs.mean"),
    (pb.QueryNetworkRequest, field(3, field(1, b"a")) * 41, "config"),
    (pb.SetConfigRequest, field(2, field(1, b"a") + field(2, b"b")) * 41, "config"),
    (pb.GetMetricRequest, b"\x1a\x00" * 41, "options"),
    (pb.ImportNetworkRequest, field(1, b"\x1a\x00" * 41), "options.config"),
]


@pytest.mark.parametrize(("kind", "data", "path"), NESTED)
def test_the_field_with_the_many_parts_is_named(kind: Any, data: bytes, path: str) -> None:
    with pytest.raises(CodecError, match="more than 40 parts") as caught:
        check_parts(kind, data, 40)
    assert caught.value.field == path


def test_nothing_is_built_of_what_is_refused() -> None:
    kind = SimpleNamespace(DESCRIPTOR=pb.SetConfigRequest.DESCRIPTOR)  # that cannot be built
    with pytest.raises(CodecError, match=f"more than {bounds.MAX_CONTROL_PARTS} parts"):
        message.parse_request(kind, b"\x12\x00" * TOO_MANY)
    with pytest.raises(AttributeError):
        message.parse_request(kind, b"")


def test_the_requests_of_a_message_are_counted_together() -> None:
    """Each is small, and together they are not."""
    strings = field(2, b"\x22\x00" * 10_000)
    many = field(1, field(3, strings)) * (bounds.MAX_PARTS // 10_000 + 1)
    with pytest.raises(CodecError, match=f"more than {bounds.MAX_PARTS} parts") as caught:
        stream.parse_infer_stream_request(many)
    assert caught.value.field == "requests.inputs.tensor.strings"


def test_a_million_strings_may_be_sent() -> None:
    tensor = pb.Tensor(dtype=pb.STRING, shape=[1_000_000], strings=[b"text"] * 1_000_000)
    request = pb.InferRequest(inputs=[pb.Value(name="x", tensor=tensor)])
    received, _ = message.parse_infer_request(request.SerializeToString())
    assert len(received.inputs[0].tensor.strings) == 1_000_000


def test_a_load_may_place_each_layer_of_a_large_network() -> None:
    affinities = {f"layer{number}": "CPU" for number in range(100_000)}
    request = pb.LoadNetworkRequest(affinities=affinities)
    received = message.parse_request(pb.LoadNetworkRequest, request.SerializeToString())
    assert received == request
