"""A server's socket: who may connect to it, and whose it is."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.runtime.errors import AlreadyExists, InvalidArgument
from headrace.server.transport.unix_socket import (
    MAX_PATH_BYTES,
    Permissions,
    SocketFile,
    owner_of,
)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def path(short_folder: Path) -> Path:
    return short_folder / "h.sock"


def listening(stack: ExitStack, path: str) -> socket.socket:
    made = stack.enter_context(socket.socket(socket.AF_UNIX))
    made.bind(path)
    made.listen()
    return made


def connected(stack: ExitStack, path: Path) -> socket.socket:
    made = stack.enter_context(socket.socket(socket.AF_UNIX))
    made.connect(str(path))
    return made


def test_a_socket_is_at_its_path_with_its_permissions_and_nothing_else_is_left(
    stack: ExitStack, path: Path
) -> None:
    file = SocketFile(path, Permissions(0o620))
    seen: list[int] = []

    def listen(made: str) -> socket.socket:
        seen.append(stat.S_IMODE(Path(made).parent.stat().st_mode))
        return listening(stack, made)

    server = file.place(listen)
    assert seen == [0o700], "nobody else may connect before the permissions are set"
    assert stat.S_IMODE(path.stat().st_mode) == 0o620
    connected(stack, path).sendall(b"hello")
    assert stack.enter_context(server.accept()[0]).recv(9) == b"hello"
    assert {each.name for each in path.parent.iterdir()} == {"h.sock", "h.sock.lock"}
    file.remove()
    file.remove()
    assert list(path.parent.iterdir()) == []


def test_the_group_of_the_file_is_set(stack: ExitStack, path: Path) -> None:
    group = os.getgroups()[-1] if os.getgroups() else os.getgid()
    file = SocketFile(path, Permissions(0o660, *owner_of(f":{group}")))
    file.place(lambda made: listening(stack, made))
    assert path.stat().st_gid == group
    file.remove()


def test_a_dead_server_s_socket_is_replaced(stack: ExitStack, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    path.with_name("h.sock.lock").touch()
    file = SocketFile(path, Permissions())
    file.place(lambda made: listening(stack, made))
    connected(stack, path)
    file.remove()


def test_a_living_server_s_socket_is_never_replaced(stack: ExitStack, path: Path) -> None:
    first = SocketFile(path, Permissions())
    first.place(lambda made: listening(stack, made))
    with pytest.raises(AlreadyExists, match="another server"):
        SocketFile(path, Permissions())
    connected(stack, path)
    first.remove()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_another_program_s_socket_is_never_replaced(
    stack: ExitStack, path: Path, kind: socket.SocketKind
) -> None:
    other = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
    other.bind(str(path))
    other.listen(0)
    inode = path.stat().st_ino
    file = SocketFile(path, Permissions())
    for _ in range(3):  # the first tries fill the other's queue
        with pytest.raises(AlreadyExists, match="another server"):
            file.place(lambda made: listening(stack, made))
    file.remove()
    assert path.stat().st_ino == inode


def test_a_file_that_is_no_socket_is_kept(stack: ExitStack, path: Path) -> None:
    path.write_text("precious")
    file = SocketFile(path, Permissions())
    with pytest.raises(InvalidArgument, match="is not a socket"):
        file.place(lambda made: listening(stack, made))
    file.remove()
    assert path.read_text() == "precious"
    assert [each.name for each in path.parent.iterdir()] == ["h.sock"]


def test_the_file_of_a_later_server_is_not_removed(stack: ExitStack, path: Path) -> None:
    file = SocketFile(path, Permissions())
    file.place(lambda made: listening(stack, made))
    kept = path.rename(path.with_name("kept"))  # so that its inode is not used again
    listening(stack, str(path))
    file.remove()
    assert path.exists()
    assert kept.exists()


def test_a_failed_listen_leaves_nothing(path: Path) -> None:
    file = SocketFile(path, Permissions())

    def listen(_: str) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with pytest.raises(InvalidArgument, match="cannot make a socket"):
        file.place(listen)
    file.remove()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [("x" * MAX_PATH_BYTES, "shorter path"), ("absent/h.sock", "folder has to exist")],
)
def test_a_path_that_cannot_be_used_is_an_error_of_the_setting(
    short_folder: Path, name: str, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said) as refused:
        SocketFile(short_folder / name, Permissions())
    assert refused.value.field == "unix_socket"


@pytest.mark.parametrize(
    ("text", "owner"), [("", (-1, -1)), ("12", (12, -1)), ("root:7", (0, 7)), (":7", (-1, 7))]
)
def test_an_owner_is_read_as_chown_reads_it(text: str, owner: tuple[int, int]) -> None:
    assert owner_of(text) == owner


@pytest.mark.parametrize("text", ["no-such-user", ":no-such-group", "99999999999"])
def test_an_unknown_owner_is_an_error(text: str) -> None:
    with pytest.raises(InvalidArgument, match="on this machine") as refused:
        owner_of(text)
    assert refused.value.field == "unix_socket_owner"
