"""The front end on HTTP/2 of our own, over real sockets: what it takes, and from whom no more."""

from __future__ import annotations

import gzip
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing

import grpc
import h2.events
import h2.exceptions
import numpy as np
import pytest

from headrace.client import Client
from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.wire.errors import from_trailing_metadata
from tests.integration.harness import BASIC, CALL_SECONDS, Server, infer_request, until
from tests.support.raw_http2 import METHOD, Raw

pytestmark = pytest.mark.native_front_end("what our own front end does")

INFER = "/headrace.v1.InferenceEngine/Infer"
METHODS = (INFER, "/headrace.v1.InferenceEngine/InferStream", METHOD, "/no.such/Method")
BURST = 100
FREE_RESETS = 1000
MOST_BURSTS = 60
MESSAGE_BYTES = 2 << 20

COPY = Case(
    "copy",
    parse("copy (float[n] x) => (float[n] y) { y = Identity(x) }"),
    {"x": np.ones(3, np.float32)},
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*BASIC, "--max-message-bytes", str(MESSAGE_BYTES)) as running:
        running.load(networks.add(), "CPU")
        running.load(COPY, "CPU")
        yield running
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


def give_up(raw: Raw, count: int, path: str = METHOD) -> None:
    """Resets calls before they can be answered: each leaves together with its reset."""
    for _ in range(count):
        raw.h2.reset_stream(raw.write_headers(path=path))
    raw.flush()


def check(raw: Raw) -> str:
    stream = raw.headers()
    raw.send(stream, b"")
    return raw.status(stream)


@pytest.mark.parametrize("path", METHODS)
def test_who_goes_on_giving_up_calls_at_once_is_ended_and_others_are_served(
    server: Server, path: str
) -> None:
    def attack(raw: Raw) -> int:
        for turn in range(MOST_BURSTS):
            try:
                give_up(raw, BURST, path)
                check(raw)
            except (ConnectionError, h2.exceptions.ProtocolError):
                return turn
        return MOST_BURSTS

    with Raw(server.address) as raw, Client(server.address, timeout=CALL_SECONDS) as client:
        assert FREE_RESETS // BURST < attack(raw) < MOST_BURSTS
        assert client.devices()
    with Raw(server.address) as raw:  # a new connection is served
        assert check(raw) == "0"


def test_who_gives_up_some_calls_is_served(server: Server) -> None:
    with Raw(server.address) as raw:
        give_up(raw, FREE_RESETS)
        assert [check(raw) for _ in range(3)] == ["0"] * 3


def test_who_gives_up_every_second_call_is_served(server: Server) -> None:
    with Raw(server.address) as raw:
        raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2 * FREE_RESETS):
            give_up(raw, 1)
            assert check(raw) == "0"


def test_a_client_that_cancels_calls_is_served(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel:
        method = channel.unary_unary(METHOD)
        for _ in range(FREE_RESETS):
            method.future(b"", timeout=CALL_SECONDS).cancel()
            assert method(b"", timeout=CALL_SECONDS)


def test_pings_end_no_call_however_many_there_are(server: Server) -> None:
    with Raw(server.address) as raw:
        watch = raw.headers(path="/grpc.health.v1.Health/Watch")
        raw.send(watch, b"")
        acknowledged = 0
        for number in range(50):
            raw.h2.ping(number.to_bytes(8, "big"))
            raw.flush()
            found = raw.events(h2.events.PingAckReceived)
            acknowledged += sum(isinstance(each, h2.events.PingAckReceived) for each in found)
        assert (acknowledged, check(raw)) == (50, "0")


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_http_1_gets_a_sentence(server: Server, method: bytes) -> None:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), CALL_SECONDS) as client:
        client.sendall(method + b" /v2/health/ready HTTP/1.1\r\nhost: here\r\n\r\n")
        answer = b""
        while data := client.recv(4096):
            answer += data
    assert answer.startswith(b"HTTP/1.1 415 ")
    assert b"gRPC" in answer
    assert b"HTTP port" in answer


def test_another_protocol_is_told_in_http_2_that_it_is_none(server: Server) -> None:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), CALL_SECONDS) as client:
        client.sendall(b"INVALID CONNECTION PREFACE\r\n\r\n")
        answer = b""
        while data := client.recv(4096):
            answer += data
    assert b"HTTP/1" not in answer
    assert answer.endswith(b"no preface of HTTP/2")


def test_http_2_that_is_not_grpc_gets_a_status_of_http(server: Server) -> None:
    with Raw(server.address) as raw:
        stream = raw.h2.get_next_available_stream_id()
        head = ((":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "here"))
        raw.h2.send_headers(stream, head, end_stream=True)
        raw.flush()
        found = raw.events(h2.events.StreamEnded)
        (response,) = (each for each in found if isinstance(each, h2.events.ResponseReceived))
        assert dict(response.headers or ())[b":status"] == b"415"
        assert check(raw) == "0"


def test_a_message_that_is_too_large_is_refused_at_its_prefix_and_the_others_go_on(
    server: Server,
) -> None:
    with Raw(server.address) as raw:
        stream = raw.headers(path=INFER)
        raw.h2.send_data(stream, struct.pack(">BI", 0, MESSAGE_BYTES + 1) + b"beginning")
        raw.flush()
        assert raw.status(stream) == str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
        assert check(raw) == "0"


def test_a_caller_learns_how_large_a_message_may_be(server: Server) -> None:
    with (
        grpc.insecure_channel(server.address, [("grpc.max_send_message_length", -1)]) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary(INFER)(bytes(MESSAGE_BYTES + 1), timeout=CALL_SECONDS)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    details = from_trailing_metadata(
        caught.value.code(), caught.value.details(), caught.value.trailing_metadata()
    )
    assert str(MESSAGE_BYTES) in details.message


@pytest.mark.parametrize(
    "compression", [grpc.Compression.Gzip, grpc.Compression.Deflate, grpc.Compression.NoCompression]
)
@pytest.mark.parametrize("size", [1, 50_000])
def test_compressed_messages_are_read(
    server: Server, compression: grpc.Compression, size: int
) -> None:
    data = infer_request("copy", {"x": np.ones(size, np.float32)}).SerializeToString()
    with grpc.insecure_channel(server.address, compression=compression) as channel:
        assert channel.unary_unary(INFER)(data, timeout=CALL_SECONDS)


@pytest.mark.parametrize("size", [MESSAGE_BYTES + 1, 32 * MESSAGE_BYTES])
def test_a_message_that_becomes_too_large_is_refused(server: Server, size: int) -> None:
    packed = gzip.compress(bytes(size), 9)
    with Raw(server.address) as raw:
        stream = raw.headers(("grpc-encoding", "gzip"), path=INFER)
        raw.h2.send_data(stream, struct.pack(">BI", 1, len(packed)) + packed, end_stream=True)
        raw.flush()
        assert raw.status(stream) == str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
        assert check(raw) == "0"


def test_an_unknown_compression_is_refused_with_the_known_ones(server: Server) -> None:
    with Raw(server.address) as raw:
        stream = raw.headers(("grpc-encoding", "brotli"), path=INFER)
        assert raw.status(stream) == str(grpc.StatusCode.UNIMPLEMENTED.value[0])


def test_a_call_that_waits_ends_at_its_deadline(server: Server) -> None:
    with closing(server.connect()) as channel:
        stream = channel.stream_stream("/headrace.v1.InferenceEngine/InferStream")
        never = threading.Event()

        def nothing() -> Iterator[bytes]:
            never.wait()
            yield from ()

        call = stream(nothing(), timeout=0.2)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        never.set()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    until(
        lambda: (
            server.total(
                "headrace_grpc_requests_total", method="InferStream", code="DEADLINE_EXCEEDED"
            )
            >= 1
        )
    )


def test_a_large_reply_reaches_a_slow_reader_whole(server: Server) -> None:
    """Its windows let it have some bytes at a time."""
    case = networks.add()
    data = infer_request(case.name, case.inputs).SerializeToString()
    with Raw(server.address) as raw:
        raw.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1})
        raw.flush()
        raw.events(h2.events.SettingsAcknowledged)
        stream = raw.headers(path=INFER)
        raw.send(stream, data)
        received = b""
        while True:
            found = raw.events(h2.events.DataReceived)
            received += b"".join(
                each.data for each in found if isinstance(each, h2.events.DataReceived)
            )
            if any(isinstance(each, h2.events.StreamEnded) for each in found):
                break
            raw.h2.increment_flow_control_window(1, stream)
            raw.flush()
            if len(received) >= 5 and len(received) == 5 + int.from_bytes(received[1:5], "big"):
                assert raw.status(stream) == "0"
                break
    assert len(received) > 5


def test_metadata_of_sixteen_kibibytes_arrive_and_larger_ones_are_refused(server: Server) -> None:
    with closing(server.connect()) as channel:
        method = channel.unary_unary(METHOD)
        assert method(b"", timeout=CALL_SECONDS, metadata=(("k", "x" * (16 << 10)),))
        assert method(b"", timeout=CALL_SECONDS, metadata=(("k-bin", bytes(range(256)) * 8),))
        with pytest.raises(grpc.RpcError) as caught:
            method(b"", timeout=CALL_SECONDS, metadata=(("k", "x" * (40 << 10)),))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_the_front_end_of_grpcio_serves_the_same() -> None:
    case = networks.add()
    with Server(*BASIC, "--front-end", "grpcio") as server:
        server.load(case, "CPU")
        with Client(server.address) as client:
            network = client.network(case.name)
            want = network.infer(case.inputs)
            requests = [network.start_async(case.inputs) for _ in range(50)]
            for each in requests:
                got = each.result()
                assert all(np.array_equal(got[name], want[name]) for name in want)
        assert server.stop() == 0, server.log()


@pytest.mark.parametrize("name", ["InferStream", "ExportNetwork"])
def test_a_stream_whose_time_is_over_before_it_begins_has_a_status(
    server: Server, name: str
) -> None:
    with Raw(server.address) as raw:
        for _ in range(20):
            path = f"/headrace.v1.InferenceEngine/{name}"
            stream = raw.headers(("grpc-timeout", "1n"), path=path)
            assert raw.status(stream) == "4"
