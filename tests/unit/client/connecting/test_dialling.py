"""Connections come about: by every name, at the first address that answers, through a proxy."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headrace.client.channel.connecting import (
    Dialler,
    DialResult,
    Unreachable,
    parse,
    run,
    run_on_loop,
)
from headrace.client.channel.connecting.waits import Ready, Steps
from tests.support.listeners import (
    SETTINGS,
    greeting,
    listening,
    proxying,
    unanswered,
)
from tests.support.ports import held_port

Drive = Callable[[Steps[Any]], Any]
SECONDS = 20.0


def on_asyncio(steps: Steps[Any]) -> Any:
    return asyncio.run(run_on_loop(steps))


def on_uvloop(steps: Steps[Any]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_on_loop(steps))


@pytest.fixture(params=[run, on_asyncio, on_uvloop], ids=["thread", "asyncio", "uvloop"])
def drive(request: pytest.FixtureRequest) -> Drive:
    found: Drive = request.param
    return found


@pytest.fixture
def port() -> Iterator[int]:
    with listening(greeting) as found:
        yield found


def greeted(link: DialResult) -> bool:
    with link.socket as opened:
        assert not opened.getblocking()
        opened.settimeout(SECONDS)
        return opened.recv(100) == SETTINGS


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> None:
    """Has every name looked up as these addresses."""
    real = socket.getaddrinfo

    def found(host: str, port: int, **kwargs: Any) -> list[Any]:
        return [each for address in addresses for each in real(*address, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize(
    "target", ["127.0.0.1:{}", "localhost:{}", "dns:///localhost:{}", "ipv4:127.0.0.1:{}"]
)
def test_a_host_is_connected_to(drive: Drive, port: int, target: str) -> None:
    link = drive(Dialler(parse(target.format(port))).dial(SECONDS))
    assert link.address == f"127.0.0.1:{port}"
    assert link.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert greeted(link)


def test_a_unix_socket_is_connected_to(drive: Drive, tmp_path: Path) -> None:
    with listening(greeting, str(tmp_path / "a b.sock")):
        link = drive(Dialler(parse(f"unix:{tmp_path}/a%20b.sock")).dial(SECONDS))
        assert greeted(link)


def test_an_abstract_unix_socket_is_connected_to(drive: Drive) -> None:
    name = f"headrace-test-{os.getpid()}"
    with listening(greeting, f"\0{name}"):
        link = drive(Dialler(parse(f"unix-abstract:{name}")).dial(SECONDS))
        assert link.address == f"unix-abstract:{name}"
        assert greeted(link)


def test_a_unix_socket_whose_queue_is_full_is_tried_again(drive: Drive, tmp_path: Path) -> None:
    path = str(tmp_path / "full.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(path)
            steps = Dialler(parse(f"unix:{path}")).dial(SECONDS)
            threading.Timer(0.1, lambda: listener.accept()[0].close()).start()
            drive(steps).socket.close()


def test_the_next_address_is_tried_when_one_refuses(
    drive: Drive, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, ("127.0.0.2", held_port()), ("127.0.0.1", port))
    assert greeted(drive(Dialler(parse("server.test")).dial(SECONDS)))


def test_the_next_address_is_tried_beside_one_that_is_silent(
    drive: Drive, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unanswered() as silent:
        resolving(monkeypatch, ("127.0.0.1", silent), ("127.0.0.1", port))
        assert greeted(drive(Dialler(parse("server.test")).dial(SECONDS)))


def test_the_families_are_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, *[("::1", 1), ("::1", 2), ("127.0.0.1", 3), ("127.0.0.1", 4)])
    with pytest.raises(Unreachable) as refused:
        run(Dialler(parse("server.test")).dial(SECONDS))
    tried = [attempt.address for attempt in refused.value.attempts]
    assert tried == ["[::1]:1", "127.0.0.1:3", "[::1]:2", "127.0.0.1:4"]


def test_each_host_of_a_name_is_tried(drive: Drive, port: int) -> None:
    target = f"ipv4:127.0.0.1:{held_port()},127.0.0.1:{port}"
    assert greeted(drive(Dialler(parse(target)).dial(SECONDS)))


def test_no_socket_stays_open(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaks are warnings, which fail a test."""
    with unanswered() as silent:
        resolving(monkeypatch, *[("127.0.0.1", silent)] * 3)
        with pytest.raises(Unreachable, match="nobody answered in time"):
            drive(Dialler(parse("server.test")).dial(0.6))


def test_a_lookup_that_does_not_end_holds_up_nobody_past_the_time(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, free, asked = threading.Event(), threading.Event(), []

    def stuck(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        began.set()
        free.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", stuck)
    dialler = Dialler(parse("server.test"))
    for _ in range(2):
        with pytest.raises(Unreachable, match=r"no name server tells the address of 'server.test'"):
            drive(dialler.dial(0.05))
        assert began.wait(SECONDS)
    free.set()
    assert asked == ["server.test"]


def test_a_child_does_not_wait_for_a_lookup_of_its_parent(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    real = socket.getaddrinfo

    def stuck(*args: Any, **kwargs: Any) -> Any:
        free.wait()
        return real(*args, **kwargs)

    dialler = Dialler(parse(f"localhost:{port}"))
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", stuck)
        with pytest.raises(Unreachable):
            run(dialler.dial(0.01))
    child = os.fork()
    if not child:
        os._exit(0 if greeted(run(dialler.dial(SECONDS))) else 1)
    free.set()
    assert os.waitpid(child, 0)[1] == 0


def test_a_proxy_leads_to_the_server(drive: Drive) -> None:
    asked: list[bytes] = []
    with listening(proxying(asked=asked)) as port:
        environ = {"https_proxy": f"http://user:secret@127.0.0.1:{port}"}
        link = drive(Dialler(parse("server.test"), environ=environ).dial(SECONDS))
        assert link.address == f"server.test:9000 through the proxy 127.0.0.1:{port}"
        assert greeted(link)  # nothing of the server's was read with the proxy's answer
    assert asked[0].startswith(b"CONNECT server.test:9000 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=" in asked[0]


def test_a_caller_that_gives_up_leaves_no_socket() -> None:
    async def given_up() -> None:
        with unanswered() as silent:
            steps = Dialler(parse(f"127.0.0.1:{silent}")).dial(SECONDS)
            task = asyncio.create_task(run_on_loop(steps))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(StopIteration):
                next(steps)

    asyncio.run(given_up())


def test_waiting_ends_when_the_time_is_up(drive: Drive) -> None:
    def steps() -> Steps[list[socket.socket]]:
        first, second = socket.socketpair()
        with first, second:
            until = time.monotonic() + 0.01
            ready: list[socket.socket] = yield Ready(until, reading=(first,))
            assert time.monotonic() >= until
            return ready

    assert drive(steps()) == []
