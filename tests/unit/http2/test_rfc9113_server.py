"""A server's end, by the sections of RFC 9113. Where h2spec has a case, a row says which."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from headrace.http2.connection import CallOpened, GoneAway, MessageReceived, Reset, StreamEnded
from headrace.http2.limits import ConnectionLimits
from tests.support.http2_ends import (
    ACK,
    CALL,
    CODES,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    LAST_HEADERS,
    PADDED,
    PING,
    PLAIN,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    End,
    Frame,
    Server,
    block,
    data,
    field,
    frame,
    headers,
    message,
    number,
    of,
    reset,
    settings,
    window_update,
)

MAX_STREAMS, WINDOW, MAX_FRAME, MAX_LIST = 3, 4, 5, 6
LIMITS = ConnectionLimits(streams=100, frame_bytes=16_384)
PLAIN_CALL = CALL[:4]  # not gRPC's: answered by a sentence
WITHOUT_END = END_HEADERS
TEST = message(b"test")
PING_FRAME = frame(PING, payload=b"headrace")


def priority(stream: int, depends: int = 0, weight: int = 15) -> bytes:
    return frame(PRIORITY, 0, stream, struct.pack(">IB", depends, weight))


def changed(**fields: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    """The fields of a call with other pseudo-header fields, or without some."""
    names = {f":{name}".encode(): value for name, value in fields.items()}
    kept = [(name, names.get(name, value)) for name, value in CALL]
    return tuple((name, value) for name, value in kept if value is not None)


# What comes after the preface and SETTINGS, and for which reason the whole connection ends.
CONNECTION_ERRORS = [
    # 4.2 frame size
    ("a HEADERS frame larger than allowed", "FRAME_SIZE_ERROR", "http2/4.2/3",
     frame(HEADERS, LAST_HEADERS, 1, b"\x82" * 16_385)),
    ("a DATA frame larger than allowed", "FRAME_SIZE_ERROR", "http2/4.2/2",
     headers(1, flags=WITHOUT_END) + data(1, b"x" * 16_385)),
    ("an unknown frame larger than allowed", "FRAME_SIZE_ERROR", "",
     frame(0xFA, payload=b"x" * 16_385)),
    # 4.3 header compression
    ("a header block that cannot be decoded", "COMPRESSION_ERROR", "http2/4.3/1",
     frame(HEADERS, LAST_HEADERS, 1, b"\x40")),
    ("PRIORITY within a header block", "PROTOCOL_ERROR", "http2/4.3/2",
     headers(1, flags=END_STREAM) + priority(1)),
    ("HEADERS of another stream within a header block", "PROTOCOL_ERROR", "http2/4.3/3",
     headers(1, flags=END_STREAM) + headers(3)),
    ("an unknown frame within a header block", "PROTOCOL_ERROR", "http2/5.5/2",
     headers(1, flags=END_STREAM) + frame(0xFA)),
    ("PING within a header block", "PROTOCOL_ERROR", "", headers(1, flags=0) + PING_FRAME),
    # 5.1 states of streams
    ("DATA on an idle stream", "PROTOCOL_ERROR", "http2/5.1/1", data(1, TEST, END_STREAM)),
    ("RST_STREAM on an idle stream", "PROTOCOL_ERROR", "http2/5.1/2", reset(1)),
    ("WINDOW_UPDATE on an idle stream", "PROTOCOL_ERROR", "http2/5.1/3", window_update(1, 100)),
    ("CONTINUATION on an idle stream", "PROTOCOL_ERROR", "http2/5.1/4",
     frame(CONTINUATION, END_HEADERS, 1, block(*CALL))),
    ("CONTINUATION on a stream that is half closed", "PROTOCOL_ERROR", "http2/5.1/7",
     headers(1) + frame(CONTINUATION, END_HEADERS, 1, block(*CALL))),
    ("HEADERS after RST_STREAM", "STREAM_CLOSED", "http2/5.1/9",
     headers(1, flags=WITHOUT_END) + reset(1) + headers(1)),
    ("CONTINUATION after RST_STREAM", "PROTOCOL_ERROR", "http2/5.1/10",
     headers(1, flags=WITHOUT_END) + reset(1) + frame(CONTINUATION, END_HEADERS, 1)),
    # 5.1.1 numbers of streams
    ("an even number of a stream", "PROTOCOL_ERROR", "http2/5.1.1/1", headers(2)),
    ("a number lower than the last", "STREAM_CLOSED", "http2/5.1.1/2", headers(5) + headers(3)),
    # 6.1 DATA
    ("DATA without a stream", "PROTOCOL_ERROR", "http2/6.1/1", data(0, TEST, END_STREAM)),
    ("DATA with more padding than payload", "PROTOCOL_ERROR", "http2/6.1/3",
     headers(1, flags=WITHOUT_END) + data(1, b"\x06test\0", PADDED)),
    ("DATA with padding and no payload", "FRAME_SIZE_ERROR", "",
     headers(1, flags=WITHOUT_END) + data(1, b"", PADDED)),
    # 6.2 HEADERS
    ("HEADERS without a stream", "PROTOCOL_ERROR", "http2/6.2/3", headers(0)),
    ("HEADERS without a stream that continue", "PROTOCOL_ERROR", "", headers(0, flags=0)),
    ("HEADERS with more padding than payload", "PROTOCOL_ERROR", "http2/6.2/4",
     frame(HEADERS, LAST_HEADERS | PADDED, 1, b"\xff" + block(*CALL))),
    ("HEADERS with padding and no payload", "FRAME_SIZE_ERROR", "",
     frame(HEADERS, LAST_HEADERS | PADDED, 1)),
    ("HEADERS with half a priority", "FRAME_SIZE_ERROR", "",
     frame(HEADERS, LAST_HEADERS | HAS_PRIORITY, 1, b"\0\0\0")),
    ("HEADERS with a priority and padding over it", "PROTOCOL_ERROR", "",
     frame(HEADERS, LAST_HEADERS | HAS_PRIORITY | PADDED, 1, b"\3" + b"\0" * 7)),
    # 6.3 PRIORITY
    ("PRIORITY without a stream", "PROTOCOL_ERROR", "http2/6.3/1", priority(0)),
    ("PRIORITY of another length", "FRAME_SIZE_ERROR", "http2/6.3/2",
     headers(1, flags=WITHOUT_END) + frame(PRIORITY, 0, 1, b"\x80\0\0\1")),
    ("PRIORITY of an idle stream on itself", "PROTOCOL_ERROR", "http2/5.3.1/2", priority(1, 1)),
    # 6.4 RST_STREAM
    ("RST_STREAM without a stream", "PROTOCOL_ERROR", "http2/6.4/1", reset(0)),
    ("RST_STREAM on a stream never opened", "PROTOCOL_ERROR", "http2/6.4/2", reset(1)),
    ("RST_STREAM of another length", "FRAME_SIZE_ERROR", "http2/6.4/3",
     headers(1, flags=WITHOUT_END) + frame(RST_STREAM, 0, 1, b"\0\0\0")),
    # 6.5 SETTINGS
    ("an agreement with SETTINGS that has a payload", "FRAME_SIZE_ERROR", "http2/6.5/1",
     frame(SETTINGS, ACK, 0, b"\0")),
    ("SETTINGS on a stream", "PROTOCOL_ERROR", "http2/6.5/2",
     frame(SETTINGS, 0, 1, struct.pack(">HI", MAX_STREAMS, 100))),
    ("SETTINGS cut short", "FRAME_SIZE_ERROR", "http2/6.5/3", frame(SETTINGS, 0, 0, b"\0\3\0")),
    ("ENABLE_PUSH of 2", "PROTOCOL_ERROR", "http2/6.5.2/1", settings((2, 2))),
    ("a first window that is too large", "FLOW_CONTROL_ERROR", "http2/6.5.2/2",
     settings((WINDOW, 1 << 31))),
    ("a size of frames below the least", "PROTOCOL_ERROR", "http2/6.5.2/3",
     settings((MAX_FRAME, 16_383))),
    ("a size of frames above the largest", "PROTOCOL_ERROR", "http2/6.5.2/4",
     settings((MAX_FRAME, 1 << 24))),
    # 6.6 PUSH_PROMISE
    ("PUSH_PROMISE from a client", "PROTOCOL_ERROR", "http2/8.2/1",
     headers(1, flags=WITHOUT_END)
     + frame(PUSH_PROMISE, END_HEADERS, 1, number(2) + block(*CALL))),
    # 6.7 PING
    ("PING on a stream", "PROTOCOL_ERROR", "http2/6.7/3", frame(PING, 0, 1, b"headrace")),
    ("PING of another length", "FRAME_SIZE_ERROR", "http2/6.7/4", frame(PING, 0, 0, b"\0" * 6)),
    # 6.8 GOAWAY
    ("GOAWAY on a stream", "PROTOCOL_ERROR", "http2/6.8/1", frame(GOAWAY, 0, 1, b"\0" * 8)),
    ("GOAWAY cut short", "FRAME_SIZE_ERROR", "", frame(GOAWAY, 0, 0, b"\0" * 7)),
    # 6.9 WINDOW_UPDATE
    ("a window that grows by nothing", "PROTOCOL_ERROR", "http2/6.9/1", window_update(0, 0)),
    ("WINDOW_UPDATE of another length", "FRAME_SIZE_ERROR", "http2/6.9/3",
     frame(WINDOW_UPDATE, 0, 0, b"\0\0\1")),
    ("a window above the largest", "FLOW_CONTROL_ERROR", "http2/6.9.1/2",
     window_update(0, 2**31 - 1) * 2),
    ("a stream's window above the largest by SETTINGS", "FLOW_CONTROL_ERROR", "http2/6.9.2/3",
     headers(1, flags=WITHOUT_END) + window_update(1, 2**31 - 1 - 65_535)
     + settings((WINDOW, 65_536))),
    # 6.10 CONTINUATION
    ("DATA among CONTINUATION", "PROTOCOL_ERROR", "http2/6.10/2",
     headers(1, flags=0) + frame(CONTINUATION, 0, 1, field(b"a", b"b")) + data(1, TEST)),
    ("CONTINUATION without a stream", "PROTOCOL_ERROR", "http2/6.10/3",
     headers(1, flags=0) + frame(CONTINUATION, END_HEADERS, 0)),
    ("CONTINUATION after the end of HEADERS", "PROTOCOL_ERROR", "http2/6.10/4",
     headers(1, flags=WITHOUT_END) + frame(CONTINUATION, END_HEADERS, 1)),
    ("CONTINUATION after the end of CONTINUATION", "PROTOCOL_ERROR", "http2/6.10/5",
     headers(1, flags=0) + frame(CONTINUATION, END_HEADERS, 1) * 2),
    ("CONTINUATION after DATA", "PROTOCOL_ERROR", "http2/6.10/6",
     headers(1, flags=WITHOUT_END) + data(1, TEST) + frame(CONTINUATION, 0, 1)),
]  # fmt: skip

# What comes after the preface and SETTINGS, and for which reason stream 1 alone ends.
STREAM_ERRORS = [
    # 5.1 states of streams
    ("DATA on a stream that is half closed", "STREAM_CLOSED", "http2/5.1/5 http2/6.1/2",
     headers(1) + data(1, TEST, END_STREAM)),
    ("HEADERS on a stream that is half closed", "STREAM_CLOSED", "http2/5.1/6",
     headers(1) + headers(1)),
    ("DATA after RST_STREAM", "STREAM_CLOSED", "http2/5.1/8",
     headers(1, flags=WITHOUT_END) + reset(1) + data(1, TEST)),
    # 5.3.1 dependencies
    ("HEADERS of a stream that depends on itself", "PROTOCOL_ERROR", "http2/5.3.1/1",
     frame(HEADERS, LAST_HEADERS | HAS_PRIORITY, 1, b"\0\0\0\1\0" + block(*CALL))),
    ("PRIORITY of an open stream on itself", "PROTOCOL_ERROR", "",
     headers(1, flags=WITHOUT_END) + priority(1, 1)),
    ("trailers of a stream that depends on itself", "PROTOCOL_ERROR", "",
     headers(1, flags=WITHOUT_END)
     + frame(HEADERS, LAST_HEADERS | HAS_PRIORITY, 1, b"\0\0\0\1\0" + block((b"a", b"b")))),
    # 6.9 windows
    ("a stream's window that grows by nothing", "PROTOCOL_ERROR", "http2/6.9/2",
     headers(1, flags=WITHOUT_END) + window_update(1, 0)),
    ("a stream's window above the largest", "FLOW_CONTROL_ERROR", "http2/6.9.1/3",
     headers(1, flags=WITHOUT_END) + window_update(1, 2**31 - 1) * 2),
    # 8.1 messages
    ("trailers that do not end the stream", "PROTOCOL_ERROR", "http2/8.1/1",
     headers(1, flags=WITHOUT_END) + data(1, TEST)
     + frame(HEADERS, END_HEADERS, 1, block((b"a", b"b")))),
    ("more data than content-length says", "PROTOCOL_ERROR", "http2/8.1.2.6/1",
     headers(1, (b"content-length", b"1"), flags=WITHOUT_END) + data(1, TEST, END_STREAM)),
    ("less data than content-length says, in two frames", "PROTOCOL_ERROR", "http2/8.1.2.6/2",
     headers(1, (b"content-length", b"99"), flags=WITHOUT_END)
     + data(1, TEST) + data(1, TEST, END_STREAM)),
    ("no data although content-length says so", "PROTOCOL_ERROR", "",
     headers(1, (b"content-length", b"1"))),
    ("two content-lengths", "PROTOCOL_ERROR", "",
     headers(1, (b"content-length", b"1"), (b"content-length", b"2"))),
    ("a content-length that is no number", "PROTOCOL_ERROR", "",
     headers(1, (b"content-length", b"+1"))),
    # 8.2 fields
    ("a name in capitals", "PROTOCOL_ERROR", "http2/8.1.2/1", headers(1, (b"X-TEST", b"ok"))),
    ("an empty name", "PROTOCOL_ERROR", "", headers(1, (b"", b"ok"))),
    ("a space in a name", "PROTOCOL_ERROR", "", headers(1, (b"x test", b"ok"))),
    ("a colon in a name", "PROTOCOL_ERROR", "", headers(1, (b"x:test", b"ok"))),
    ("a byte above ASCII in a name", "PROTOCOL_ERROR", "", headers(1, (b"x\xff", b"ok"))),
    ("a zero in a value", "PROTOCOL_ERROR", "", headers(1, (b"x", b"o\0k"))),
    ("a line's end in a value", "PROTOCOL_ERROR", "", headers(1, (b"x", b"o\nk"))),
    ("a carriage's return in a value", "PROTOCOL_ERROR", "", headers(1, (b"x", b"o\rk"))),
    ("a space before a value", "PROTOCOL_ERROR", "", headers(1, (b"x", b" ok"))),
    ("a tabulator after a value", "PROTOCOL_ERROR", "", headers(1, (b"x", b"ok\t"))),
    ("a line's end in a path", "PROTOCOL_ERROR", "", headers(1, call=changed(path=b"/a\r\nb"))),
    ("the field connection", "PROTOCOL_ERROR", "http2/8.1.2.2/1",
     headers(1, (b"connection", b"keep-alive"))),
    ("the field transfer-encoding", "PROTOCOL_ERROR", "",
     headers(1, (b"transfer-encoding", b"chunked"))),
    ("the field upgrade", "PROTOCOL_ERROR", "", headers(1, (b"upgrade", b"h2c"))),
    ("the field keep-alive", "PROTOCOL_ERROR", "", headers(1, (b"keep-alive", b"1"))),
    ("the field proxy-connection", "PROTOCOL_ERROR", "", headers(1, (b"proxy-connection", b"a"))),
    ("te other than trailers", "PROTOCOL_ERROR", "http2/8.1.2.2/2",
     headers(1, (b"te", b"trailers, deflate"))),
    # 8.3 pseudo-header fields
    ("an unknown pseudo-header field", "PROTOCOL_ERROR", "http2/8.1.2.1/1",
     headers(1, call=((b":test", b"ok"), *CALL))),
    ("a pseudo-header field of responses", "PROTOCOL_ERROR", "http2/8.1.2.1/2",
     headers(1, call=((b":status", b"200"), *CALL))),
    ("a pseudo-header field in trailers", "PROTOCOL_ERROR", "http2/8.1.2.1/3",
     headers(1, flags=WITHOUT_END) + data(1, TEST)
     + frame(HEADERS, LAST_HEADERS, 1, block((b":method", b"200")))),
    ("a pseudo-header field after others", "PROTOCOL_ERROR", "http2/8.1.2.1/4",
     headers(1, (b":method", b"POST"), call=CALL[1:])),
    ("an empty path", "PROTOCOL_ERROR", "http2/8.1.2.3/1", headers(1, call=changed(path=b""))),
    ("no method", "PROTOCOL_ERROR", "http2/8.1.2.3/2", headers(1, call=changed(method=None))),
    ("no scheme", "PROTOCOL_ERROR", "http2/8.1.2.3/3", headers(1, call=changed(scheme=None))),
    ("no path", "PROTOCOL_ERROR", "http2/8.1.2.3/4", headers(1, call=changed(path=None))),
    ("two methods", "PROTOCOL_ERROR", "http2/8.1.2.3/5", headers(1, call=(CALL[0], *CALL))),
    ("two schemes", "PROTOCOL_ERROR", "http2/8.1.2.3/6", headers(1, call=(CALL[1], *CALL))),
    ("two paths", "PROTOCOL_ERROR", "http2/8.1.2.3/7", headers(1, call=(CALL[2], *CALL))),
    ("CONNECT with a path", "PROTOCOL_ERROR", "", headers(1, call=changed(method=b"CONNECT"))),
]  # fmt: skip

# What comes after the preface and SETTINGS, and has to be answered: a call on stream 1.
GOOD_CALLS = [
    ("a call", "generic/3.2/1", headers(1)),
    ("a call with padding", "generic/3.2/2",
     frame(HEADERS, LAST_HEADERS | PADDED, 1, b"\4" + block(*CALL) + b"\0" * 4)),
    ("a call with a priority", "generic/3.2/3",
     frame(HEADERS, LAST_HEADERS | HAS_PRIORITY, 1, b"\0\0\0\0\xff" + block(*CALL))),
    ("a call whose padding is all there is behind a priority", "",
     frame(HEADERS, LAST_HEADERS | HAS_PRIORITY | PADDED, 1,
           b"\2" + b"\0" * 5 + block(*CALL) + b"\0" * 2)),
    ("a call in HEADERS and CONTINUATION", "generic/3.10/1",
     frame(HEADERS, END_STREAM, 1, block(*CALL)[:5])
     + frame(CONTINUATION, END_HEADERS, 1, block(*CALL)[5:])),
    ("a call in two CONTINUATION frames", "generic/3.10/2 http2/6.10/1",
     frame(HEADERS, END_STREAM, 1, block(*CALL)[:5])
     + frame(CONTINUATION, 0, 1, block(*CALL)[5:10])
     + frame(CONTINUATION, END_HEADERS, 1, block(*CALL)[10:])),
    ("a message", "generic/3.1/1",
     headers(1, flags=WITHOUT_END) + data(1, TEST, END_STREAM)),
    ("a message in two frames", "generic/3.1/2",
     headers(1, flags=WITHOUT_END) + data(1, TEST[:3]) + data(1, TEST[3:], END_STREAM)),
    ("a message with padding", "generic/3.1/3",
     headers(1, flags=WITHOUT_END)
     + data(1, b"\5" + TEST + b"\0" * 5, END_STREAM | PADDED)),
    ("a message as large as a frame", "http2/4.2/1",
     headers(1, flags=WITHOUT_END) + data(1, message(b"x" * (16_384 - 5)), END_STREAM)),
    ("an end in an empty frame", "",
     headers(1, flags=WITHOUT_END) + data(1, TEST) + data(1, b"", END_STREAM)),
    ("trailers", "generic/4/4",
     headers(1, flags=WITHOUT_END) + data(1, TEST)
     + frame(HEADERS, LAST_HEADERS, 1, block((b"x-test", b"ok")))),
    ("data as long as announced", "",
     headers(1, (b"content-length", b"9"), flags=WITHOUT_END) + data(1, TEST, END_STREAM)),
    ("PRIORITY before", "generic/3.3/1", priority(1, 0, 0) + headers(1)),
    ("PRIORITY of 256 before", "generic/3.3/2", priority(1, 0, 255) + headers(1)),
    ("PRIORITY on another stream before", "generic/3.3/3", priority(3, 1) + headers(1)),
    ("PRIORITY with exclusion before", "generic/3.3/4", priority(1, 1 << 31) + headers(1)),
    ("PRIORITY of a higher stream before", "generic/3.3/5", priority(5) + headers(1)),
    ("WINDOW_UPDATE after", "generic/3.9/2", headers(1) + window_update(1, 1)),
    ("an unknown frame before", "", frame(0xFA, 0xFF, 7, b"headrace") + headers(1)),
    ("the reserved bit of a stream's number", "http2/4.1/3",
     frame(HEADERS, LAST_HEADERS, 1 | 1 << 31, block(*CALL))),
    ("flags without a meaning", "http2/4.1/2",
     frame(HEADERS, LAST_HEADERS | 0xD2, 1, block(*CALL))),
]  # fmt: skip

# What comes after the preface and SETTINGS and changes nothing: a PING after it is answered.
HARMLESS = [
    ("nothing", "generic/3.7/1 http2/6.7/1", b""),
    ("PRIORITY on an idle stream", "generic/2/1", priority(1)),
    ("a call that is reset", "generic/2/4 generic/3.4/1",
     headers(1, flags=WITHOUT_END) + reset(1)),
    ("PRIORITY on a closed stream", "generic/2/5", headers(1) + priority(1)),
    ("WINDOW_UPDATE on a closed stream", "", headers(1) + window_update(1, 1)),
    ("RST_STREAM on a closed stream", "", headers(1) + reset(1)),
    ("a window that grows", "generic/3.9/1", window_update(0, 1)),
    ("an unknown frame", "http2/4.1/1 http2/5.5/1", frame(0x16, payload=b"headrace")),
    ("a large unknown frame on a stream", "", frame(0xFF, 0xFF, 99, b"x" * 16_384)),
    ("an unknown setting", "http2/6.5.2/5", settings((0xFF, 1))),
    ("an answer to no PING", "http2/6.7/2", frame(PING, ACK, 0, b"elsewhere"[:8])),
    ("an agreement with SETTINGS", "", frame(SETTINGS, ACK)),
    ("GOAWAY", "generic/3.8/1", frame(GOAWAY, 0, 0, b"\0" * 8 + b"h2spec")),
    ("GOAWAY with an unknown code", "http2/7/1", frame(GOAWAY, 0, 0, number(0) + number(255))),
    ("RST_STREAM with an unknown code", "http2/7/2",
     headers(1, flags=WITHOUT_END) + frame(RST_STREAM, 0, 1, number(255))),
    ("all settings", "generic/3.5/1",
     settings((1, 4096), (2, 1), (3, 100), (4, 65_535), (5, 16_384), (6, 4096))),
]  # fmt: skip


def ids(rows: Sequence[tuple[object, ...]]) -> list[str]:
    return [str(row[0]) for row in rows]


def pieces(size: int, what: bytes) -> list[bytes]:
    return [what[at : at + size] for at in range(0, len(what), size)]


@pytest.mark.parametrize("size", [1, 7, 1 << 20], ids="in pieces of {}".format)
@pytest.mark.parametrize(
    ("_", "code", "_case", "sent"), CONNECTION_ERRORS, ids=ids(CONNECTION_ERRORS)
)
def test_a_connection_ends_with_the_reason(
    _: str, code: str, _case: str, sent: bytes, size: int
) -> None:
    server = Server(LIMITS)
    for each in pieces(size, sent):
        server.serve(each)
    last = server.sent()[-1]
    assert (last.kind, last.stream, last.code) == (GOAWAY, 0, code)
    assert server.fault == code
    assert not server.wire.streams


@pytest.mark.parametrize("size", [1, 7, 1 << 20], ids="in pieces of {}".format)
@pytest.mark.parametrize(("_", "code", "_case", "sent"), STREAM_ERRORS, ids=ids(STREAM_ERRORS))
def test_a_stream_ends_with_the_reason_and_others_go_on(
    _: str, code: str, _case: str, sent: bytes, size: int
) -> None:
    server = Server(LIMITS)
    # The call is not answered, so that its stream is open or half closed.
    for each in pieces(size, sent):
        server.read(each)
    resets = [each for each in server.sent() if each.kind == RST_STREAM]
    assert [(each.stream, each.code) for each in resets] == [(1, code)]
    assert not server.wire.streams
    server.serve(headers(3))
    assert [each.stream for each in server.sent()] == [3, 3, 3]


@pytest.mark.parametrize("size", [1, 7, 1 << 20], ids="in pieces of {}".format)
@pytest.mark.parametrize(("_", "_case", "sent"), GOOD_CALLS, ids=ids(GOOD_CALLS))
def test_a_good_call_is_answered(_: str, _case: str, sent: bytes, size: int) -> None:
    server = Server(LIMITS)
    for each in pieces(size, sent):
        server.serve(each)
    kinds = [(each.kind, each.flags, each.stream) for each in server.sent()]
    assert kinds == [(HEADERS, END_HEADERS, 1), (DATA, 0, 1), (HEADERS, LAST_HEADERS, 1)]
    assert server.fault is None


@pytest.mark.parametrize(("_", "_case", "sent"), HARMLESS, ids=ids(HARMLESS))
def test_a_ping_is_answered_after_something_harmless(_: str, _case: str, sent: bytes) -> None:
    server = Server(LIMITS)
    server.serve(sent)
    server.sent()
    server.serve(PING_FRAME)
    assert server.sent() == [Frame(PING, ACK, 0, b"headrace")]
    assert server.fault is None


# -- 3.4 the preface --


def test_a_server_sends_settings_first() -> None:
    """h2spec http2/3.5/1, generic/1/1."""
    server = End(LIMITS)
    first, *rest = server.sent()
    assert (first.kind, first.flags, first.stream) == (SETTINGS, 0, 0)
    assert dict(struct.iter_unpack(">HI", first.payload)) == {
        MAX_STREAMS: 100,
        WINDOW: 1 << 20,
        MAX_FRAME: 16_384,
        MAX_LIST: 24 << 10,
    }
    assert [each.kind for each in rest] == [WINDOW_UPDATE]


@pytest.mark.parametrize("sent", [b"INVALID CONNECTION PREFACE\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 100])
def test_another_preface_ends_the_connection(sent: bytes, size: int) -> None:
    """h2spec http2/3.5/2."""
    server = End(LIMITS)
    for each in pieces(size, sent):
        server.read(each)
    assert server.fault == "PROTOCOL_ERROR"


def test_another_preface_is_found_by_its_first_wrong_byte() -> None:
    server = End(LIMITS)
    server.read(b"PRI * HTTP/2.0\r\n")
    assert server.fault is None
    server.read(b"H")
    assert server.fault == "PROTOCOL_ERROR"


@pytest.mark.parametrize("first", [PING_FRAME, frame(SETTINGS, ACK), headers(1), frame(0xFA)])
def test_settings_have_to_be_the_first_frame(first: bytes) -> None:
    server = End(LIMITS)
    server.read(PREFACE, first)
    assert server.fault == "PROTOCOL_ERROR"


def test_half_a_preface_and_half_a_frame_wait_for_the_rest() -> None:
    server = End(LIMITS)
    for each in pieces(1, PREFACE + settings()):
        server.read(each)
    assert server.sent()[-1] == Frame(SETTINGS, ACK, 0, b"")


# -- 5.1 closed streams --


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (headers(1), "STREAM_CLOSED"),  # http2/5.1/12
        (frame(CONTINUATION, END_HEADERS, 1), "PROTOCOL_ERROR"),  # http2/5.1/13
    ],
    ids=["HEADERS", "CONTINUATION"],
)
def test_a_header_block_on_a_closed_stream_ends_the_connection(sent: bytes, code: str) -> None:
    server = Server()
    server.serve(headers(1))
    server.read(sent)
    assert server.fault == code


def test_data_on_a_closed_stream_are_told_to_be_so_once() -> None:
    """h2spec http2/5.1/11."""
    server = Server()
    server.serve(headers(1))
    server.sent()
    for _ in range(3):
        server.read(data(1, TEST))
    assert [(each.stream, each.code) for each in server.sent()] == [(1, "STREAM_CLOSED")]
    assert server.fault is None


# -- 5.1.2 how many streams --


def test_a_stream_beyond_the_limit_is_refused_and_may_be_repeated() -> None:
    """h2spec http2/5.1.2/1."""
    server = Server(ConnectionLimits(streams=2))
    server.read(headers(1), headers(3))
    events = server.read(headers(5))
    assert events == []
    assert [(each.stream, each.code) for each in server.sent()] == [(5, "REFUSED_STREAM")]


def test_a_stream_counts_until_its_answer_has_left() -> None:
    server = Server(ConnectionLimits(streams=1))
    server.read(settings((WINDOW, 0)))
    server.serve(headers(1))
    server.serve(headers(3))
    assert [each.code for each in server.sent() if each.kind == RST_STREAM] == ["REFUSED_STREAM"]
    server.read(window_update(1, 5))
    assert [each.kind for each in server.sent()] == [DATA, HEADERS]
    server.serve(headers(5))
    assert [each.stream for each in server.sent()] == [5]


# -- 5.4.1 errors of connections --


def test_nothing_is_read_after_a_fault() -> None:
    """h2spec http2/5.4.1/1 and 2: GOAWAY comes, and the owner closes the connection."""
    server = Server()
    server.read(headers(1, flags=WITHOUT_END))
    events = server.read(frame(PING, 0, 3, b"headrace"), headers(5))
    (gone,) = server.sent_of(GOAWAY)
    assert gone.payload == number(1) + number(CODES["PROTOCOL_ERROR"]) + b"PING on a stream"
    assert [type(each) for each in events] == [Reset]
    assert server.read(headers(7)) == []
    assert server.sent() == []


def test_each_open_stream_is_told_of_a_fault() -> None:
    server = Server()
    streams = [server.open(each) for each in (1, 3, 5)]
    events = server.read(frame(PING, 0, 3, b"headrace"))
    assert [each.stream for each in of(Reset, events)] == streams


# -- 6.5 SETTINGS --


def test_settings_are_agreed_with() -> None:
    """h2spec http2/6.5.3/2."""
    server = Server()
    server.read(settings((MAX_STREAMS, 100)))
    assert server.sent() == [Frame(SETTINGS, ACK, 0, b"")]


def test_settings_are_taken_in_their_order() -> None:
    """h2spec http2/6.5.3/1."""
    server = Server()
    server.serve(settings((WINDOW, 100), (WINDOW, 1)), headers(1, call=PLAIN_CALL))
    assert [len(each.payload) for each in server.sent_of(DATA)] == [1]


def test_an_agreement_with_settings_is_noted() -> None:
    server = Server()
    assert not server.wire.is_acknowledged
    server.read(frame(SETTINGS, ACK))
    assert server.wire.is_acknowledged


def test_frames_keep_to_the_peers_size() -> None:
    server = Server()
    server.read(settings((MAX_FRAME, 20_000), (WINDOW, 1 << 20)), window_update(0, 1 << 20))
    server.sent()
    stream = server.open(1, end=True)
    server.wire.answer(stream, b"x" * 50_000)
    assert [len(each.payload) for each in server.sent_of(DATA)] == [20_000, 20_000, 10_005]


# -- 6.7 PING, 6.8 GOAWAY --


def test_a_ping_is_answered_with_its_payload() -> None:
    server = Server()
    server.read(frame(PING, payload=b"12345678"), frame(PING, ACK, 0, b"87654321"))
    assert server.sent() == [Frame(PING, ACK, 0, b"12345678")]


def test_a_goaway_is_told_with_its_reason() -> None:
    server = Server()
    (gone,) = server.read(frame(GOAWAY, 0, 0, number(7) + number(11) + b"too_many_pings"))
    assert gone == GoneAway(7, 11, "too_many_pings")


def test_draining_names_the_largest_stream_first_and_then_the_last() -> None:
    server = Server()
    server.open(1)
    server.wire.go_away()
    gone, ping = server.sent()
    assert gone.payload[:4] == number(2**31 - 1)
    assert gone.code == "NO_ERROR"
    assert ping.kind == PING
    server.open(3)  # on its way when the peer had not read that yet
    server.read(frame(PING, ACK, 0, ping.payload))
    (last,) = server.sent()
    assert last.payload[:4] == number(3)


def test_streams_after_the_last_one_are_ignored_whatever_comes_on_them() -> None:
    server = Server()
    server.open(1)
    server.wire.go_away()
    server.wire.finish_going()
    server.sent()
    ignored = (
        headers(3, flags=WITHOUT_END)
        + data(3, TEST)
        + window_update(3, 1)
        + frame(HEADERS, LAST_HEADERS, 3, block((b"a", b"b")))
        + headers(5, flags=WITHOUT_END)
        + reset(5)
    )
    assert server.read(ignored) == []
    assert server.sent() == []
    assert server.fault is None
    assert [type(each) for each in server.read(data(1, TEST, END_STREAM))] == [
        MessageReceived,
        StreamEnded,
    ]


def test_the_last_stream_of_a_goaway_never_grows() -> None:
    server = Server()
    server.open(1)
    server.wire.finish_going()
    server.read(headers(7), frame(PING, 0, 1, b"headrace"))
    gone = server.sent_of(GOAWAY)
    assert [each.payload[:4] for each in gone] == [number(1), number(1)]


# -- 6.9 flow control --


def test_data_wait_for_the_streams_window() -> None:
    """h2spec http2/6.9.1/1, generic/2/2."""
    server = Server()
    server.serve(settings((WINDOW, 1)), headers(1, call=PLAIN_CALL))
    assert [len(each.payload) for each in server.sent_of(DATA)] == [1]
    server.read(window_update(1, 3))
    assert [len(each.payload) for each in server.sent_of(DATA)] == [3]
    server.read(window_update(1, 1000))
    (rest,) = server.sent()
    assert rest == Frame(DATA, END_STREAM, 1, PLAIN[4:])


def test_a_priority_for_a_stream_that_waits_changes_nothing() -> None:
    """h2spec generic/2/3."""
    server = Server()
    server.serve(settings((WINDOW, 0)), headers(1, call=PLAIN_CALL))
    server.read(priority(1), window_update(1, 1))
    assert [len(each.payload) for each in server.sent_of(DATA)] == [1]


def test_a_changed_first_window_changes_open_streams() -> None:
    """h2spec http2/6.9.2/1."""
    server = Server()
    server.serve(settings((WINDOW, 0)), headers(1, call=PLAIN_CALL))
    assert server.sent_of(DATA) == []
    server.read(settings((WINDOW, 1)))
    assert [len(each.payload) for each in server.sent_of(DATA)] == [1]


def test_a_window_may_become_negative() -> None:
    """h2spec http2/6.9.2/2."""
    server = Server()
    server.serve(settings((WINDOW, 3)), headers(1, call=PLAIN_CALL))
    assert [len(each.payload) for each in server.sent_of(DATA)] == [3]
    server.read(settings((WINDOW, 2)), window_update(1, 1))
    assert server.sent_of(DATA) == []
    server.read(window_update(1, 1))
    assert [len(each.payload) for each in server.sent_of(DATA)] == [1]


def test_data_wait_for_the_connections_window() -> None:
    server = Server()
    server.read(settings((WINDOW, 1 << 20)))
    server.sent()
    first, second = server.open(1, end=True), server.open(3, end=True)
    assert not server.wire.answer(first, b"x" * 65_535)
    assert not server.wire.answer(second, b"y" * 5)
    assert sum(len(each.payload) for each in server.sent_of(DATA)) == 65_535
    server.read(window_update(0, 100))
    left = server.sent()
    assert [(each.kind, each.stream) for each in left] == [
        (DATA, 1),
        (HEADERS, 1),
        (DATA, 3),
        (HEADERS, 3),
    ]


def test_a_message_that_shall_go_whole_or_not_at_all_waits_for_no_window() -> None:
    server = Server()
    stream = server.open(1)
    server.wire.send_head(stream)
    server.sent()
    assert not server.wire.send_message(stream, b"x" * 65_531, whole=True)
    assert server.sent() == []
    assert server.wire.send_message(stream, b"x" * 65_530, whole=True)
    assert sum(len(each.payload) for each in server.sent_of(DATA)) == 65_535
    assert not server.wire.send_message(stream, b"", whole=True)


def test_a_message_that_shall_go_whole_is_taken_once_however_large_it_is() -> None:
    server = Server()
    server.read(settings((WINDOW, 8 << 20)), window_update(0, 8 << 20))
    stream = server.open(1)
    server.wire.send_head(stream)
    server.sent()
    size = 3 << 20
    assert server.wire.send_message(stream, b"x" * size, whole=True)
    sent = 0
    while server.wire.has_more:
        server.wire.flush([])
        sent += sum(len(each.payload) for each in server.sent_of(DATA))
    assert sent == size + 5


def test_more_data_than_the_connections_window_end_the_connection() -> None:
    server = Server(ConnectionLimits(connection_bytes=65_535, window_bytes=1 << 20))
    server.open(1)
    server.read(data(1, message(b"x" * 65_531)))
    assert server.fault == "FLOW_CONTROL_ERROR"


def test_more_data_than_a_streams_window_end_the_stream() -> None:
    server = Server(ConnectionLimits(window_bytes=65_535))
    server.open(1)
    server.read(data(1, message(b"x" * 65_531)))
    assert [each.code for each in server.sent_of(RST_STREAM)] == ["FLOW_CONTROL_ERROR"]


def test_padding_counts_for_flow_control() -> None:
    server = Server(ConnectionLimits(connection_bytes=65_535))
    stream = server.open(1)
    padded = data(1, b"\xff" + b"\0" * 255, PADDED)
    for _ in range(128):
        server.read(padded)
    assert stream.receive_window == (1 << 20) - 128 * 256
    given = server.sent_of(WINDOW_UPDATE)
    assert sum(int.from_bytes(each.payload, "big") for each in given) == 128 * 256


def test_an_unknown_frame_does_not_count_for_flow_control() -> None:
    server = Server(ConnectionLimits(connection_bytes=65_535))
    for _ in range(100):
        server.read(frame(0xFA, payload=b"x" * 16_384))
    assert server.sent() == []


def test_data_that_nobody_wants_count_for_the_connections_window() -> None:
    server = Server(ConnectionLimits(connection_bytes=65_535))
    stream = server.open(1)
    server.wire.reset(stream)
    server.sent()
    server.read(data(1, b"x" * 40_000))
    (given,) = server.sent()
    assert given == Frame(WINDOW_UPDATE, 0, 0, number(40_000))


# -- 8.1 messages --


def test_a_response_before_the_end_of_its_call_asks_the_client_to_stop() -> None:
    server = Server()
    stream = server.open(1)
    server.wire.finish(stream)
    kinds = [(each.kind, each.flags) for each in server.sent()]
    assert kinds == [(HEADERS, LAST_HEADERS), (RST_STREAM, 0)]
    assert server.read(data(1, TEST), data(1, TEST, END_STREAM)) == []
    assert server.sent() == []


def test_a_request_that_is_no_call_gets_a_whole_answer() -> None:
    """h2spec generic/4/1 to 3."""
    for method in (b"GET", b"HEAD", b"POST"):
        server = Server()
        events = server.serve(headers(1, call=((b":method", method), *PLAIN_CALL[1:])))
        assert of(CallOpened, events)[0].head.http is not None
        assert [each.flags for each in server.sent()] == [END_HEADERS, END_STREAM]


def test_a_request_that_is_no_call_is_told_when_it_has_ended_or_is_long() -> None:
    server = Server()
    assert server.read(headers(1, call=PLAIN_CALL, flags=WITHOUT_END), data(1, b"{")) == []
    events = server.read(data(1, b"}", END_STREAM))
    assert [type(each) for each in events] == [CallOpened, StreamEnded]
    long = data(3, b" " * 16_384)
    assert server.read(headers(3, call=PLAIN_CALL, flags=WITHOUT_END), long, long) == []
    assert [type(each) for each in server.read(long, long)] == [CallOpened]


def test_a_wrong_content_length_of_a_request_that_is_no_call_is_told() -> None:
    """h2spec http2/8.1.2.6/1."""
    server = Server()
    server.serve(headers(1, (b"content-length", b"1"), call=PLAIN_CALL, flags=WITHOUT_END))
    server.serve(data(1, b"test", END_STREAM))
    assert [(each.kind, each.code) for each in server.sent()] == [(RST_STREAM, "PROTOCOL_ERROR")]


def test_content_length_that_is_exceeded_ends_the_stream_at_once() -> None:
    server = Server()
    server.open(1, (b"content-length", b"4"))
    (event,) = server.read(data(1, TEST))
    assert isinstance(event, Reset)
    assert [each.code for each in server.sent()] == ["PROTOCOL_ERROR"]


def test_a_list_of_fields_that_is_too_large_refuses_its_call_alone() -> None:
    server = Server(ConnectionLimits(header_bytes=1000))
    more = [(b"x-%d" % each, b"y" * 100) for each in range(10)]
    assert server.read(headers(1, *more)) == []
    (answer,) = server.sent()
    assert (answer.kind, answer.flags, answer.stream) == (HEADERS, LAST_HEADERS, 1)
    assert b"grpc-status\x018" in answer.payload
    server.serve(headers(3))
    assert len(server.sent()) == 3
