"""Infer messages and stream messages: in place where large, protobuf's own always."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from google.rpc import status_pb2
from hypothesis import given
from hypothesis import strategies as st

from headrace.protobuf.fields import header
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import codec, framing, message, stream
from headrace.wire.codec import CodecError
from headrace.wire.stream import StreamRequest, StreamResult

LARGE = message.SMALL_BYTES

sizes = st.sampled_from([0, 1, 100, 127, 128, 16_383, LARGE - 40, LARGE, 3 * LARGE])
attachments = st.lists(sizes.map(lambda size: bytes(range(256)) * (size // 256) + b"x"), max_size=4)
requests = st.builds(
    pb.InferRequest,
    network=st.text(max_size=9),
    id=st.text(max_size=9),
    outputs=st.lists(st.text(max_size=9), max_size=3),
    priority=st.integers(-10, 10),
    timeout_seconds=st.floats(allow_nan=False),
    inputs=st.lists(
        st.builds(pb.Value, name=st.text(max_size=9), absent=st.just(pb.Absent())), max_size=2
    ),
)
replies = st.builds(pb.InferReply, id=st.text(max_size=9), generation=st.integers(0, 2**64 - 1))


def complete(head: Any, bulk: Any) -> Any:
    """The message with its attachments inside, for comparison."""
    whole = type(head)()
    whole.CopyFrom(head)
    del whole.attachments[:]
    whole.attachments.extend(bytes(attachment) for attachment in bulk)
    whole.DiscardUnknownFields()
    return whole


def plain(message_type: Any, data: bytes) -> Any:
    parsed = message_type.FromString(data)
    parsed.DiscardUnknownFields()
    return parsed


@pytest.mark.parametrize("kind", [pb.InferRequest, pb.InferReply])
def test_no_field_can_take_the_number_of_the_padding(kind: Any) -> None:
    described = descriptor_pb2.DescriptorProto()
    kind.DESCRIPTOR.CopyToProto(described)
    assert any(each.start <= framing.PADDING < each.end for each in described.reserved_range)


@given(requests, attachments)
def test_protobuf_reads_what_is_written(request: pb.InferRequest, bulk: list[bytes]) -> None:
    data = message.serialize(request, bulk)
    assert plain(pb.InferRequest, data) == complete(request, bulk)


@given(requests, attachments)
def test_what_protobuf_writes_is_read(request: pb.InferRequest, bulk: list[bytes]) -> None:
    whole = complete(request, bulk)
    assert complete(*message.parse_infer_request(whole.SerializeToString())) == whole


@given(replies, attachments)
def test_replies_arrive(reply: pb.InferReply, bulk: list[bytes]) -> None:
    received, views = message.parse_infer_reply(message.serialize(reply, bulk))
    assert complete(received, views) == complete(reply, bulk)


@given(
    st.lists(
        st.one_of(
            requests.map(lambda request: request.SerializeToString()),
            attachments.map(
                lambda bulk: pb.InferRequest(attachments=bulk).SerializeToString(),
            ),
            st.just(b"\xf2\x01\x03abc"),  # an unknown field of many bytes
            st.just(b"\xf8\x01\x96\x01"),  # an unknown number
            st.just(b"\x7d\x01\x02\x03\x04"),  # the attachments' number, but four fixed bytes
            st.just(b"\xf1\x01" + bytes(8)),
            st.just(b"\xf3\x01\xf4\x01"),  # a group
            st.just(b"\xfa\x80\x00\x01z"),  # an attachment, its tag longer than need be
            st.just(b"\x7a\x81\x80\x00z"),  # … and its length
        ),
        max_size=8,
    ),
    st.booleans(),
)
def test_fields_may_come_in_any_order_and_repeat(pieces: list[bytes], large: bool) -> None:
    if large:
        pieces.append(pb.InferRequest(attachments=[bytes(LARGE)]).SerializeToString())
    data = b"".join(pieces)
    received = message.parse_infer_request(data)
    assert complete(*received) == plain(pb.InferRequest, data)


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_judged_as_protobuf_judges_it(garbage: bytes, large: bool) -> None:
    data = message.serialize(pb.InferRequest(), [bytes(LARGE)]) + garbage if large else garbage
    try:
        expected = plain(pb.InferRequest, data)
    except Exception:  # noqa: BLE001 - protobuf's implementations raise different classes
        with pytest.raises(CodecError, match=r"of the type headrace\.v1\.InferRequest"):
            message.parse_infer_request(data)
    else:
        assert complete(*message.parse_infer_request(data)) == expected


@given(st.integers(0, LARGE + 30))
def test_truncated_messages_are_refused_or_shorter(cut: int) -> None:
    data = message.serialize(pb.InferRequest(network="n"), [bytes(LARGE)])[:cut]
    try:
        expected = plain(pb.InferRequest, data)
    except Exception:  # noqa: BLE001 - protobuf's implementations raise different classes
        with pytest.raises(CodecError):
            message.parse_infer_request(data)
    else:
        assert complete(*message.parse_infer_request(data)) == expected


def test_large_attachments_are_views_of_the_message() -> None:
    data = message.serialize(pb.InferRequest(network="n"), [bytes(LARGE)])
    received, (view,) = message.parse_infer_request(data)
    assert isinstance(view, memoryview)
    assert view.obj is data
    assert not received.attachments


@given(requests, attachments)
def test_attachments_of_large_messages_lie_aligned(
    request: pb.InferRequest, bulk: list[bytes]
) -> None:
    data = message.serialize(request, [*bulk, bytes(LARGE)])
    _, views = message.parse_infer_request(data)
    base = np.frombuffer(data, np.uint8).ctypes.data
    offsets = [np.frombuffer(v, np.uint8).ctypes.data - base for v in views if len(v)]
    assert all(offset % framing.ALIGNMENT == 0 for offset in offsets)


def test_a_request_of_very_many_parts_is_refused_before_it_is_built() -> None:
    data = pb.InferRequest(outputs=["a"] * 20_000, attachments=[b"b"] * 20_000).SerializeToString()
    with pytest.raises(CodecError, match="more than 4096 parts"):
        message.parse_infer_request(data)


def test_a_reply_may_have_as_many_parts_as_its_network_has_layers() -> None:
    layers = [pb.LayerProfile(layer=f"layer{number}") for number in range(20_000)]
    received, _ = message.parse_infer_reply(
        pb.InferReply(performance_counts=layers).SerializeToString()
    )
    assert len(received.performance_counts) == 20_000


@given(
    st.lists(st.tuples(requests, attachments), max_size=3),
    st.lists(st.text(max_size=5), max_size=2),
)
def test_stream_requests_are_protobuf_both_ways(
    parts: list[tuple[pb.InferRequest, list[bytes]]], cancel: list[str]
) -> None:
    whole = pb.InferStreamRequest(requests=[complete(*part) for part in parts], cancel=cancel)
    data = stream.serialize_infer_stream_request([StreamRequest(*part) for part in parts], cancel)
    parsed = pb.InferStreamRequest.FromString(data)
    parsed.DiscardUnknownFields()
    assert parsed == whole
    for received, cancelled, _ in (
        stream.parse_infer_stream_request(data),
        stream.parse_infer_stream_request(whole.SerializeToString()),
    ):
        assert [complete(*part) for part in received] == list(whole.requests)
        assert cancelled == cancel


results = st.one_of(
    st.builds(StreamResult, st.text(max_size=5), replies, attachments),
    st.builds(
        StreamResult,
        st.text(max_size=5),
        error=st.builds(status_pb2.Status, code=st.integers(0, 16), message=st.text(max_size=5)),
    ),
)


def as_protobuf(result: StreamResult) -> pb.InferStreamResult:
    if result.reply is None:
        return pb.InferStreamResult(id=result.id, error=result.error)
    return pb.InferStreamResult(id=result.id, reply=complete(result.reply, result.attachments))


@given(st.lists(results, max_size=3))
def test_stream_replies_are_protobuf_both_ways(parts: list[StreamResult]) -> None:
    whole = pb.InferStreamReply(results=[as_protobuf(part) for part in parts])
    data = stream.serialize_infer_stream_reply(parts)
    parsed = pb.InferStreamReply.FromString(data)
    parsed.DiscardUnknownFields()
    assert parsed == whole
    for received in (
        stream.parse_infer_stream_reply(data),
        stream.parse_infer_stream_reply(whole.SerializeToString()),
    ):
        assert [as_protobuf(part) for part in received.results] == list(whole.results)


def test_a_reply_in_pieces_is_merged_as_protobuf_merges_it() -> None:
    first = pb.InferStreamResult(reply=pb.InferReply(id="a", attachments=[bytes(LARGE)]))
    second = pb.InferStreamResult(reply=pb.InferReply(generation=7))
    joined = pb.InferStreamResult.FromString(first.SerializeToString() + second.SerializeToString())
    payload = first.SerializeToString() + second.SerializeToString()
    data = header(1, len(payload)) + payload
    (received,) = stream.parse_infer_stream_reply(data).results
    assert as_protobuf(received) == joined


def test_the_last_of_a_reply_and_an_error_stands() -> None:
    reply = pb.InferStreamResult(reply=pb.InferReply(attachments=[bytes(LARGE)]))
    error = pb.InferStreamResult(error=status_pb2.Status(code=5))
    for payload in (
        reply.SerializeToString() + error.SerializeToString(),
        error.SerializeToString() + reply.SerializeToString(),
    ):
        data = header(1, len(payload)) + payload
        (received,) = stream.parse_infer_stream_reply(data).results
        assert as_protobuf(received) == pb.InferStreamResult.FromString(payload)


def test_a_result_of_neither_reply_nor_error_has_both_none() -> None:
    data = stream.serialize_infer_stream_reply([StreamResult("a")])
    assert stream.parse_infer_stream_reply(data).results == [StreamResult("a")]


@pytest.mark.parametrize(
    "parse", [stream.parse_infer_stream_request, stream.parse_infer_stream_reply]
)
@pytest.mark.parametrize("data", [b"\x0a\xff", bytes(LARGE), b"\x0a\x02\xff\xff"])
def test_garbage_on_a_stream_is_refused(parse: Any, data: bytes) -> None:
    with pytest.raises(CodecError):
        parse(data)


@pytest.mark.parametrize("first", [b"", b"\x5b\x5c"], ids=["plain", "after a group"])
def test_a_message_of_very_many_requests_is_refused(first: bytes) -> None:
    empty = b"\x0a\x00"
    requests, *_ = stream.parse_infer_stream_request(first + empty * framing.MAX_FIELDS)
    assert len(requests) == framing.MAX_FIELDS
    with pytest.raises(CodecError, match="more than 4096 in one message"):
        stream.parse_infer_stream_request(first + empty * (framing.MAX_FIELDS + 1))
    with pytest.raises(CodecError, match="more than 4096 in one message"):
        stream.parse_infer_stream_request(first + empty * LARGE)


def test_ids_to_cancel_count_as_requests_of_their_message() -> None:
    request, identifier = b"\x0a\x00", b"\x12\x01a"
    most = request * 96 + identifier * 4000
    assert len(stream.parse_infer_stream_request(most).cancel) == 4000
    for more in (request, identifier):
        with pytest.raises(CodecError, match="in one message, ids to cancel included"):
            stream.parse_infer_stream_request(most + more)


def test_arrays_survive_the_whole_way() -> None:
    arrays: dict[str, codec.Value] = {
        "small": np.arange(7.0),
        "large": np.random.default_rng(1).random((100, 100)),
        "list": [np.ones((80, 80), np.float32), None],
        "text": np.array(["a", "b"], object),
    }
    request = pb.InferRequest(network="n")
    bulk: list[codec.Buffer] = []
    codec.encode_values(arrays, request.inputs, bulk, "inputs")
    received, views = message.parse_infer_request(message.serialize(request, bulk))
    decoded = codec.decode_values(received.inputs, views)
    assert list(decoded) == list(arrays)
    np.testing.assert_equal(decoded, arrays)
    large = decoded["large"]
    assert isinstance(large, np.ndarray)
    assert large.flags.aligned


def test_protobuf_in_python_refuses_the_same() -> None:
    """Its implementation in Python has an error of its own for text that is not UTF-8."""
    program = (
        "from headrace.v1 import inference_engine_pb2 as pb\n"
        "from headrace.wire import codec, message\n"
        "for kind in (pb.InferRequest, pb.GetNetworkRequest):\n"
        "    try:\n"
        "        message.parse_plain(kind, bytes([10, 2, 0xC3, 0x28]))\n"
        "    except codec.CodecError:\n"
        "        print('refused')\n"
    )
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "refused\nrefused\n"
