"""A client's end, by the sections of RFC 9113."""

from __future__ import annotations

import struct

import pytest

from headrace.http2.calls import request_block, trailers_block
from headrace.http2.connection import (
    GoneAway,
    MessageReceived,
    MessageRefused,
    Reset,
    ResponseStarted,
    StreamEnded,
)
from headrace.http2.limits import ConnectionLimits
from headrace.http2.streams import Stream
from tests.support.http2_ends import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LAST_HEADERS,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Client,
    End,
    block,
    data,
    frame,
    frames_of,
    message,
    messages,
    number,
    of,
    reset,
    settings,
    window_update,
)

CALL = request_block("/package.Service/Method", "localhost")
HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS = ((b"grpc-status", b"5"), (b"grpc-message", b"no%20model"), (b"x-more", b"y"))
WINDOW, MAX_FRAME = 4, 5


def head(stream: int = 1, *more: tuple[bytes, bytes], flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, block(*HEAD, *more))


def trailers(stream: int = 1) -> bytes:
    return frame(HEADERS, LAST_HEADERS, stream, block(*TRAILERS))


def calling() -> tuple[Client, Stream]:
    """A client that has sent a call on stream 1."""
    client = Client()
    stream = client.wire.open(CALL, 0.0)
    client.wire.send_message(stream, b"question", last=True)
    client.sent()
    return client, stream


def test_a_client_sends_the_preface_and_settings_first() -> None:
    client = End(client=True)
    sent = b"".join(map(bytes, client.wire.take()))
    assert sent.startswith(PREFACE)
    first, second = frames_of(sent)
    assert (first.kind, first.stream) == (SETTINGS, 0)
    values = dict(struct.iter_unpack(">HI", first.payload))
    assert values[2] == 0  # nothing is to be pushed
    assert 3 not in values
    assert second.kind == WINDOW_UPDATE


@pytest.mark.parametrize("size", [0, 8, 20_000, 70_000])
@pytest.mark.parametrize("paused", [False, True])
def test_a_call_in_one_piece_is_the_same_bytes_as_a_stream_and_its_message(
    size: int, paused: bool
) -> None:
    apart, whole = Client(), Client()
    for each in (apart, whole):
        each.sent()
        each.wire.paused = paused
    stream = apart.wire.open(CALL, 0.0)
    apart.wire.send_message(stream, b"x" * size, last=True)
    other = whole.wire.call(CALL, b"x" * size, 0.0)
    for one in (apart, whole):
        one.wire.paused = False
        one.wire.flush([])
    sent = [b"".join(map(bytes, each.wire.take())) for each in (apart, whole)]
    assert sent[0] == sent[1]
    for name in ("send_window", "local_ended", "pending_bytes"):
        assert getattr(stream, name) == getattr(other, name)


def test_a_call_is_sent_and_its_reply_read() -> None:
    client, stream = calling()
    events = client.read(head(), data(1, message(b"answer")), trailers())
    responded, received, ended = events
    assert isinstance(responded, ResponseStarted)
    assert (responded.head.status, responded.head.is_grpc) == (200, True)
    assert messages([received]) == [b"answer"]
    assert isinstance(ended, StreamEnded)
    assert ended.trailers is not None
    assert (ended.trailers.code, ended.trailers.message) == (5, "no model")
    assert ended.trailers.metadata == (("x-more", "y"),)
    assert not stream.is_open
    assert client.wire.streams == {}


def test_a_call_is_one_frame_of_headers_and_one_of_data() -> None:
    client = Client()
    stream = client.wire.open(CALL, 0.0)
    client.wire.send_message(stream, b"question", last=True)
    first, second = client.sent()
    assert (first.kind, first.flags, first.stream) == (HEADERS, END_HEADERS, 1)
    assert (second.kind, second.flags, second.stream) == (DATA, END_STREAM, 1)
    assert second.payload == message(b"question")


def test_a_response_may_be_trailers_alone() -> None:
    client, _ = calling()
    responded, ended = client.read(
        frame(HEADERS, LAST_HEADERS, 1, block(*HEAD) + trailers_block(14, "draining"))
    )
    assert isinstance(responded, ResponseStarted)
    assert isinstance(ended, StreamEnded)
    assert ended.trailers is not None
    assert (ended.trailers.code, ended.trailers.message) == (14, "draining")


def test_streams_have_odd_numbers_that_grow() -> None:
    """5.1.1."""
    client = Client()
    assert [client.wire.open(CALL, 0.0).id for _ in range(3)] == [1, 3, 5]


def test_a_connection_whose_numbers_are_used_up_opens_no_stream() -> None:
    client = Client()
    client.wire._next = 2**31 - 1
    assert client.wire.open(CALL, 0.0).id == 2**31 - 1
    with pytest.raises(OverflowError, match="open another"):
        client.wire.open(CALL, 0.0)


def test_a_large_header_block_continues() -> None:
    """6.10."""
    client = Client()
    client.wire.open(request_block("/a.B/C", "localhost", metadata=[("x", "y" * 40_000)]), 0.0)
    sent = client.sent()
    assert [each.kind for each in sent] == [HEADERS, CONTINUATION, CONTINUATION]
    assert [each.flags for each in sent] == [0, 0, END_HEADERS]
    assert max(len(each.payload) for each in sent) == 16_384


def test_an_interim_response_is_passed_over() -> None:
    client, _ = calling()
    interim = frame(HEADERS, END_HEADERS, 1, block((b":status", b"103"), (b"link", b"a")))
    events = client.read(interim, interim, head(), trailers())
    assert [type(each) for each in events] == [ResponseStarted, StreamEnded]


def test_a_response_that_is_not_grpcs_is_told_and_its_text_not_read() -> None:
    client, _ = calling()
    html = ((b":status", b"502"), (b"content-type", b"text/html"))
    responded, ended = client.read(
        frame(HEADERS, END_HEADERS, 1, block(*html)), data(1, b"<html>", END_STREAM)
    )
    assert isinstance(responded, ResponseStarted)
    assert (responded.head.status, responded.head.is_grpc) == (502, False)
    assert isinstance(ended, StreamEnded)
    assert ended.trailers is None


def test_a_refused_stream_is_told_as_such() -> None:
    client, stream = calling()
    assert client.read(reset(1, "REFUSED_STREAM")) == [
        Reset(stream, 7, "the peer reset the stream")
    ]


def test_a_goaway_names_the_last_stream() -> None:
    client, _ = calling()
    assert client.read(frame(GOAWAY, 0, 0, number(1) + number(0))) == [GoneAway(1, 0, "")]
    assert of(StreamEnded, client.read(head(), trailers()))


def test_what_comes_on_a_stream_that_was_reset_is_ignored() -> None:
    client, stream = calling()
    client.wire.reset(stream)
    assert [each.kind for each in client.sent()] == [RST_STREAM]
    assert client.read(head(), data(1, message(b"late")), trailers(), reset(1)) == []
    assert client.sent() == []


def test_a_half_sent_call_ends_when_its_response_has() -> None:
    client = Client()
    stream = client.wire.open(CALL, 0.0)
    client.read(head(), trailers())
    assert stream.is_open
    client.wire.end(stream)
    assert not stream.is_open


def test_a_long_message_goes_as_the_server_widens_its_windows() -> None:
    client = Client()
    client.read(settings((WINDOW, 10), (MAX_FRAME, 16_384)))
    client.sent()
    stream = client.wire.open(CALL, 0.0)
    assert not client.wire.send_message(stream, b"x" * 20)
    client.wire.end(stream)
    assert [len(each.payload) for each in client.sent_of(DATA)] == [10]
    (sent,) = client.read(window_update(1, 15))
    assert sent.stream is stream  # type: ignore[union-attr]
    (last,) = client.sent()
    assert (len(last.payload), last.flags) == (15, END_STREAM)
    assert stream.local_ended


def test_pings_and_settings_are_answered() -> None:
    client = Client()
    client.read(frame(PING, payload=b"12345678"), settings((WINDOW, 1)))
    assert [(each.kind, each.flags) for each in client.sent()] == [(PING, ACK), (SETTINGS, ACK)]


CONNECTION_ERRORS = [
    ("a first frame that is not SETTINGS", "PROTOCOL_ERROR", frame(PING, payload=b"12345678")),
    ("PUSH_PROMISE", "PROTOCOL_ERROR",
     settings() + frame(PUSH_PROMISE, END_HEADERS, 1, number(2) + CALL)),
    ("ENABLE_PUSH of a server", "PROTOCOL_ERROR", settings((2, 1))),
    ("HEADERS on an idle stream", "PROTOCOL_ERROR", settings() + head(5)),
    ("HEADERS on an even stream", "PROTOCOL_ERROR", settings() + head(2)),
    ("HEADERS without a stream", "PROTOCOL_ERROR", settings() + head(0)),
    ("DATA on an idle stream", "PROTOCOL_ERROR", settings() + data(5, b"x")),
    ("DATA on an even stream", "PROTOCOL_ERROR", settings() + data(2, b"x")),
    ("RST_STREAM on an idle stream", "PROTOCOL_ERROR", settings() + reset(5)),
    ("RST_STREAM without a stream", "PROTOCOL_ERROR", settings() + reset(0)),
    ("WINDOW_UPDATE on an idle stream", "PROTOCOL_ERROR", settings() + window_update(5, 1)),
    ("a frame that is too large", "FRAME_SIZE_ERROR",
     settings() + frame(99, payload=b"x" * 16_385)),
    ("a header block that cannot be decoded", "COMPRESSION_ERROR",
     settings() + frame(HEADERS, END_HEADERS, 1, b"\x80")),
]  # fmt: skip
STREAM_ERRORS = [
    ("data before the response", "PROTOCOL_ERROR", data(1, message(b"x"))),
    ("a response without a status", "PROTOCOL_ERROR",
     frame(HEADERS, END_HEADERS, 1, block(HEAD[1]))),
    ("a status of two digits", "PROTOCOL_ERROR",
     frame(HEADERS, END_HEADERS, 1, block((b":status", b"20"), HEAD[1]))),
    ("a status and a path", "PROTOCOL_ERROR",
     frame(HEADERS, END_HEADERS, 1, block((b":path", b"/"), *HEAD))),
    ("a switch of protocols", "PROTOCOL_ERROR",
     frame(HEADERS, END_HEADERS, 1, block((b":status", b"101")))),
    ("an interim response that ends", "PROTOCOL_ERROR",
     frame(HEADERS, LAST_HEADERS, 1, block((b":status", b"103")))),
    ("a name in capitals", "PROTOCOL_ERROR", head(1, (b"X-More", b"y"))),
    ("a second response", "PROTOCOL_ERROR", head() + head()),
    ("trailers that do not end the stream", "PROTOCOL_ERROR",
     head() + frame(HEADERS, END_HEADERS, 1, block(*TRAILERS))),
    ("a pseudo-header field in trailers", "PROTOCOL_ERROR",
     head() + frame(HEADERS, LAST_HEADERS, 1, block((b":status", b"200"), *TRAILERS))),
    ("more data than content-length says", "PROTOCOL_ERROR",
     head(1, (b"content-length", b"4")) + data(1, b"12345")),
    ("less data than content-length says", "PROTOCOL_ERROR",
     head(1, (b"content-length", b"4")) + data(1, b"123", END_STREAM)),
    ("a window above the largest", "FLOW_CONTROL_ERROR", window_update(1, 2**31 - 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("_", "code", "sent"), CONNECTION_ERRORS, ids=[row[0] for row in CONNECTION_ERRORS]
)
def test_a_connection_ends_with_the_reason(_: str, code: str, sent: bytes) -> None:
    client = End(ConnectionLimits(frame_bytes=16_384), client=True)
    stream = client.wire.open(CALL, 0.0)
    events = client.read(sent)
    assert client.fault == code
    assert client.sent()[-1].code == code
    assert [each.stream for each in of(Reset, events)] == [stream]


@pytest.mark.parametrize(
    ("_", "code", "sent"), STREAM_ERRORS, ids=[row[0] for row in STREAM_ERRORS]
)
def test_a_stream_ends_with_the_reason(_: str, code: str, sent: bytes) -> None:
    client, stream = calling()
    stream.local_ended = False
    events = client.read(sent)
    assert [(each.stream, each.code) for each in client.sent_of(RST_STREAM)] == [(1, code)]
    assert events[-1][0] is stream
    assert isinstance(events[-1], Reset)
    assert client.fault is None


def test_a_message_beyond_the_limit_is_refused_at_its_prefix() -> None:
    client = Client(ConnectionLimits(message_bytes=100))
    stream = client.wire.open(CALL, 0.0)
    (_, refused) = client.read(head(), data(1, b"\0\0\0\0\x65"))
    assert refused == MessageRefused(stream, 8, "a message of 101 bytes is larger than 100 bytes")
    assert not of(MessageReceived, client.read(data(1, b"x" * 101)))
