"""A name whose addresses DNS tells, with TLS: each server's certificate is for the name."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.client import errors
from headrace.client.balancing import Balancing
from tests.support.certificates import Authority, Pair
from tests.support.client_fake import KINDS, Fake, connected, running
from tests.support.patience import PATIENCE_SECONDS
from tests.support.ports import held_port

NAME = "replicas.test"
HOSTS = ("127.0.0.1", "127.0.0.2")  # DNS gives addresses, and they share a port
OURS = Authority()
X = {"x": np.array([[1.0]], np.float32)}
TURNS = Balancing(policy="round_robin", attempts=2)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def dns(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS that knows the name."""
    asked = socket.getaddrinfo

    def told(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != NAME:
            return asked(host, port, *args, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in HOSTS]

    monkeypatch.setattr(socket, "getaddrinfo", told)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    return OURS.write(tmp_path)


@contextmanager
def replicas(pair: Pair) -> Iterator[list[Fake]]:
    """Servers with this certificate, on both addresses and one port."""
    credentials = grpc.ssl_server_credentials([(pair.key, pair.certificate)])
    port = held_port()
    with ExitStack() as stack:
        yield [
            stack.enter_context(running(port, host=host, credentials=credentials)) for host in HOSTS
        ]


def port_of(fake: Fake) -> int:
    return int(fake.target.rpartition(":")[2])


def test_a_certificate_for_the_name_is_right_at_each_address(kind: str, ca: Path) -> None:
    with replicas(OURS.server((NAME,))) as fakes:
        target = f"dns:///{NAME}:{port_of(fakes[0])}"
        with connected(kind, target, balance=TURNS, tls_ca=ca, token="secret") as client:
            network = client.network("echo")
            assert client.servers == [fake.target for fake in fakes]
            for _ in range(4):
                assert network.infer(X)["y"][0, 0] == 1.0
            assert len(list(network.infer_many([X] * 5))) == 5
            assert client.load_network(b"\x08\x08", name="echo")
    assert [len(fake.requests("Infer")) for fake in fakes] == [2, 2]
    assert [len(fake.requests("LoadNetwork")) for fake in fakes] == [1, 1]


@pytest.mark.parametrize("hosts", [("other.test",), HOSTS], ids=["another name", "the addresses"])
def test_a_certificate_for_anything_else_is_refused_with_the_name(
    kind: str, ca: Path, hosts: tuple[str, ...]
) -> None:
    with replicas(OURS.server(hosts)) as fakes:
        target = f"dns:///{NAME}:{port_of(fakes[0])}"
        with (
            connected(kind, target, balance=TURNS, tls_ca=ca) as client,
            pytest.raises(errors.Unavailable) as refused,
        ):
            client.network("echo")
    assert f"the server's certificate is not for '{NAME}'" in str(refused.value)


def test_a_client_asks_each_address_for_the_name(kind: str, ca: Path, tmp_path: Path) -> None:
    """The server's name goes into the handshake (SNI), where servers with several certificates and
    ingresses look for it. These servers note it, and end."""
    asked: dict[str, set[str | None]] = {host: set() for host in HOSTS}
    files = OURS.server((NAME,)).write(tmp_path, "server")

    def serve(listening: socket.socket, host: str) -> None:
        while True:
            try:
                plain, _ = listening.accept()
            except OSError:  # the test is over
                return
            server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server.load_cert_chain(*files)
            server.set_alpn_protocols(["h2"])
            server.sni_callback = lambda _, name, __: asked[host].add(name)
            try:
                server.wrap_socket(plain, server_side=True).close()
            except OSError:
                plain.close()

    with ExitStack() as stack:
        port = held_port()
        first, second = (stack.enter_context(socket.create_server((host, port))) for host in HOSTS)
        threads = [
            threading.Thread(target=serve, args=(listening, host), daemon=True)
            for listening, host in zip((first, second), HOSTS, strict=True)
        ]
        for thread in threads:
            thread.start()
        target = f"dns:///{NAME}:{port}"
        with (
            connected(kind, target, balance=TURNS, tls_ca=ca) as client,
            pytest.raises(errors.Unavailable),
        ):
            client.network("echo")
        for listening in (first, second):
            listening.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert asked == {host: {NAME} for host in HOSTS}
