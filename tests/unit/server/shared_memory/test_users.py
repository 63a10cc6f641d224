"""A connection from this machine belongs to the user who made it, any other one to nobody."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from headrace.server.shared_memory import users as module
from headrace.server.shared_memory.users import UserLookup

FAMILIES = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
SOMEBODY = 12345
Address = tuple[Any, ...]
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


def connected(listener: socket.socket, stack: ExitStack) -> socket.socket:
    """A new connection to the listener, both of whose ends are this process's."""
    client = stack.enter_context(socket.create_connection(listener.getsockname()[:2]))
    accepted = stack.enter_context(listener.accept()[0])
    assert accepted.getpeername() == client.getsockname()
    return accepted


def user_of(accepted: socket.socket) -> int | None:
    return asyncio.run(UserLookup(accepted.getpeername(), accepted.getsockname()).find())


@pytest.mark.parametrize(("family", "host"), FAMILIES)
def test_a_client_of_this_machine_has_a_user(family: int, host: str) -> None:
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(listening(family, host))
        except OSError as error:
            pytest.skip(str(error))
        assert user_of(connected(listener, stack)) == os.getuid()


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
        assert user_of(stack.enter_context(listener.accept()[0])) == os.getuid()


@pytest.mark.skipif(os.getuid() != 0, reason="only root takes another user's place")
def test_another_user_is_told_from_one_s_own() -> None:
    with listening() as listener:
        host, port = listener.getsockname()
        command = [sys.executable, "-c", CHILD, str(SOMEBODY), host, str(port)]
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE) as child,
            listener.accept()[0] as accepted,
        ):
            assert user_of(accepted) == SOMEBODY
            assert child.stdin is not None
            child.stdin.close()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (("10.1.2.3", 5000), ("10.1.2.4", 9000)),
        (("fe80::1", 5000, 0, 0), ("fe80::2", 9000, 0, 0)),
        (("x", 1), ("127.0.0.1", 1)),
        (("127.0.0.1", 1), ("127.0.0.1", 2)),
        (("", 0), ("", 0)),
    ],
)
def test_whoever_has_no_socket_here_has_no_user(theirs: Address, ours: Address) -> None:
    assert asyncio.run(UserLookup(theirs, ours).find()) is None


def test_a_user_who_has_no_number_here_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """All such users look alike."""
    with listening() as listener, ExitStack() as stack:
        accepted = connected(listener, stack)
        monkeypatch.setattr(module, "_unmapped_user", os.getuid)
        assert user_of(accepted) is None


def test_two_connections_from_one_port_are_told_apart() -> None:
    """They may be two users', and each asks for its own."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(listening()) for _ in range(2)]
        port = 0
        for listener in listeners:
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(("127.0.0.1", port))
            port = client.getsockname()[1]
            client.connect(listener.getsockname())
            accepted = stack.enter_context(listener.accept()[0])
            assert user_of(accepted) == os.getuid()


def test_a_connection_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def look_up(*ends: object) -> int:
        asked.append(ends)
        return 7

    monkeypatch.setattr(module, "_user_of_socket", look_up)

    async def run() -> None:
        lookup = UserLookup(("127.0.0.1", 1), ("127.0.0.1", 2))
        assert [await lookup.find(), await lookup.find()] == [7, 7]

    asyncio.run(run())
    assert len(asked) == 1


def test_calls_that_want_the_user_at_once_wait_for_one_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[object] = []

    def look(*ends: object) -> int:
        looks.append(ends)
        return SOMEBODY

    async def scenario() -> None:
        lookup = UserLookup(("127.0.0.1", 1), ("127.0.0.1", 2))
        waiting = [asyncio.ensure_future(lookup.find()) for _ in range(9)]
        await asyncio.sleep(0)  # all have asked
        waiting.pop().cancel()
        assert await asyncio.gather(*waiting) == [SOMEBODY] * 8

    monkeypatch.setattr(module, "_user_of_socket", look)
    asyncio.run(scenario())
    assert len(looks) == 1


def test_after_a_look_that_failed_the_next_call_looks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[int | Exception] = [MemoryError(), SOMEBODY]

    def look(*_: object) -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def scenario() -> None:
        lookup = UserLookup(("127.0.0.1", 1), ("127.0.0.1", 2))
        with pytest.raises(MemoryError):
            await lookup.find()
        assert await lookup.find() == SOMEBODY

    monkeypatch.setattr(module, "_user_of_socket", look)
    asyncio.run(scenario())


class NoDescriptor:
    """A table of the kernel while the process has no descriptor left."""

    def read_bytes(self) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_server_without_descriptors_does_not_take_a_client_for_one_of_another_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        accepted = connected(stack.enter_context(listening()), stack)
        ends = accepted.getpeername(), accepted.getsockname()

        async def scenario() -> None:
            lookup = UserLookup(*ends)
            with monkeypatch.context() as patched:
                patched.setattr(module, "_TABLES", (NoDescriptor(),))
                with pytest.raises(OSError, match="open files"):
                    await lookup.find()
            assert await lookup.find() == os.getuid()

        asyncio.run(scenario())
