"""What a client may do before anybody knows who it is, over real sockets and raw HTTP/2."""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from grpc_health.v1 import health_pb2

from headrace.client import Client
from tests.integration.harness import BASIC, CALL_SECONDS, Server
from tests.support.certificates import Authority
from tests.support.raw_http2 import Raw

pytestmark = pytest.mark.native_front_end("bounds what strangers may do")

CONNECTIONS = 256  # as `max_connections` for so few calls
STREAMS = 128


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*BASIC, "--max-concurrent-rpcs", "8") as running:
        yield running
        assert running.stop() == 0, running.log()


def test_a_call_of_the_raw_client_works(server: Server) -> None:
    with Raw(server.address) as raw:
        stream = raw.headers()
        raw.h2.send_data(stream, bytes(5), end_stream=True)
        raw.flush()
        assert raw.status(stream) == "0"


def test_most_messages_come_at_once_and_in_one_frame(server: Server) -> None:
    """The sender does not have to wait for the server to ask for the rest."""
    with Raw(server.address) as raw:
        stream = raw.headers()
        message = health_pb2.HealthCheckRequest(service="").SerializeToString()
        field = bytes([0x7A])  # field 15, which nobody knows, with its length and its bytes
        message += field + b"\x80\xa0\x36" + bytes(0x36 << 14 | 0x20 << 7)
        assert len(message) > 850_000
        data = struct.pack(">BI", 0, len(message)) + message
        assert raw.h2.max_outbound_frame_size > len(data)
        raw.h2.send_data(stream, data, end_stream=True)
        raw.flush()
        assert raw.status(stream) == "0"


def test_a_connection_has_so_many_streams_and_no_more(server: Server) -> None:
    with Raw(server.address) as raw:
        assert raw.h2.remote_settings.max_concurrent_streams == STREAMS
        for _ in range(STREAMS):
            raw.headers()
        with pytest.raises(h2.exceptions.TooManyStreamsError):
            raw.headers()


def test_a_client_that_ignores_the_bound_of_streams_is_refused(server: Server) -> None:
    with Raw(server.address) as raw:
        raw.h2.remote_settings[0x3] = 1 << 20  # MAX_CONCURRENT_STREAMS, as if it had not been sent
        raw.h2.remote_settings.acknowledge()
        for _ in range(2 * STREAMS):
            raw.headers()
        ends = raw.events(h2.events.StreamReset)
        assert any(isinstance(each, h2.events.StreamReset) for each in ends)
    with Client(server.address) as client:
        assert client.devices()


@pytest.mark.parametrize("size", [20_000, 200_000])
def test_headers_that_are_too_large_end_their_call(server: Server, size: int) -> None:
    with Raw(server.address) as raw:
        piece = ("x-piece", "x" * 8000)
        try:
            stream = raw.headers(*[piece] * (size // 8000 + 1), end=True)
            assert raw.status(stream) != "0"
        except (h2.exceptions.ProtocolError, ConnectionError):
            pass  # the server has ended the connection
    with Client(server.address) as client:
        assert client.devices()


def test_rapid_resets_do_not_stop_others(server: Server) -> None:
    """Begin a call and reset it, again and again: CVE-2023-44487."""
    with Raw(server.address) as raw, Client(server.address, timeout=CALL_SECONDS) as client:
        for turn in range(2000):
            try:
                raw.h2.reset_stream(raw.headers(end=True))
                raw.flush()
            except (ConnectionError, h2.exceptions.ProtocolError):
                break  # the server has had enough
            if turn % 200 == 0:
                assert client.devices()
        assert client.devices()


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_connections_beyond_the_bound_are_closed_and_an_address_leaves_room(
    server: Server,
) -> None:
    """Silent connections, whose handshake never ends: at most seven eighths stay."""
    host, _, port = server.address.rpartition(":")
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((host, int(port)), CALL_SECONDS))
            for _ in range(CONNECTIONS + 50)
        ]
        end = time.monotonic() + CALL_SECONDS
        with selectors.DefaultSelector() as selector:
            left = set(silent)
            for each in silent:
                selector.register(each, selectors.EVENT_READ)
            while len(left) > CONNECTIONS * 7 // 8 and time.monotonic() < end:
                for key, _ in selector.select(1.0):
                    if not is_open(key.fileobj):  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)
                        left.discard(key.fileobj)
        assert len(left) <= CONNECTIONS * 7 // 8
        with Client(server.address, timeout=CALL_SECONDS) as client:
            assert client.devices()


def test_https_ends_a_handshake_that_takes_too_long_and_bounds_their_number(
    tmp_path: Path,
) -> None:
    authority = Authority()
    certificate, key = authority.server().write(tmp_path, "server")
    files = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with Server(*BASIC, *files) as server, ExitStack() as stack:
        host, _, port = server.http.rpartition(":")
        silent = [
            stack.enter_context(socket.create_connection((host, int(port)), CALL_SECONDS))
            for _ in range(300)
        ]
        # Those without a place end at once, and all others after some seconds.
        assert [each.recv(1) for each in silent] == [b""] * 300
        context = ssl.create_default_context(cafile=authority.write(tmp_path))
        with (
            socket.create_connection((host, int(port)), CALL_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            wrapped.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert wrapped.recv(12) == b"HTTP/1.1 200"
        assert server.stop() == 0, server.log()
