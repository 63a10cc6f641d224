"""Which connections end because their clients take too many, or never show who they are."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headrace.server.transport.connections import Connections
from headrace.server.transport.strangers import Connected, Strangers, unwanted

A, B = "ipv4:10.0.0.1:", "ipv6:%5B::2%5D:"


def test_a_connection_without_a_credential_ends_when_its_time_is_up() -> None:
    connected = [Connected(f"{A}{port}", since) for port, since in ((1, 0.0), (2, 0.0), (3, 9.0))]
    ends = unwanted(connected, {f"{A}2"}, 10.5, per_address=9, stranger_seconds=10)
    assert ends == {f"{A}1": "no valid credential within 10 seconds"}


def test_without_access_control_nobody_needs_a_credential() -> None:
    connected = [Connected(f"{A}1", 0.0)]
    assert unwanted(connected, set(), 1e9, per_address=1, stranger_seconds=None) == {}


def test_an_address_keeps_its_first_connections_and_those_with_a_credential() -> None:
    connected = [Connected(f"{A}{port}", float(port)) for port in range(1, 6)]
    ends = unwanted(connected, {f"{A}5"}, 6.0, per_address=3, stranger_seconds=None)
    assert set(ends) == {f"{A}3", f"{A}4"}


def test_each_address_has_a_bound_of_its_own() -> None:
    connected = [Connected(f"{each}{port}", 0.0) for each in (A, B) for port in range(3)]
    assert unwanted(connected, set(), 1.0, per_address=3, stranger_seconds=None) == {}


def of_user(user: int, process: int, count: int, since: float = 0.0) -> list[Connected]:
    """Connections at a Unix socket."""
    return [
        Connected(f"unix:{user}:{process}:{process * 100 + inode}", since + inode)
        for inode in range(count)
    ]


def test_a_user_with_many_processes_leaves_room_for_other_users() -> None:
    connected = [each for process in range(1, 6) for each in of_user(7, process, 4, process)]
    other = of_user(8, 99, 10, 50.0)
    ends = unwanted([*connected, *other], set(), 60.0, per_address=16, stranger_seconds=None)
    assert ends == dict.fromkeys(
        (each.peer for each in sorted(connected, key=lambda each: each.since)[16:]),
        "more than 16 connections of one user",
    )


def test_a_process_leaves_room_for_the_others_of_its_user() -> None:
    connected = [*of_user(7, 1, 20), *of_user(7, 2, 2, 50.0)]
    met = {connected[19].peer}
    ends = unwanted(connected, met, 60.0, per_address=16, stranger_seconds=None)
    assert ends == dict.fromkeys(
        (each.peer for each in connected[13:19]), "more than 14 connections of one process"
    )


def test_a_process_leaves_room_at_a_unix_socket() -> None:
    with ExitStack() as stack:
        path = f"{stack.enter_context(tempfile.TemporaryDirectory())}/s"
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen()
        strangers, connections = Strangers(3, None), Connections(path)
        clients = []
        for _ in range(3):
            clients.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            clients[-1].connect(path)
            stack.enter_context(listener.accept()[0])
            strangers.look(connections)
        assert strangers.connections == 3
        assert clients[2].recv(1) == b"", "the latest goes"
        for kept in clients[:2]:
            kept.setblocking(False)
            with pytest.raises(BlockingIOError):
                kept.recv(1)


class Port:
    """A listening socket in this process, and its clients."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.number: int = self._listener.getsockname()[1]

    def connect(self) -> tuple[str, socket.socket]:
        """The client's name as gRPC writes it, and the client."""
        client = socket.create_connection(("127.0.0.1", self.number), 10)
        self._stack.enter_context(client)
        self._stack.enter_context(self._listener.accept()[0])
        return f"ipv4:127.0.0.1:{client.getsockname()[1]}", client


@pytest.fixture
def port() -> Iterator[Port]:
    with ExitStack() as stack:
        yield Port(stack)


def test_connections_are_listed_with_the_time_at_which_they_were_first_seen(port: Port) -> None:
    connections = Connections(port.number)
    first, _ = port.connect()
    assert list(connections.look(1.0)) == [(first, 1.0)]
    second, _ = port.connect()
    assert sorted(connections.look(2.0)) == sorted([(first, 1.0), (second, 2.0)])


def test_a_cut_ends_one_connection(port: Port) -> None:
    connections = Connections(port.number)
    (name, client), (other, kept) = port.connect(), port.connect()
    assert len(list(connections.look(1.0))) == 2
    assert connections.cut(name)
    assert client.recv(1) == b""
    assert not connections.cut("ipv4:127.0.0.1:1")
    kept.setblocking(False)
    with pytest.raises(BlockingIOError):
        kept.recv(1)
    assert other


def test_only_those_who_never_showed_a_credential_are_cut(port: Port) -> None:
    times = (1.0, 15.0, 22.0)
    strangers = Strangers(100, 20.0, clock=iter(times).__next__)
    connections = Connections(port.number)
    (known, kept), (_, cut) = port.connect(), port.connect()
    strangers.met(known)
    for _ in times:
        strangers.look(connections)
    assert strangers.connections == 2  # a cut one is open until its client has left, too
    assert cut.recv(1) == b""
    kept.setblocking(False)
    with pytest.raises(BlockingIOError):
        kept.recv(1)


def test_a_peer_that_left_is_forgotten_and_one_that_comes_back_must_show_its_credential_again(
    port: Port,
) -> None:
    strangers = Strangers(100, 20.0)
    strangers.met("ipv4:127.0.0.1:1")
    strangers.look(Connections(port.number))
    assert not strangers._met


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Leaves this process no descriptor."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        # Those below the highest one are taken, because the limit bounds a descriptor's number.
        highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
        while (taken := os.dup(0)) < highest:
            stack.callback(os.close, taken)
        os.close(taken)
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_descriptors_looks_cost_a_line_a_minute(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    strangers, connections = Strangers(100, None, clock=lambda: now[0]), Connections(port.number)
    port.connect()
    with no_descriptors(), caplog.at_level(logging.WARNING):
        for second in range(119):
            now[0] = second
            strangers.try_look(connections)
    assert len(caplog.records) == 2
    for record in caplog.records:
        assert record.exc_info is None
        assert "ulimit -n" in record.getMessage()
    strangers.try_look(connections)
    assert strangers.connections == 1


def test_a_connection_that_came_when_the_last_descriptor_went_is_seen_later(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may take the descriptor in the middle of a look."""
    strangers, connections = Strangers(100, None), Connections(port.number)
    port.connect()

    def full(number: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", full)
        strangers.try_look(connections)
    strangers.try_look(connections)
    assert strangers.connections == 1
