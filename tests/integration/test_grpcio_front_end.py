"""What is peculiar to the front end of grpcio."""

from __future__ import annotations

import socket
from contextlib import closing

from headrace.http2 import frames
from headrace.http2.blocks import block
from tests.integration.harness import BASIC, CALL_SECONDS, Server

# gRPC's own fields, and a path that is not UTF-8.
CALL = b"\x83\x86" + block(
    [
        (b":path", b"/\xff"),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
)


def test_a_server_ends_well() -> None:
    with Server(*BASIC, "--front-end", "grpcio") as server:
        assert server.stop() == 0
        assert "Traceback" not in server.log(), server.log()


def test_a_server_whose_port_is_lost_ends_and_says_so() -> None:
    with Server(*BASIC, "--front-end", "grpcio") as server:
        host, _, port = server.address.rpartition(":")
        with closing(socket.create_connection((host, int(port)), CALL_SECONDS)) as client:
            client.sendall(
                frames.PREFACE
                + frames.settings({})
                + frames.frame(frames.HEADERS, frames.LAST_HEADERS, 1, CALL)
            )
            assert server.process.wait(CALL_SECONDS) == 1
        assert "takes no more calls" in server.log()
