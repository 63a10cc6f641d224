"""A client of gRPC's port that speaks raw HTTP/2, and need not keep its rules."""

from __future__ import annotations

import socket
import ssl
import struct

import h2.config
import h2.connection
import h2.events

from tests.integration.harness import CALL_SECONDS

METHOD = "/grpc.health.v1.Health/Check"


class Raw:
    """A client that speaks HTTP/2 as it likes.

    Args:
        tls: the context of a TLS connection to ``localhost``. Without it, the connection is plain.
    """

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self.socket = socket.create_connection((host, int(port)), CALL_SECONDS)
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        config = h2.config.H2Configuration(client_side=True, validate_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.flush()
        self.events(h2.events.RemoteSettingsChanged)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def headers(self, *more: tuple[str, str], end: bool = False, path: str = METHOD) -> int:
        """Begins a call, and returns the number of its stream."""
        stream = self.write_headers(*more, end=end, path=path)
        self.flush()
        return stream

    def write_headers(self, *more: tuple[str, str], end: bool = False, path: str = METHOD) -> int:
        """The same, but the call begins at the next `flush`."""
        stream = self.h2.get_next_available_stream_id()
        head = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", self.address),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        self.h2.send_headers(stream, [*head, *more], end_stream=end)
        return stream

    def send(self, stream: int, message: bytes) -> None:
        """Sends a call's only message, which is small."""
        self.h2.send_data(stream, struct.pack(">BI", 0, len(message)) + message, end_stream=True)
        self.flush()

    def events(self, kind: type[h2.events.Event]) -> list[h2.events.Event]:
        """Reads until an event of this kind, or the connection's end."""
        found: list[h2.events.Event] = []
        while not any(isinstance(each, kind) for each in found):
            data = self.socket.recv(65536)
            if not data:
                break
            found += self.h2.receive_data(data)
            self.flush()
        return found

    def status(self, stream: int) -> str:
        """The call's status as gRPC writes it, for example 0.

        Raises:
            ConnectionError: the connection has ended before.
        """
        while found := self.events(h2.events.StreamEnded):
            for each in found:
                if isinstance(each, h2.events.TrailersReceived | h2.events.ResponseReceived):
                    headers = dict(each.headers or ())
                    if each.stream_id == stream and b"grpc-status" in headers:
                        return headers[b"grpc-status"].decode()
        raise ConnectionError("the server ended the connection")
