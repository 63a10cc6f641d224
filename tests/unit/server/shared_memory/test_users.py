"""A connection from this machine belongs to the user who made it, any other one to nobody."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from headrace.server.shared_memory import users as module
from headrace.server.shared_memory.users import Users, peer_of

FAMILIES = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
SOMEBODY = 12345
CHILD = """
import encodings.idna, os, socket, sys
os.setuid(int(sys.argv[1]))
with socket.create_connection((sys.argv[2], int(sys.argv[3]))) as made:
    sys.stdin.read()
"""


@contextmanager
def listening(family: int = socket.AF_INET, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen()
        listener.settimeout(30.0)
        yield listener


def connected(listener: socket.socket, stack: ExitStack) -> str:
    """The peer of a new connection to the listener, both of whose ends are this process's."""
    client = stack.enter_context(socket.create_connection(listener.getsockname()[:2]))
    accepted = stack.enter_context(listener.accept()[0])
    assert accepted.getpeername() == client.getsockname()
    return peer_of(*client.getsockname()[:2])


@pytest.mark.parametrize(("family", "host"), FAMILIES)
def test_a_client_of_this_machine_has_a_user(family: int, host: str) -> None:
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(listening(family, host))
        except OSError as error:
            pytest.skip(str(error))
        peer = connected(listener, stack)
        assert asyncio.run(Users().of(peer)) == os.getuid()


def test_a_client_that_maps_ipv4_into_ipv6_has_a_user() -> None:
    """As gRPC does, on both sides."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_INET6))
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::ffff:127.0.0.1", 0))
        listener.listen()
        listener.settimeout(30.0)
        client = stack.enter_context(socket.socket(socket.AF_INET6))
        client.connect(("::ffff:127.0.0.1", listener.getsockname()[1]))
        stack.enter_context(listener.accept()[0])
        peer = peer_of("127.0.0.1", client.getsockname()[1])
        assert asyncio.run(Users().of(peer)) == os.getuid()


@pytest.mark.skipif(os.getuid() != 0, reason="only root takes another user's place")
def test_another_user_is_told_from_one_s_own() -> None:
    with listening() as listener:
        host, port = listener.getsockname()
        command = [sys.executable, "-c", CHILD, str(SOMEBODY), host, str(port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
            accepted, address = listener.accept()
            with accepted:
                assert asyncio.run(Users().of(peer_of(*address))) == SOMEBODY
                assert child.stdin is not None
                child.stdin.close()


@pytest.mark.parametrize(
    "peer",
    [
        *("", "unix:", "unix:/run/x", "ipv4:10.1.2.3:5000", "ipv6:%5Bfe80::1%5D:5000", "ipv4:x:1"),
        *("ipv4:127.0.0.1", "ipv4:127.0.0.1:x", "ipv4:127.0.0.1:1", "vsock:2:1"),
    ],
)
def test_whoever_has_no_socket_here_has_no_user(peer: str) -> None:
    assert asyncio.run(Users().of(peer)) is None


def test_a_user_who_has_no_number_here_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """All such users look alike."""
    with listening() as listener, ExitStack() as stack:
        peer = connected(listener, stack)
        monkeypatch.setattr(module, "_unmapped_user", os.getuid)
        assert asyncio.run(Users().of(peer)) is None


def test_a_port_that_two_connections_come_from_belongs_to_nobody() -> None:
    """They may be two users', and only one of them asks."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(listening()) for _ in range(2)]
        port = 0
        for listener in listeners:
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(("127.0.0.1", port))
            port = client.getsockname()[1]
            client.connect(listener.getsockname())
            stack.enter_context(listener.accept()[0])
        assert asyncio.run(Users().of(peer_of("127.0.0.1", port))) is None


def test_a_peer_is_asked_for_again_once_its_connection_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its address may be another user's by then."""
    looked_up = []
    look_up = module._look_up

    def count(peer: module.Address) -> object:
        looked_up.append(peer)
        return look_up(peer)

    monkeypatch.setattr(module, "_look_up", count)

    async def run() -> None:
        users = Users()
        with listening() as listener:
            with ExitStack() as stack:
                peer = connected(listener, stack)
                assert await users.of(peer) == os.getuid()
                assert await users.of(peer) == os.getuid()
                assert len(looked_up) == 1
            with ExitStack() as stack:  # takes the same descriptors
                connected(listener, stack)
                assert await users.of(peer) is None
                assert len(looked_up) == 2

    asyncio.run(run())


def test_as_many_peers_are_kept_as_connections_are_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 3)

    async def run() -> None:
        users = Users()
        with listening() as listener, ExitStack() as stack:
            for _ in range(6):
                assert await users.of(connected(listener, stack)) == os.getuid()
            assert len(users._known) == 3

    asyncio.run(run())
