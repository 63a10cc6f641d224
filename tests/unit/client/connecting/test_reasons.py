"""Why no connection comes about: each row of docs/use/clients.md's table, over a real socket."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from headrace.client.channel import bounds, repeats
from headrace.client.channel.channel import CallFailed
from headrace.client.channel.connecting import Dialler, Unreachable, parse, reasons, run
from headrace.client.security import Endpoint
from tests.support.certificates import Authority
from tests.support.channel_callers import calling
from tests.support.listeners import (
    greeting,
    listening,
    proxying,
    saying,
    unanswered,
    with_tls,
)
from tests.support.ports import held_port

OURS, OTHERS = Authority(), Authority("Somebody else's authority")
HOUR = timedelta(hours=1)
SECONDS = 20.0
TABLE: Final = re.findall(
    r"^\| (.+?) \|.*\|.*\|$",
    Path("docs/use/clients.md")
    .read_text()
    .partition("<!-- no connection -->")[2]
    .partition("<!--")[0],
    re.MULTILINE,
)[2:]


class World:
    """What a client comes to, and what it has."""

    def __init__(
        self, kind: str, stack: ExitStack, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        self._kind = kind
        self._enter = stack.enter_context
        self._folder = folder
        self._patch = patch
        self.pauses: list[float] = []
        """Before each time that a call was tried again."""
        self.repeat = False
        patch.setattr(repeats, "_spread", self._pause)

    def _pause(self, seconds: float) -> float:
        self.pauses.append(seconds)
        return 0.001

    def looks_up(self, code: int) -> None:
        def unknown(*_: Any, **__: Any) -> Any:
            raise socket.gaierror(code, "")

        self._patch.setattr(socket, "getaddrinfo", unknown)

    def error(self, target: str, proxy: str = "", **files: Any) -> str:
        """What a client is told that cannot connect."""
        if files.pop("mine", None):
            certificate, key = OURS.client("alice").write(self._folder, "alice")
            files |= {"tls_cert": certificate, "tls_key": key}
        if authority := files.pop("authority", None):
            files["tls_ca"] = authority.write(self._folder)
        endpoint = Endpoint(target, **files)
        if proxy:
            self._patch.setenv("https_proxy", proxy)
        with (
            calling(self._kind, target, tls=endpoint.tls) as callers,
            pytest.raises(CallFailed) as failed,
        ):
            callers.one("/t/M", timeout=SECONDS, repeat=self.repeat)
        assert failed.value.code is grpc.StatusCode.UNAVAILABLE
        return failed.value.message

    def at(self, talk: Any, **options: Any) -> str:
        return self.error(f"localhost:{self._enter(listening(talk))}", **options)

    def behind(self, talk: Any) -> str:
        port = self._enter(listening(talk))
        return self.error("server.test:9000", proxy=f"http://127.0.0.1:{port}")

    def at_nobody(self) -> str:
        return self.error(f"localhost:{held_port()}")

    def at_a_missing_socket(self) -> str:
        return self.error(f"unix:{self._folder}/missing.sock")

    def at_silence(self) -> str:
        return self.error(f"127.0.0.1:{self._enter(unanswered())}")

    def at_an_unknown_name(self) -> str:
        self.looks_up(socket.EAI_NONAME)
        return self.error("server.test")

    def without_name_servers(self) -> str:
        self.looks_up(socket.EAI_AGAIN)
        return self.error("server.test")


def server(**options: Any) -> Any:
    return OURS.server(**options)


def ended(accepted: socket.socket) -> None:
    accepted.recv(1000)


CAUSES: Final[dict[str, Callable[[World], str]]] = {
    "nobody listens there": World.at_nobody,
    "there is no such socket": World.at_a_missing_socket,
    "nobody answered in time": World.at_silence,
    "DNS knows no host": World.at_an_unknown_name,
    "no name server tells the address": World.without_name_servers,
    "this client plain text": lambda world: world.at(with_tls(server(), greeting)),
    "the server speaks no TLS on this port": lambda world: world.at(greeting, authority=OURS),
    "an authority that the client does not know": lambda world: world.at(
        with_tls(server(), greeting), authority=OTHERS
    ),
    "the server's certificate is not for": lambda world: world.at(
        with_tls(server(hosts=("other.example",)), greeting), authority=OURS
    ),
    "the server's certificate has expired": lambda world: world.at(
        with_tls(server(until=-HOUR), greeting), authority=OURS
    ),
    "the server's certificate is not valid yet": lambda world: world.at(
        with_tls(server(since=HOUR), greeting), authority=OURS
    ),
    "the server asks for a client certificate": lambda world: world.at(
        with_tls(server(), greeting, authority=OURS.certificate), authority=OURS
    ),
    "the server refuses the client certificate": lambda world: world.at(
        with_tls(server(), greeting, authority=OTHERS.certificate), authority=OURS, mine=True
    ),
    "the server speaks TLS, but not gRPC": lambda world: world.at(
        with_tls(server(), greeting, protocols=("http/1.1",)), authority=OURS
    ),
    "an HTTP/1 server answered": lambda world: world.at(saying(b"HTTP/1.1 400 Bad Request\r\n")),
    "does not speak HTTP/2": lambda world: world.at(saying(b"220 mail ready\r\n")),
    "took the connection and said nothing": lambda world: world.at(saying(b"")),
    "the server ended the connection at once": lambda world: world.at(ended),
    "answered HTTP 407": lambda world: world.behind(proxying(b"HTTP/1.1 407 No\r\n\r\n")),
    "answered HTTP 403": lambda world: world.behind(proxying(b"HTTP/1.1 403 No\r\n\r\n")),
    "it has no connection to": lambda world: world.behind(proxying(b"HTTP/1.0 502 No\r\n\r\n")),
    "is no HTTP proxy": lambda world: world.behind(ended),
}

LASTING: Final = (
    "this client plain text",
    "the server speaks no TLS on this port",
    "an authority that the client does not know",
    "the server's certificate is not for",
    "the server's certificate has expired",
    "the server's certificate is not valid yet",
    "the server speaks TLS, but not gRPC",
    "an HTTP/1 server answered",
    "does not speak HTTP/2",
    "answered HTTP 407",
    "answered HTTP 403",
)
PASSING: Final = (
    "nobody listens there",
    "DNS knows no host",
    "the server ended the connection at once",
    "it has no connection to",
)


@pytest.fixture(params=["threads", "tasks"])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.setattr(bounds, "CONNECT_SECONDS", 0.5)
    with ExitStack() as stack:
        yield World(request.param, stack, tmp_path, monkeypatch)


@pytest.mark.parametrize("cause", CAUSES)
def test_the_error_tells_the_cause_the_address_and_the_time(cause: str, world: World) -> None:
    told = CAUSES[cause](world)
    assert cause in told
    assert re.match(r"cannot reach the server at \S+: ", told)
    where = "" if "DNS" in cause or "name server" in cause else r"tried \S.*; "
    assert re.search(rf"\({where}\d+(\.\d)? (ms|s)\)$", told), told


@pytest.mark.parametrize("cause", LASTING + PASSING)
def test_only_what_may_pass_is_tried_again(cause: str, world: World) -> None:
    world.repeat = True
    CAUSES[cause](world)
    assert len(world.pauses) == (0 if cause in LASTING else repeats.ATTEMPTS - 1)


@pytest.mark.parametrize(
    ("reason", "lasts"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", True),
        ("TLSV1_ALERT_UNKNOWN_CA", True),
        ("TLSV1_ALERT_INTERNAL_ERROR", False),
    ],
)
def test_a_client_certificate_that_is_refused_by_an_alert_stays_refused(
    reason: str, lasts: bool
) -> None:
    """Without an alert the connection just ends, which a server that restarts does, too."""
    error = ssl.SSLError(1, "")
    error.reason = reason
    told = reasons.of_failure(None, error, b"")
    assert "client certificate" in told
    assert isinstance(told, reasons.LastingCause) == lasts


@pytest.mark.parametrize("text", TABLE)
def test_the_manual_tells_what_errors_say(text: str) -> None:
    assert text.strip("`… ") in CAUSES


def test_the_manual_tells_of_every_cause() -> None:
    assert {text.strip("`… ") for text in TABLE} == CAUSES.keys()


def test_a_cause_that_holds_for_several_addresses_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports = [held_port(), held_port()]
    with pytest.raises(Unreachable) as refused:
        run(Dialler(parse(f"ipv4:127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")).dial(SECONDS))
    told = str(refused.value)
    assert told.count("nobody listens there") == 1
    assert f"(tried 127.0.0.1:{ports[0]}, 127.0.0.1:{ports[1]};" in told


def test_the_proxys_credentials_are_not_told(world: World) -> None:
    port = world._enter(listening(proxying(b"HTTP/1.1 407 No\r\n\r\n")))
    told = world.error("server.test:9000", proxy=f"http://user:secret@127.0.0.1:{port}")
    assert "secret" not in told
