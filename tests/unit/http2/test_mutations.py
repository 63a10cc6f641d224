"""Random and mutated bytes: an end raises nothing. It goes on, or the connection is over."""

from __future__ import annotations

import random
from collections.abc import Callable

import hpack
import pytest

from headrace.http2.calls import RESPONSE, plain_block, request_block, trailers_block
from headrace.http2.connection import (
    CallOpened,
    Event,
    MessageReceived,
    MessageRefused,
    StreamEnded,
)
from headrace.http2.limits import ConnectionLimits
from headrace.http2.messages import BadMessage, CompressedMessage, TooLarge
from tests.support.http2_ends import (
    ACK,
    CALL,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    LAST_HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    SETTINGS,
    End,
    Memory,
    block,
    data,
    frame,
    headers,
    message,
    number,
    reset,
    settings,
    window_update,
)

LIMITS = ConnectionLimits(
    streams=4,
    window_bytes=65_535,
    connection_bytes=65_535,
    frame_bytes=16_384,
    header_bytes=2000,
    message_bytes=50_000,
)
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3, 4))]
ROUNDS = 60


def block_of(chance: random.Random, *fields: tuple[bytes, bytes]) -> bytes:
    """A header block with and without tables and Huffman's code."""
    encoder = hpack.Encoder()
    encoder.header_table_size = chance.choice([4096, 0, 100])
    return bytes(encoder.encode(list(fields), huffman=chance.random() < 0.5))


def any_frame(chance: random.Random) -> bytes:
    """A frame that is in order, or nearly so."""
    stream = chance.choice([1, 1, 1, 3, 3, 5, 7, 9, 0, 2])
    body = message(chance.randbytes(chance.choice([0, 1, 10, 300, 5000])), chance.choice([0, 0, 1]))
    more = (b"x-%d" % chance.randrange(9), b"v" * chance.choice([1, 200, 3000]))
    encoding = (b"grpc-encoding", chance.choice([b"gzip", b"identity", b"deflate", b"br"]))
    response = (
        (b":status", chance.choice([b"200", b"100", b"404", b"999", b"x"])),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"0"),
    )
    flags = chance.choice([LAST_HEADERS, END_HEADERS, END_HEADERS, 0, END_STREAM])
    return chance.choice(
        [
            headers(stream, flags=flags),
            headers(stream, encoding, flags=flags),
            headers(stream, (b"a-bin", b"AA==,!"), flags=flags),
            frame(HEADERS, flags, stream, block_of(chance, *CALL, more)),
            frame(HEADERS, flags, stream, block_of(chance, *response)),
            frame(HEADERS, flags, stream, RESPONSE),
            frame(HEADERS, LAST_HEADERS, stream, trailers_block(0, "\N{SNOWMAN}")),
            frame(HEADERS, flags | HAS_PRIORITY, stream, b"\0\0\0\1\0" + block(*CALL)),
            frame(CONTINUATION, chance.choice([0, END_HEADERS]), stream, block(more)[:250]),
            data(stream, body, chance.choice([0, 0, END_STREAM])),
            data(stream, body[: chance.randrange(6)]),
            data(stream, b"\2" + body + b"\0\0", PADDED),
            reset(stream),
            window_update(chance.choice([0, stream]), chance.choice([1, 10, 65_535, 2**31 - 1])),
            settings((chance.randrange(8), chance.choice([0, 1, 100, 16_384, 2**31 - 1, 2**31]))),
            frame(SETTINGS, ACK),
            frame(PING, chance.choice([0, ACK]), 0, b"draining"),
            frame(PRIORITY, 0, stream, number(chance.choice([0, stream])) + b"\0"),
            frame(PUSH_PROMISE, END_HEADERS, stream, number(2) + block(*CALL)),
            frame(GOAWAY, 0, 0, number(stream) + number(0) + b"\xff\xfe"),
            frame(chance.randrange(256), chance.randrange(256), stream, body[:100]),
        ]
    )


def mutated(chance: random.Random, sent: bytes) -> bytes:
    """Some of the bytes, with some of them changed, left out, doubled or moved."""
    found = bytearray(sent)
    for _ in range(chance.choice([0, 1, 1, 3])):
        if not found:
            break
        at = chance.randrange(len(found))
        end = at + chance.choice([1, 1, 4, 9, 100])
        what = chance.randrange(4)
        if what == 0:
            found[at] = chance.randrange(256)
        elif what == 1:
            del found[at:end]
        elif what == 2:
            found[at:at] = found[at:end]
        else:
            found[at:end] = chance.randbytes(end - at)
    return bytes(found)


def serve(end: End, chance: random.Random, events: list[Event]) -> None:
    """Does with a server's events what an owner may do, and more."""
    wire = end.wire
    for event in events:
        if isinstance(event, CallOpened) and event.head.http is not None:
            wire.finish_plain(event.stream, plain_block(415, 4), b"grpc")
        elif isinstance(event, MessageReceived):
            if isinstance(event.message, CompressedMessage):
                try:
                    event.message.unpack()
                except (BadMessage, TooLarge):
                    wire.reset(event.stream)
            wire.read(event.stream, len(event.message))
            if not event.stream.answered:
                wire.send_head(event.stream)
            wire.send_message(event.stream, b"r" * chance.choice([0, 10, 20_000]))
        elif isinstance(event, StreamEnded | MessageRefused):
            if chance.random() < 0.5:
                wire.answer(event.stream, b"r" * chance.choice([0, 10, 20_000]))
            wire.finish(event.stream)


def use(end: End, chance: random.Random, events: list[Event]) -> None:
    """Does with a client's events what an owner may do, and more."""
    wire = end.wire
    for event in events:
        if isinstance(event, MessageReceived):
            wire.read(event.stream, len(event.message))
    if len(wire.streams) < 6:
        stream = wire.open(request_block("/a.B/C", "localhost"), end.now)
        wire.send_message(stream, b"q" * chance.choice([0, 10, 20_000]), last=chance.random() < 0.5)
    for stream in list(wire.streams.values()):
        if chance.random() < 0.1:
            chance.choice([wire.end, wire.reset])(stream)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("client", "react"), [(False, serve), (True, use)], ids=["server", "client"]
)
def test_whatever_comes_ends_in_events_or_a_fault(
    seed: int, client: bool, react: Callable[[End, random.Random, list[Event]], None]
) -> None:
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        room = Memory(200_000)
        end = End(LIMITS, room=room, client=client)
        start = settings((4, chance.choice([0, 1, 65_535])))
        sent = (b"" if client else PREFACE) + start
        count = 0
        sent += b"".join(any_frame(chance) for _ in range(chance.randrange(30)))
        sent = mutated(chance, sent) if chance.random() < 0.7 else sent
        react(end, chance, [])
        while sent and end.fault is None:
            end.now += chance.choice([0, 0.01, 1])
            end.wire.paused = chance.random() < 0.1
            count = chance.choice([1, 5, 100, 1 << 20])
            space = end.wire.space()
            if space is not None:
                count = min(count, len(space), len(sent))
                space[:count] = sent[:count]
                events = end.wire.filled(count, end.now)
            else:
                events = end.read(sent[:count])
            sent = sent[count:]
            react(end, chance, events)
            end.wire.flush([])
            end.sent()
            if chance.random() < 0.01:
                chance.choice([end.wire.go_away, end.wire.finish_going])()
        end.wire.close()
        assert room.used == 0
        assert end.wire.unread == 0
        assert not end.wire.ready
        assert not end.wire.streams


@pytest.mark.parametrize("client", [False, True], ids=["server", "client"])
def test_random_bytes_end_in_a_fault(client: bool) -> None:
    chance = random.Random(0)
    for _ in range(2000):
        end = End(LIMITS, client=client)
        end.read(b"" if client else PREFACE, settings())
        for _ in range(20):
            end.read(chance.randbytes(chance.choice([1, 10, 1000])))
