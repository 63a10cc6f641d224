"""gRPC's messages in a stream of data."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.http2.connection import DataSent, Event, MessageReceived, MessageRefused, StreamEnded
from headrace.http2.limits import ConnectionLimits
from headrace.http2.messages import BadMessage, CompressedMessage, Message, MessageReader, TooLarge
from tests.support.http2_ends import (
    CALL,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LAST_HEADERS,
    WINDOW_UPDATE,
    Memory,
    Server,
    block,
    data,
    frame,
    message,
    messages,
    number,
    of,
    settings,
    window_update,
)

WINDOW = 4


@given(
    sent=st.lists(st.binary(max_size=30), max_size=6),
    cuts=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    large=st.sampled_from([0, 0, 40_000]),
)
def test_messages_come_as_they_were_sent_however_they_are_cut(
    sent: list[bytes], cuts: list[int], large: int
) -> None:
    sent = [*sent, b"z" * large] if large else sent
    stream = b"".join(map(message, sent))
    reader = MessageReader(0)
    got: list[Message] = []
    position = turn = 0
    while position < len(stream):
        size = cuts[turn % len(cuts)] * (1000 if large else 1)
        piece = memoryview(stream[position : position + size])
        if turn % 2 and len(piece) < reader.missing:
            reader.space()[: len(piece)] = piece
            reader.filled(len(piece), got)
        else:
            begun = reader.feed(piece, got)
            if begun is not None:
                reader.begin(begun)
        position += size
        turn += 1
    assert got == sent
    assert not reader.has_begun


@pytest.mark.parametrize(
    ("flags", "encoding", "why"),
    [(1, "identity", "names no grpc-encoding"), (2, "gzip", "flags 2"), (255, "gzip", "flags 255")],
)
def test_a_message_with_other_flags_is_refused_at_its_prefix(
    flags: int, encoding: str, why: str
) -> None:
    server = Server()
    server.open(1, (b"grpc-encoding", encoding.encode()))
    (refused,) = server.read(data(1, message(b"x" * 100, flags)[:5]))
    assert isinstance(refused, MessageRefused)
    assert refused.code == 13
    assert why in refused.why


def test_good_messages_before_a_bad_one_are_handed_out() -> None:
    server = Server()
    server.open(1)
    events = server.read(data(1, message(b"good") + message(b"bad", 7) + message(b"lost")))
    assert [type(each) for each in events] == [MessageReceived, MessageRefused]
    assert messages(events) == [b"good"]


def test_a_stream_that_ends_within_a_message_is_refused() -> None:
    for cut in (1, 4, 5, 7):
        server = Server()
        server.open(1)
        events = server.read(data(1, message(b"four")[:cut], END_STREAM))
        assert [type(each) for each in events] == [MessageRefused, StreamEnded]
        assert server.room.used == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_message_is_unpacked_by_its_reader(name: str, pack: object) -> None:
    assert callable(pack)
    server = Server()
    server.open(1, (b"grpc-encoding", name.encode()))
    packed = pack(b"text" * 100)
    (received,) = of(MessageReceived, server.read(data(1, message(packed, 1))))
    assert isinstance(received.message, CompressedMessage)
    assert len(received.message) == len(packed)
    assert received.message.unpack() == b"text" * 100


@pytest.mark.parametrize(
    "broken",
    [b"", b"text", gzip.compress(b"text")[:-3]],
    ids=["empty", "text", "cut short"],  # what gzip writes holds the time
)
def test_a_broken_compressed_message_is_told(broken: bytes) -> None:
    with pytest.raises(BadMessage):
        CompressedMessage(broken, 31, 1000).unpack()


def test_a_compressed_message_may_be_as_large_as_the_limit() -> None:
    packed = gzip.compress(bytes(1000))
    assert CompressedMessage(packed, 31, 1000).unpack() == bytes(1000)
    assert CompressedMessage(packed, 31, 0).unpack() == bytes(1000)
    with pytest.raises(TooLarge):
        CompressedMessage(packed, 31, 999).unpack()


def test_a_message_may_be_as_large_as_the_limit() -> None:
    server = Server(ConnectionLimits(message_bytes=100))
    server.open(1)
    assert messages(server.read(data(1, message(b"x" * 100)))) == [b"x" * 100]
    assert of(MessageRefused, server.read(data(1, message(b"x" * 101))))


def test_large_messages_that_end_together_all_come() -> None:
    window = 1 << 17
    server = Server(ConnectionLimits(window_bytes=window, connection_bytes=window))
    sent = message(bytes(3 * window))
    streams = (1, 3, 5)
    for stream in streams:
        server.open(stream)
    for at in range(0, len(sent) - 1, 1 << 14):
        for stream in streams:
            server.read(data(stream, sent[at : min(at + (1 << 14), len(sent) - 1)]))
    events = server.read(*(data(stream, sent[-1:], END_STREAM) for stream in streams))
    assert messages(events) == [sent[5:]] * 3
    assert server.fault is None


def test_a_long_message_is_received_in_its_own_memory() -> None:
    room = Memory()
    server = Server(room=room)
    stream = server.open(1)
    sent = message(bytes(range(256)) * 4000)
    assert server.wire.space() is None
    server.read(frame(DATA, END_STREAM, 1, sent)[:20])
    assert room.used == len(sent) - 5
    at = 11
    events = []
    while (space := server.wire.space()) is not None:
        count = min(len(space), 100_000)
        space[:count] = sent[at : at + count]
        events += server.wire.filled(count, 0.0)
        at += count
    events += server.read(sent[at:])
    assert messages(events) == [sent[5:]]
    assert of(StreamEnded, events)
    assert room.used == 0
    assert len(sent) - 5 <= stream.unread < len(sent) + 100


def test_a_stream_may_be_reset_while_its_message_is_received() -> None:
    server = Server()
    stream = server.open(1)
    sent = data(1, message(bytes(200_000)), END_STREAM)
    server.read(sent[:20])
    space = server.wire.space()
    assert space is not None
    space[:100_000] = sent[20:100_020]
    server.wire.reset(stream)
    assert server.wire.filled(100_000, 0.0) == []
    assert server.wire.space() is None
    assert server.read(sent[100_020:]) == []
    server.serve(frame(HEADERS, LAST_HEADERS, 3, block(*CALL)))
    assert server.sent()[-1].stream == 3
    assert server.room.used == 0  # type: ignore[attr-defined]


def test_a_message_larger_than_its_window_gets_a_window_of_its_size() -> None:
    server = Server(ConnectionLimits(window_bytes=65_535))
    server.open(1)
    server.read(data(1, message(b"x" * 1_000_000)[:60_000]))
    (update,) = server.sent_of(WINDOW_UPDATE)
    assert update.stream == 1
    assert 65_535 - 60_000 + int.from_bytes(update.payload, "big") == 1_000_005 - 60_000


def test_a_message_that_fits_into_its_window_needs_no_larger_one() -> None:
    server = Server(ConnectionLimits(window_bytes=1 << 20))
    server.open(1)
    whole = data(1, message(bytes(700_000)))
    server.read(whole[:60_000])
    assert server.sent_of(WINDOW_UPDATE) == [], "a write for each message"
    assert server.read(whole[60_000:])


def test_a_window_is_given_back_when_its_messages_are_read() -> None:
    server = Server(ConnectionLimits(window_bytes=65_535))
    stream = server.open(1)
    for _ in range(4):
        server.read(data(1, message(b"x" * 15_000)))
    assert server.sent_of(WINDOW_UPDATE) == []
    for _ in range(4):
        server.wire.read(stream, 15_000)
    given = server.sent_of(WINDOW_UPDATE)
    assert [each.stream for each in given] == [1]
    assert stream.receive_window + stream.unread <= 65_535
    assert stream.receive_window > 32_000


def test_padding_never_keeps_a_message_from_coming() -> None:
    server = Server(ConnectionLimits(window_bytes=65_535))
    server.open(1)
    sent = message(b"x" * 100_000)
    window = 65_535
    got: list[bytes] = []
    while sent:
        size = min(1000, window - 256)
        assert size > 0
        padded = b"\xff" + sent[:size] + bytes(255)
        got += messages(server.read(frame(DATA, 8, 1, padded)))
        sent, window = sent[size:], window - len(padded)
        for each in server.sent_of(WINDOW_UPDATE):
            if each.stream:
                window += int.from_bytes(each.payload, "big")
    assert got == [b"x" * 100_000]


# -- what is sent --


def test_an_answer_leaves_in_one_piece() -> None:
    server = Server()
    stream = server.open(1, end=True)
    assert server.wire.answer(stream, b"reply")
    assert len(server.wire.out) == 1
    head, reply, trailers = server.sent()
    assert (head.kind, head.flags) == (HEADERS, END_HEADERS)
    assert reply.payload == message(b"reply")
    assert (trailers.kind, trailers.flags) == (HEADERS, LAST_HEADERS)
    assert not stream.is_open


def test_a_large_answer_is_not_copied() -> None:
    server = Server()
    server.read(settings((WINDOW, 1 << 20), (5, 1 << 20)), window_update(0, 1 << 20))
    server.sent()
    large = bytes(100_000)
    server.wire.answer(server.open(1, end=True), large)
    assert any(each is large for each in server.wire.out)
    assert any(each is large for each in server.wire.take())


def test_an_answer_before_the_end_of_its_call_is_sent_all_the_same() -> None:
    server = Server()
    stream = server.open(1)
    assert server.wire.answer(stream, b"reply")
    assert len(server.sent()) == 4  # the last one asks the client to stop


def test_an_answer_whose_head_has_left_is_sent_after_it() -> None:
    server = Server()
    stream = server.open(1, end=True)
    server.wire.send_head(stream)
    assert server.wire.answer(stream, b"reply")
    assert [each.kind for each in server.sent()] == [HEADERS, DATA, HEADERS]


def test_an_answer_that_waits_is_told_when_it_has_left() -> None:
    server = Server()
    server.read(settings((WINDOW, 0)))
    server.sent()
    stream = server.open(1, end=True)
    assert not server.wire.answer(stream, b"reply")
    assert [each.kind for each in server.sent()] == [HEADERS]
    assert server.read(window_update(1, 100)) == [DataSent(stream)]
    assert [each.kind for each in server.sent()] == [DATA, HEADERS]
    assert server.wire.streams == {}


def test_nothing_is_sent_on_a_stream_that_is_over() -> None:
    server = Server()
    stream = server.open(1)
    server.read(frame(3, 0, 1, number(8)))
    server.wire.send_head(stream)
    assert server.wire.send_message(stream, b"late")
    assert server.wire.answer(stream, b"late")
    assert server.wire.finish(stream)
    assert server.wire.finish_plain(stream, b"", b"late")
    server.wire.reset(stream)
    server.wire.end(stream)
    assert server.sent() == []


def test_empty_parts_of_a_message_hold_nothing_back() -> None:
    server = Server()
    server.read(settings((WINDOW, 8)))
    server.sent()
    stream = server.open(1, end=True)
    server.wire.send_head(stream)
    parts = (message(b"text")[:5], b"", b"text", b"", b"")
    assert not server.wire._hold(stream, *parts)
    assert not server.wire.finish(stream)
    assert server.read(window_update(1, 1)) == [DataSent(stream)]
    assert b"".join(each.payload for each in server.sent_of(DATA)) == message(b"text")
    assert server.wire.streams == {}


def test_a_large_reply_leaves_at_once_if_no_other_waits() -> None:
    server = Server()
    server.read(settings((WINDOW, 1 << 30)), window_update(0, 1 << 30))
    server.sent()
    stream = server.open(1, end=True)
    assert server.wire.answer(stream, bytes(1_000_000))
    assert [each.kind for each in server.sent()][-1] == HEADERS


def test_streams_take_turns_at_the_connections_window() -> None:
    server = Server()
    server.read(settings((WINDOW, 1 << 30), (5, 1 << 20)))
    server.sent()
    streams = [server.open(each, end=True) for each in (1, 3, 5)]
    for stream in streams:
        server.wire.answer(stream, bytes(1 << 20))
    server.sent()
    server.read(window_update(0, 3 << 18))
    assert [each.stream for each in server.sent_of(DATA)] == [1, 3, 5]


def test_a_pause_holds_data_back_and_answers_pings() -> None:
    server = Server()
    stream = server.open(1)
    server.wire.send_head(stream)
    server.wire.paused = True
    assert not server.wire.send_message(stream, b"reply")
    assert not server.wire.has_more
    server.read(frame(6, payload=b"12345678"))
    assert [each.kind for each in server.sent()] == [HEADERS, 6]
    server.wire.paused = False
    events: list[Event] = []
    server.wire.flush(events)
    assert events == [DataSent(stream)]
    assert [each.kind for each in server.sent()] == [DATA]
