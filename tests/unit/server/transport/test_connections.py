"""The connections of one port are closed from inside the process, and no others."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from headrace.server.transport.connections import cut_connections


def test_clients_of_the_port_see_the_end_after_what_was_written_and_cannot_come_back() -> None:
    with ExitStack() as stack:
        listener, other = (
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)
        )
        address = listener.getsockname()
        clients = [stack.enter_context(socket.create_connection(address)) for _ in range(3)]
        served = [stack.enter_context(listener.accept()[0]) for _ in clients]
        stranger = stack.enter_context(socket.create_connection(other.getsockname()))
        host = stack.enter_context(other.accept()[0])
        for connection in served:
            connection.sendall(b"reply")
        assert cut_connections(address[1]) == 3
        for client in clients:
            assert client.recv(100) == b"reply"
            assert client.recv(100) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        host.sendall(b"still here")
        assert stranger.recv(100) == b"still here"
        socket.create_connection(other.getsockname()).close()


def test_a_port_that_nobody_uses_has_no_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert cut_connections(port) == 0
