"""Hostile peers: each flood ends soon, and each byte of it costs little.

Work is counted in lines of Python, so that no test depends on a machine's speed.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import hpack
import pytest

from headrace.http2.blocks import block as literal_block
from headrace.http2.calls import request_block
from headrace.http2.connection import (
    CallOpened,
    Event,
    MessageReceived,
    MessageRefused,
    Reset,
    StreamEnded,
)
from headrace.http2.limits import ConnectionLimits
from headrace.http2.messages import CompressedMessage, TooLarge
from tests.support.http2_ends import (
    ACK,
    CALL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LAST_HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Client,
    End,
    Memory,
    Server,
    block,
    data,
    frame,
    headers,
    message,
    number,
    of,
    reset,
    settings,
    window_update,
)
from tests.support.work import lines_of

WINDOW = 4
LINES_A_BYTE = 25
"""What a byte may cost. A flood of the smallest frames costs 3 to 10 lines a byte."""
BATCH = 200


def flood(end: End, piece: Callable[[int], bytes] | bytes, most: int = 30_000) -> int:
    """Sends pieces until the connection is over, and checks what they cost.

    Returns:
        How many there were.
    """
    for count in range(0, most, BATCH):
        several = range(count, count + BATCH)
        sent = b"".join(piece if isinstance(piece, bytes) else piece(each) for each in several)
        lines = lines_of(lambda sent=sent: end.read(sent))  # type: ignore[misc]
        assert lines <= LINES_A_BYTE * len(sent) + 1000
        assert sum(len(each.payload) for each in end.sent()) <= 4 * len(sent) + 1000
        if end.fault is not None:
            assert end.fault == "ENHANCE_YOUR_CALM"
            return count + BATCH
    raise AssertionError("the flood went on")


def new(stream: int, **more: int) -> bytes:
    return headers(2 * stream + 1, flags=more.get("flags", END_HEADERS))


SMALL = [
    ("PRIORITY", frame(PRIORITY, 0, 1, b"\0\0\0\0\1")),
    ("WINDOW_UPDATE", window_update(0, 1)),
    ("WINDOW_UPDATE of a stream", window_update(1, 1)),
    ("empty DATA", data(1, b"")),
    ("DATA of a byte", data(1, b"\0")),
    ("DATA of padding", data(1, b"\0", PADDED)),
    ("DATA of a byte on a stream that was reset", data(3, b"\0")),
    ("empty DATA on a stream that was reset", data(3, b"", END_STREAM)),
    ("RST_STREAM of a closed stream", reset(3)),
    ("unknown frames", frame(0xFA)),
    ("PING", frame(PING, payload=b"12345678")),
    ("answers to no PING", frame(PING, ACK, 0, b"12345678")),
    ("SETTINGS", settings()),
    ("SETTINGS that change windows", settings((WINDOW, 1), (WINDOW, 2))),
    ("agreements with SETTINGS", frame(SETTINGS, ACK)),
    ("GOAWAY", frame(GOAWAY, 0, 0, b"\0" * 8)),
]


@pytest.mark.parametrize(("_", "piece"), SMALL, ids=[row[0] for row in SMALL])
def test_a_flood_of_small_frames_ends(_: str, piece: bytes) -> None:
    server = Server()
    server.open(1)
    server.wire.reset(server.open(3))
    server.sent()
    assert flood(server, piece) <= 26_000


def test_a_flood_of_settings_costs_no_more_with_many_streams_open() -> None:
    server = Server()
    server.read(*(new(each) for each in range(1024)))
    many = settings(*((WINDOW, 60_000 + each) for each in range(64)))
    assert lines_of(lambda: server.read(many)) < 10 * 1024
    assert flood(server, lambda each: settings((WINDOW, 60_000 + each))) <= 1200


def test_changes_of_many_streams_windows_end_if_each_comes_alone() -> None:
    server = Server()
    server.read(*(new(each) for each in range(1024)))
    count = 0
    while server.fault is None:
        count += 1
        server.read(settings((WINDOW, 60_000 + count)))
    assert count <= 200


def test_the_windows_of_many_streams_that_wait_cost_no_walk_over_them() -> None:
    server = Server()
    server.read(settings((WINDOW, 0)), *(new(each, flags=LAST_HEADERS) for each in range(1024)))
    for stream in list(server.wire.streams.values()):
        server.wire.answer(stream, b"reply")
    server.sent()
    assert lines_of(lambda: server.read(window_update(0, 1))) < 100
    assert lines_of(lambda: server.read(window_update(1, 1))) < 150
    assert lines_of(lambda: server.wire.has_more) < 10
    assert lines_of(lambda: server.wire.flush([])) < 20


# -- resets --


def test_rapid_reset_ends() -> None:
    """CVE-2023-44487."""
    server = Server()
    assert flood(server, lambda each: new(each) + reset(2 * each + 1)) <= 2000


def test_rapid_reset_after_a_message_ends() -> None:
    server = Server()

    def piece(each: int) -> bytes:
        return new(each) + data(2 * each + 1, message() * 3) + reset(2 * each + 1)

    assert flood(server, piece) <= 2000


@pytest.mark.parametrize(
    "provoke",
    [
        lambda stream: window_update(stream, 0),
        lambda stream: window_update(stream, 2**31 - 1),
        lambda stream: headers(stream) + data(stream, b"x"),
        lambda stream: frame(PRIORITY, 0, stream, number(stream) + b"\0"),
        lambda stream: frame(HEADERS, END_HEADERS, stream, block((b"a", b"b"))),
        lambda stream: frame(HEADERS, LAST_HEADERS, stream, block((b"A", b"b"))),
    ],
)
def test_resets_that_a_client_provokes_end(provoke: Callable[[int], bytes]) -> None:
    """CVE-2025-8671."""
    server = Server()
    assert flood(server, lambda each: new(each) + provoke(2 * each + 1)) <= 2000


def test_calls_that_cannot_be_opened_end() -> None:
    server = Server()
    bad = block((b":method", b"POST"))
    assert flood(server, lambda each: frame(HEADERS, END_HEADERS, 2 * each + 1, bad)) <= 2000


def test_frames_on_closed_streams_end() -> None:
    server = Server()
    for each in range(3000):
        server.serve(new(each, flags=LAST_HEADERS))
        server.sent()
    assert flood(server, lambda each: data(2 * (each % 3000) + 1, b"")) <= 21_000


def test_streams_that_are_opened_and_left_are_few() -> None:
    """100,000 streams: those above the limit are refused, and then the connection ends."""
    server = Server(ConnectionLimits(streams=1000))
    assert flood(server, new, 100_000) <= 1000 + 2000
    assert len(server.wire._over) <= 2000


# -- header blocks --


def test_a_flood_of_continuation_ends_by_its_size() -> None:
    """CVE-2024-27316."""
    server = Server()
    server.read(headers(1, flags=0))
    piece = frame(CONTINUATION, 0, 1, block((b"x", b"y" * 100)))
    assert flood(server, piece) * 106 <= 4 * (24 << 10) + BATCH * 106


@pytest.mark.parametrize("payload", [b"", b"\0"])
def test_a_flood_of_tiny_continuation_ends(payload: bytes) -> None:
    server = Server()
    server.read(headers(1, flags=0))
    assert flood(server, frame(CONTINUATION, 0, 1, payload)) <= 21_000


@pytest.mark.parametrize(
    ("field", "code"),
    [
        (b"\x82", "ENHANCE_YOUR_CALM"),  # of the static table
        (b"\0\1a\0", "ENHANCE_YOUR_CALM"),  # written out
        (b"\x40\1a\0", "ENHANCE_YOUR_CALM"),  # and kept
        (b"\x20", "COMPRESSION_ERROR"),  # sizes of the table
        (b"\x3f\0", "COMPRESSION_ERROR"),
    ],
)
def test_a_list_of_100_000_fields_ends_before_it_is_read(field: bytes, code: str) -> None:
    server = Server()
    sent = block(*CALL) * (field[0] & 0xE0 != 0x20) + field * 100_000
    lines = 0
    for at in range(0, len(sent), 16_384):
        kind, flags = (CONTINUATION, 0) if at else (HEADERS, END_STREAM)
        if at + 16_384 >= min(len(sent), 4 * (24 << 10)):
            flags |= END_HEADERS
        piece = frame(kind, flags, 1, sent[at : at + 16_384])
        lines += lines_of(lambda piece=piece: server.read(piece))  # type: ignore[misc]
        if server.fault is not None:
            break
    assert server.fault == code
    assert lines < 150_000


def test_a_bomb_in_the_table_ends() -> None:
    """A field of 4 KB in the table, named again by each byte of a block."""
    server = Server()
    encoder = hpack.Encoder()
    first = encoder.encode([*CALL, (b"x", b"y" * 3900)])
    server.serve(frame(HEADERS, LAST_HEADERS, 1, first))
    bomb = block(*CALL) + b"\xbe" * 16_000
    assert lines_of(lambda: server.read(frame(HEADERS, LAST_HEADERS, 3, bomb))) < 5000
    assert server.fault == "ENHANCE_YOUR_CALM"


def test_blocks_that_are_new_each_time_are_paid_for_by_calls() -> None:
    server = Server()
    server.read(window_update(0, 1 << 30))
    for each in range(6_000):
        more = [(b"x-%d" % at, b"%d" % each) for at in range(4)]
        server.serve(headers(2 * each + 1, *more))
        server.sent()
    assert server.fault is None


def test_large_blocks_that_are_new_each_time_are_paid_for_by_their_calls() -> None:
    server = Server()
    server.read(window_update(0, 1 << 30))
    for each in range(1000):
        server.serve(headers(2 * each + 1, (b"x", b"%06d" % each * 2700)))
        server.sent()
    assert server.fault is None


@pytest.mark.long
def test_large_blocks_that_are_new_each_time_end_if_no_call_comes_of_them() -> None:
    server = Server()
    encoder = hpack.Encoder()

    def piece(each: int) -> bytes:
        sent = encoder.encode([*CALL, (b"x", b"%06d" % each * 1000)], huffman=True)
        return frame(HEADERS, END_HEADERS, 2 * each + 1, sent) + reset(2 * each + 1)

    assert flood(server, piece) <= 400


def test_a_binary_field_of_commas_is_not_a_list_of_thousands() -> None:
    server = Server()
    (opened,) = of(
        CallOpened, server.read(headers(1, (b"x-bin", b"," * 20_000), flags=END_HEADERS))
    )
    assert opened.head.refused == (13, "'x-bin' has more than 64 values in one field")


# -- windows --


def test_a_window_of_1_gets_large_replies_by_the_byte_and_is_called_off() -> None:
    server = Server()
    server.read(settings((WINDOW, 1)))
    stream = server.open(1, end=True)
    server.wire.answer(stream, b"x" * 1_000_000)
    server.sent()
    assert flood(server, window_update(1, 1)) <= 21_000


def test_a_window_of_0_costs_nothing_but_what_waits() -> None:
    server = Server()
    server.read(settings((WINDOW, 0)))
    reply = b"x" * 1_000_000
    for each in range(100):
        stream = server.open(2 * each + 1, end=True)
        assert not server.wire.answer(stream, reply)
        assert stream.pending is not None
        assert stream.pending[-1] is reply  # not copied
    assert not server.wire.has_more


def test_answers_that_are_never_read_end_the_connection() -> None:
    server = Server()
    server.wire.paused = True  # as a transport does whose buffer is full
    kept = 0
    for each in range(100_000):
        server.serve(headers(2 * each + 1, call=CALL[:4]), frame(PING, payload=b"12345678"))
        kept += sum(map(len, server.wire.take()))
        server.now += 1
        for stream in list(server.wire.streams.values()):
            server.wire.reset(stream)
        if server.fault is not None:
            break
    assert server.fault == "ENHANCE_YOUR_CALM"
    assert kept < 2 << 20


def test_answers_that_are_not_even_taken_end_the_connection() -> None:
    server = Server()
    server.wire.paused = True
    for _ in range(100_000):
        server.read(frame(PING, payload=b"12345678"))
        server.now += 1
        if server.fault is not None:
            break
    assert server.fault == "ENHANCE_YOUR_CALM"
    assert len(server.wire.out) < 11_000


def test_answers_that_are_read_late_are_forgiven() -> None:
    server = Server()
    for _ in range(20):
        server.wire.paused = True
        for _ in range(5000):
            server.read(frame(PING, payload=b"12345678"))
            server.wire.take()
            server.now += 1
        server.wire.paused = False
        server.wire.take()
    assert server.fault is None


# -- messages --


def test_a_message_beyond_the_limit_is_refused_before_it_takes_memory() -> None:
    room = Memory()
    server = Server(ConnectionLimits(message_bytes=1000), room=room)
    stream = server.open(1)
    (refused,) = server.read(data(1, b"\0\xff\xff\xff\xff"))
    assert refused == MessageRefused(
        stream, 8, "a message of 4294967295 bytes is larger than 1000 bytes"
    )
    assert room.used == 0
    assert server.read(data(1, b"x" * 10_000)) == []


def test_messages_that_are_announced_share_the_room() -> None:
    room = Memory(most=100 << 20)
    server = Server(room=room)
    server.read(*(new(each) for each in range(10)))
    events = server.read(*(data(2 * each + 1, b"\0\1\0\0\0x") for each in range(10)))
    assert room.used == 6 * (16 << 20)
    assert [each.code for each in of(MessageRefused, events)] == [8] * 4
    for stream in list(server.wire.streams.values()):
        server.wire.reset(stream)
    assert room.used == 0


def test_a_message_in_frames_of_a_byte_ends_the_connection() -> None:
    server = Server()
    server.open(1)
    server.read(data(1, b"\0\0\1\0\0"))
    assert flood(server, data(1, b"x")) <= 21_000
    assert server.room.used == 0  # type: ignore[attr-defined]


def test_messages_that_nobody_reads_stop_their_sender() -> None:
    server = Server(ConnectionLimits(window_bytes=1 << 20, connection_bytes=1 << 20))
    server.read(*(new(each) for each in range(10)))
    server.sent()
    left = [server.wire._receive_window]
    for each in range(10):
        size = min(200_000, server.wire._receive_window - 5)
        server.read(data(2 * each + 1, message(b"x" * size)))
        left.append(server.wire._receive_window)
        if left[-1] < 1000:
            break
    assert server.wire.unread <= 2 << 20
    assert left[-1] < 1000


def test_empty_messages_that_nobody_reads_end_the_connection() -> None:
    server = Server(ConnectionLimits(window_bytes=1 << 20, connection_bytes=1 << 20))
    server.read(*(new(each) for each in range(10)))
    count = 0
    sent = message() * 1000
    while server.fault is None and count < 100_000:
        count += len(server.read(data(2 * (count // 1000 % 10) + 1, sent)))
    assert server.fault == "ENHANCE_YOUR_CALM"
    assert count <= 4 * (1 << 20) // 64 + 1000 + 10


def test_empty_messages_that_are_read_may_be_many() -> None:
    server = Server(ConnectionLimits(window_bytes=1 << 20, connection_bytes=1 << 20))
    server.open(1)
    for _ in range(100):
        echo(server, server.read(data(1, message() * 1000)), b"")
    assert server.fault is None
    assert server.wire.unread == server.wire._waiting == 0


def test_closing_streams_gives_the_connections_window_back() -> None:
    server = Server(ConnectionLimits(window_bytes=1 << 20, connection_bytes=1 << 20))
    server.read(*(new(each) for each in range(10)))
    for each in range(8):
        size = min(200_000, server.wire._receive_window - 5)
        server.read(data(2 * each + 1, message(b"x" * max(size, 0))))
    server.sent()
    for stream in list(server.wire.streams.values()):
        server.wire.reset(stream)
    assert [each.stream for each in server.sent_of(WINDOW_UPDATE)] == [0]


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
def test_a_compressed_bomb_is_unpacked_up_to_the_limit(pack: Callable[[bytes], bytes]) -> None:
    server = Server(ConnectionLimits(message_bytes=1 << 20))
    encoding = b"gzip" if pack is gzip.compress else b"deflate"
    server.open(1, (b"grpc-encoding", encoding))
    bomb = pack(bytes(100 << 20))
    (received,) = of(MessageReceived, server.read(data(1, message(bomb, 1))))
    assert isinstance(received.message, CompressedMessage)
    with pytest.raises(TooLarge) as caught:
        received.message.unpack()
    assert caught.value.size == (1 << 20) + 1


def test_half_a_frame_in_single_bytes_is_copied_once() -> None:
    server = Server()
    sent = frame(HEADERS, LAST_HEADERS, 1, block(*CALL, (b"x", b"y" * 20_000)))
    for at in range(len(sent) - 1):
        piece = sent[at : at + 1]
        assert lines_of(lambda piece=piece: server.read(piece)) < 80  # type: ignore[misc]
    assert of(CallOpened, server.read(sent[-1:]))


# -- a hostile server --


def test_interim_responses_without_an_end_end_the_connection() -> None:
    client = Client()
    client.wire.open(request_block("/a.B/C", "localhost"), 0.0)
    interim = frame(HEADERS, END_HEADERS, 1, literal_block([(b":status", b"103")]))
    assert flood(client, interim) <= 2000


def test_trailers_without_an_end_end_the_connection() -> None:
    client = Client()
    client.wire.open(request_block("/a.B/C", "localhost"), 0.0)
    head = literal_block([(b":status", b"200"), (b"content-type", b"application/grpc")])
    client.read(frame(HEADERS, END_HEADERS, 1, head), frame(HEADERS, END_STREAM, 1, b""))
    piece = frame(CONTINUATION, 0, 1, literal_block([(b"x", b"y" * 100)]))
    assert flood(client, piece) <= 2000


def test_a_list_of_trailers_that_is_too_large_ends_its_call_alone() -> None:
    client = Client(ConnectionLimits(header_bytes=1000))
    first = client.wire.open(request_block("/a.B/C", "localhost"), 0.0)
    second = client.wire.open(request_block("/a.B/C", "localhost"), 0.0)
    large = literal_block([(b"x", b"y" * 2000)])
    head = literal_block([(b":status", b"200"), (b"content-type", b"application/grpc")])
    events = client.read(
        frame(HEADERS, END_HEADERS, 1, head), frame(HEADERS, LAST_HEADERS, 1, large)
    )
    assert of(Reset, events)[0].stream is first
    assert client.fault is None
    assert second.is_open


# -- honest heavy users --


def echo(server: Server, events: list[Event], reply: bytes) -> None:
    for event in events:
        if isinstance(event, StreamEnded):
            server.wire.answer(event.stream, reply)
        elif isinstance(event, MessageReceived):
            server.wire.read(event.stream, len(event.message))


def test_1000_calls_may_be_cancelled_at_once() -> None:
    server = Server()
    for each in range(1000):
        server.read(headers(2 * each + 1, (b"x-trace", b"%d" % each), flags=END_HEADERS))
    for each in range(1000):
        server.read(reset(2 * each + 1))
    assert server.fault is None


def test_1000_calls_may_run_out_of_time_again_and_again() -> None:
    server = Server()
    for round_ in range(20):
        for each in range(1000):
            server.read(headers(2 * (1000 * round_ + each) + 1, flags=END_HEADERS))
        server.now += 0.3
        for each in range(1000):
            server.read(reset(2 * (1000 * round_ + each) + 1))
        server.sent()
    assert server.fault is None


def test_half_of_all_calls_may_be_cancelled_at_once() -> None:
    server = Server()
    server.read(window_update(0, 1 << 30))
    for each in range(10_000):
        stream = 2 * each + 1
        if each % 2:
            server.read(headers(stream, flags=END_HEADERS), reset(stream))
        else:
            echo(server, server.read(headers(stream)), b"")
        server.sent()
    assert server.fault is None


def test_any_number_of_tiny_calls_may_come_on_a_connection() -> None:
    server = Server()
    for each in range(20_000):
        stream = 2 * each + 1
        call = headers(stream, flags=END_HEADERS) + data(stream, message(b"x"), END_STREAM)
        echo(server, server.read(call, window_update(0, 6)), b"y")
        server.sent()
    assert server.fault is None


def test_a_stream_may_bring_any_number_of_small_messages() -> None:
    server = Server()
    server.open(1)
    sent = data(1, message(b"x")) * 100
    for _ in range(500):
        echo(server, server.read(sent), b"")
    assert server.fault is None


def test_a_stream_may_get_any_number_of_small_messages_with_a_ping_for_each() -> None:
    """gRPC's clients measure the connection by PINGs while data come."""
    server = Server()
    server.read(settings((WINDOW, 1 << 20)))
    stream = server.open(1)
    server.wire.send_head(stream)
    for _ in range(20_000):
        assert server.wire.send_message(stream, b"x")
        server.sent()
        server.read(frame(PING, payload=b"12345678"), window_update(0, 6), window_update(1, 6))
    assert server.fault is None


def test_much_data_may_be_got_by_small_window_updates() -> None:
    server = Server()
    size = 16 << 20
    for each in range(4):
        stream = server.open(2 * each + 1, end=True)
        server.wire.answer(stream, bytes(size))
        sent = 0
        while sent < size:
            more = sum(len(each.payload) for each in server.sent() if each.kind == DATA)
            sent += more
            pieces = -(-more // 4096)
            server.read(*[window_update(0, 4096) + window_update(stream.id, 4096)] * pieces)
    assert server.fault is None


def test_pings_each_10_seconds_are_welcome_on_an_idle_connection() -> None:
    server = Server()
    for _ in range(10_000):
        server.now += 10
        server.read(frame(PING, payload=b"12345678"))
        assert server.sent()[0].flags == ACK
    assert server.fault is None


def test_uploads_may_be_refused_while_their_data_are_on_the_way() -> None:
    server = Server(ConnectionLimits(streams=1000))
    for each in range(1000):
        server.wire.finish(server.open(2 * each + 1))
    server.sent()
    for each in range(1000):
        server.read(data(2 * each + 1, b"x" * 10_000) * 5)
    assert server.fault is None
    assert not server.sent_of(RST_STREAM)


def test_a_preface_alone_is_answered_by_settings() -> None:
    end = End()
    end.read(PREFACE)
    assert [each.kind for each in end.sent()] == [SETTINGS, WINDOW_UPDATE]
