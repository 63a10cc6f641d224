"""Connections that never show who they are, and one whose client has vanished.

``make test-tls`` runs this. It takes a minute and a half, most of it idle."""

from __future__ import annotations

import hashlib
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import h2.exceptions
import pytest

from tests.integration.harness import BASIC, Server
from tests.support.certificates import Authority
from tests.support.raw_http2 import Raw

TOKEN = "the-token-of-the-valid-client"
BEARER = ("authorization", f"Bearer {TOKEN}")
OPEN = "/grpc.health.v1.Health/Check"
GUARDED = "/headrace.v1.InferenceEngine/ListDevices"
MESSAGE = bytes(5)  # an empty one, behind its length

# Seconds after which the server promises to end each connection.
HANDSHAKE, CREDENTIAL, PINGS = 10.0, 20.0, 80.0
MARGIN = 15.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    authority = Authority()
    authority.write(folder).replace(folder / "ca.crt")
    authority.server().write(folder, "server")
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    entry = f'[[token]]\nname = "valid"\nsha256 = "{digest}"\nroles = ["read"]\n'
    (folder / "tokens.toml").write_text(entry)
    return folder


@pytest.fixture(scope="module")
def server(files: Path) -> Iterator[Server]:
    tls = ("--tls-cert", str(files / "server.crt"), "--tls-key", str(files / "server.key"))
    with Server(*BASIC, *tls, "--tokens", str(files / "tokens.toml")) as running:
        yield running
        assert running.stop() == 0, running.log()


def silence(server: Server) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)))


def raw(server: Server, files: Path) -> Raw:
    return Raw(server.address, ssl.create_default_context(cafile=files / "ca.crt"))


def call(client: Raw, *headers: tuple[str, str], path: str = GUARDED) -> str:
    stream = client.headers(*headers, path=path)
    client.h2.send_data(stream, MESSAGE, end_stream=True)
    client.flush()
    return client.status(stream)


def ends_within(connection: socket.socket, seconds: float) -> float:
    """The seconds until the server ends the connection. What it sends before is not answered."""
    begin = time.monotonic()
    connection.settimeout(seconds + MARGIN)
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - begin


@pytest.mark.timeout(180)
def test_the_server_ends_what_stays_silent_and_keeps_who_has_a_credential(
    server: Server, files: Path
) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        handshake = stack.enter_context(silence(server))
        nothing = stack.enter_context(raw(server, files))
        wrong = stack.enter_context(raw(server, files))
        vanished = stack.enter_context(raw(server, files))
        valid = stack.enter_context(raw(server, files))
        assert call(nothing, path=OPEN) == "0"
        assert call(wrong, ("authorization", "Bearer wrong")) == "16"
        assert call(vanished, BEARER) == call(valid, BEARER) == "0"
        times = [
            pool.submit(ends_within, each, seconds)
            for each, seconds in (
                (handshake, HANDSHAKE),
                (nothing.socket, CREDENTIAL),
                (wrong.socket, CREDENTIAL),
                (vanished.socket, PINGS),
            )
        ]
        for each in times[:3]:
            each.result()
        assert call(valid, BEARER) == "0"
        took = [each.result() for each in times]
        print([round(each, 1) for each in took])
        for seconds, promised in zip(took, (HANDSHAKE, CREDENTIAL, CREDENTIAL, PINGS), strict=True):
            assert promised - 2 <= seconds <= promised + MARGIN


def test_a_wrong_token_does_not_prolong_a_connection(server: Server, files: Path) -> None:
    begin = time.monotonic()
    with raw(server, files) as client:
        while time.monotonic() - begin < CREDENTIAL + MARGIN:
            try:
                assert call(client, ("authorization", "Bearer wrong")) == "16"
            except (ConnectionError, h2.exceptions.ProtocolError):
                break
    assert CREDENTIAL - 2 <= time.monotonic() - begin < CREDENTIAL + MARGIN
