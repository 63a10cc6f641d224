"""Where the front end listens."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Any, cast

import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.server.settings.settings import Settings
from headrace.server.transport.native.front_end import NativeFrontEnd
from tests.support.ports import held_port

HOSTS = ("127.0.0.1", "127.0.0.2")


def listened_at(port: int) -> set[tuple[str, int]]:
    """Where a front end listens for a name with two addresses."""
    listening: set[tuple[str, int]] = set()

    async def scenario() -> None:
        front_end = NativeFrontEnd(Settings(host="two", port=port), None, cast("Any", None))
        try:
            front_end.bind()
            listening.update(each.getsockname() for each in front_end._listeners)
        finally:
            await front_end.stop(0)

    asyncio.run(scenario())
    return listening


@pytest.fixture(autouse=True)
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What was tried: the first port that the server gets is another's at the second address."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in HOSTS]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    create, tried = socket.create_server, list[tuple[str, int]]()

    def create_server(address: tuple[str, int], **options: Any) -> socket.socket:
        if len(tried) == 1:
            tried.append(address)
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        made = create(address, **options)
        tried.append(made.getsockname())
        return made

    monkeypatch.setattr(socket, "create_server", create_server)
    return tried


def test_a_port_that_is_free_at_one_address_alone_is_not_chosen(
    tried: list[tuple[str, int]],
) -> None:
    listening = listened_at(0)
    assert {host for host, _ in listening} == {*HOSTS}
    assert len({port for _, port in listening}) == 1
    assert listening == {*tried[2:]}


def test_a_port_that_was_asked_for_is_not_exchanged(tried: list[tuple[str, int]]) -> None:
    port = held_port()
    with pytest.raises(InvalidArgument, match="Address already in use") as refused:
        listened_at(port)
    assert refused.value.field == "port"
    assert tried == [(host, port) for host in HOSTS]
