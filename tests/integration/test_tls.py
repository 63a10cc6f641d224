"""TLS and mutual TLS over real sockets: who gets in, what the others are told, and rotation."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from headrace.client import Client, aio, errors
from headrace.server.access.token_file import add_token
from headrace.testing import networks
from tests.integration.harness import BASIC, CALL_SECONDS, Server, refused_start, until
from tests.support.certificates import Authority, Pair
from tests.support.manual import blocks
from tests.tls.test_rotation import rotate

OURS, OTHERS = Authority(), Authority("Somebody else's authority")
HOUR = timedelta(hours=1)


class Secure:
    """A server with TLS, and the files of its certificates."""

    def __init__(self, folder: Path, *, mutual: bool = False, pair: Pair | None = None) -> None:
        self.folder = folder
        self.ca = OURS.write(folder)
        self.foreign_ca = OTHERS.write(folder, "others.crt")
        self.certificate, self.key = (pair or OURS.server()).write(folder, "server")
        options = ["--tls-cert", str(self.certificate), "--tls-key", str(self.key)]
        if mutual:
            options += ["--tls-client-ca", str(self.ca)]
        self.server = Server(*BASIC, *options)
        self.target = self.server.address.replace("127.0.0.1", "localhost")

    def pair(self, name: str, pair: Pair) -> dict[str, Path]:
        """The client's arguments for a certificate."""
        certificate, key = pair.write(self.folder, name)
        return {"tls_cert": certificate, "tls_key": key}

    def client(self, **options: Any) -> Client:
        return Client(self.target, timeout=CALL_SECONDS, **{"tls_ca": self.ca, **options})

    def context(self, **options: Any) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if options:
            context.load_cert_chain(options["tls_cert"], options["tls_key"])
        return context

    def get(self, path: str, context: ssl.SSLContext) -> str:
        url = f"https://{self.server.http}{path}"
        with urllib.request.urlopen(url, timeout=CALL_SECONDS, context=context) as reply:
            return str(reply.read().decode())

    def error(self, **options: Any) -> str:
        """What a client is told that gets no connection."""
        with self.client(**options) as client, pytest.raises(errors.Unavailable) as refused:
            client.devices()
        return str(refused.value)


@pytest.fixture(scope="module")
def one_way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    secure = Secure(tmp_path_factory.mktemp("one-way"))
    with secure.server:
        yield secure
        assert secure.server.stop() == 0, secure.server.log()
        assert "Traceback" not in secure.server.log(), secure.server.log()


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    secure = Secure(tmp_path_factory.mktemp("mutual"), mutual=True)
    with secure.server:
        yield secure
        assert secure.server.stop() == 0, secure.server.log()


def use(client: Client) -> None:
    """Loads, infers in every way, streams, uploads, and unloads."""
    case = networks.add()
    name = "tls"
    network = client.load_network(case.model, device="CPU", name=name)
    expected = network.infer(case.inputs)
    assert network.start_async(case.inputs).result().keys() == expected.keys()
    assert len(list(network.infer_many([case.inputs] * 20))) == 20
    assert network.export()
    network.unload()


def test_every_kind_of_call_works_over_tls(one_way: Secure) -> None:
    with one_way.client() as client:
        use(client)


def test_every_kind_of_call_works_with_a_client_certificate(mutual: Secure) -> None:
    with mutual.client(**mutual.pair("alice", OURS.client("alice"))) as client:
        use(client)


def test_large_tensors_go_through_shared_memory_over_tls(one_way: Secure) -> None:
    """The server refuses it, as it is off; the client then sends messages."""
    with one_way.client(shared_memory=True) as client:
        case = networks.add()
        network = client.load_network(case.model, device="CPU", name="shm")
        assert network.infer(case.inputs)
        network.unload()


def test_the_asyncio_client_speaks_tls_and_explains_a_failure(mutual: Secure) -> None:
    async def calls() -> str:
        cert, key = OURS.client("bob").write(mutual.folder, "bob")
        files = {"tls_ca": mutual.ca, "tls_cert": cert, "tls_key": key}
        async with aio.Client(mutual.target, **cast("Any", files)) as client:
            assert await client.devices()
        async with aio.Client(mutual.target, tls_ca=mutual.ca) as client:
            with pytest.raises(errors.Unavailable) as refused:
                await client.devices()
        return str(refused.value)

    assert "asks for a client certificate" in asyncio.run(calls())


def test_grpcs_own_credentials_work_as_in_other_clients(one_way: Secure) -> None:
    """Triton's and KServe's clients take such credentials."""
    credentials = grpc.ssl_channel_credentials(OURS.certificate)
    with Client(one_way.target, credentials=credentials) as client:
        assert client.devices()


def test_http_speaks_tls_and_says_when_the_certificate_expires(one_way: Secure) -> None:
    metrics = one_way.get("/metrics", one_way.context())
    (line,) = (
        line
        for line in metrics.splitlines()
        if line.startswith("headrace_tls_certificate_expiration_timestamp_seconds ")
    )
    assert float(line.split()[1]) > 1.7e9
    assert "headrace_tls_files_stale 0.0" in metrics


def test_http_keeps_a_connection_over_many_requests(one_way: Secure) -> None:
    connection = http.client.HTTPSConnection(one_way.server.http, context=one_way.context())
    for _ in range(20):
        connection.request("GET", "/readyz")
        assert connection.getresponse().read() == b"ready\n"
    connection.close()


def test_http_needs_a_client_certificate_where_grpc_does(mutual: Secure) -> None:
    certified = mutual.context(**mutual.pair("carol", OURS.client("carol")))
    assert mutual.get("/readyz", certified) == "ready\n"
    foreign = mutual.context(**mutual.pair("eve", OTHERS.client("eve")))
    expired = mutual.context(**mutual.pair("old", OURS.client("old", until=-HOUR)))
    for refused in (mutual.context(), foreign, expired):
        with pytest.raises(OSError):  # noqa: PT011 - an alert or a reset, as TLS 1.3 has it
            mutual.get("/readyz", refused)


def test_the_manuals_certificates_and_program_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (making,) = (each for each in blocks("docs/run/security.md", "sh") if "openssl" in each)
    subprocess.run(["sh", "-ec", making], check=True, capture_output=True)
    (program,) = (each for each in blocks("docs/run/security.md", "python") if "tls_ca" in each)
    options = ("--tls-cert", "server.crt", "--tls-key", "server.key", "--tokens", "tokens.toml")
    program = program.replace("the token", add_token(Path("tokens.toml"), "manual", ["read"]))
    with Server(*BASIC, *options) as server:
        exec(program.replace("localhost:9000", server.address), {})
        assert "CPU" in capsys.readouterr().out
        assert server.stop() == 0, server.log()


# -- what a client is told --


def test_a_client_is_told_that_it_does_not_know_the_authority(one_way: Secure) -> None:
    assert "from an authority that the client does not know" in one_way.error(
        tls_ca=one_way.foreign_ca
    )


def test_a_client_in_plain_text_is_told_that_the_server_speaks_tls(one_way: Secure) -> None:
    assert "the server speaks TLS, and this client plain text; pass tls_ca" in one_way.error(
        tls_ca=None
    )


def test_a_client_at_the_https_port_is_told_that_grpc_is_elsewhere(one_way: Secure) -> None:
    with (
        Client(one_way.server.http, tls_ca=one_way.ca) as client,
        pytest.raises(errors.Unavailable, match="speaks TLS, but not gRPC"),
    ):
        client.devices()


@pytest.mark.parametrize(
    ("certificate", "told"),
    [
        (None, "the server asks for a client certificate; pass tls_cert"),
        (OTHERS.client("eve"), "the server refuses the client certificate"),
        (OURS.client("old", until=-HOUR), "the server refuses the client certificate"),
        (OURS.server(), "the server refuses the client certificate"),
    ],
    ids=["none", "of another authority", "expired", "of a server"],
)
def test_a_client_is_told_what_the_server_wants_of_its_certificate(
    mutual: Secure, certificate: Pair | None, told: str
) -> None:
    options = {} if certificate is None else mutual.pair("wrong", certificate)
    assert told in mutual.error(**options)


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Callable[[Pair | None], str]]:
    """Starts gRPC servers that only do handshakes; gives their addresses."""
    servers = []

    def start(pair: Pair | None) -> str:
        from concurrent.futures import ThreadPoolExecutor

        server = grpc.server(ThreadPoolExecutor(1))
        credentials = pair and grpc.ssl_server_credentials([(pair.key, pair.certificate)])
        port = (
            server.add_insecure_port("127.0.0.1:0")
            if credentials is None
            else server.add_secure_port("127.0.0.1:0", credentials)
        )
        server.start()
        servers.append(server)
        return f"localhost:{port}"

    yield start
    for each in servers:
        each.stop(None)


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        (OURS.server(until=-HOUR), "the server's certificate has expired"),
        (OURS.server(since=HOUR), "the server's certificate is not valid yet"),
        (OURS.server(("other.example",)), "the server's certificate is not for 'localhost'"),
        (None, "the server speaks no TLS on this port"),
    ],
    ids=["expired", "not yet", "other host", "plain text"],
)
def test_a_client_is_told_what_is_wrong_with_the_server(
    bare: Callable[[Pair | None], str], tmp_path: Path, pair: Pair | None, told: str
) -> None:
    with (
        Client(bare(pair), tls_ca=OURS.write(tmp_path)) as client,
        pytest.raises(errors.Unavailable) as refused,
    ):
        client.devices()
    assert told in str(refused.value)


def test_the_command_line_takes_files_and_environment(mutual: Secure) -> None:
    certificate, key = OURS.client("dave").write(mutual.folder, "dave")
    environment = {
        **os.environ,
        "HEADRACE_TLS_CA": str(mutual.ca),
        "HEADRACE_SERVER": mutual.target,
    }

    def run(*arguments: str, more: Mapping[str, str] | None = None) -> Any:
        command = [sys.executable, "-c", "from headrace.program import main; main()", *arguments]
        return subprocess.run(
            command,
            env=environment | dict(more or {}),
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
            check=False,
        )

    files = ("--tls-cert", str(certificate), "--tls-key", str(key))
    before, after = run(*files, "devices", "--json"), run("devices", "--json", *files)
    assert json.loads(before.stdout) == json.loads(after.stdout) != []
    refused = run("devices", "--tls-ca", str(mutual.foreign_ca))
    assert "does not know" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1, "gRPC has added lines of its own"
    refused = run("devices")
    assert refused.returncode == 1
    assert "asks for a client certificate" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1, "gRPC has added lines of its own"


# -- what a server takes --


def test_a_server_does_not_start_with_files_that_it_cannot_use(tmp_path: Path) -> None:
    certificate, _ = OURS.server().write(tmp_path, "server")
    _, key = OURS.server().write(tmp_path, "other")
    code, told = refused_start(*BASIC, "--tls-cert", str(certificate), "--tls-key", str(key))
    assert code == 1
    assert "other.key is not the key of the certificate in" in told


# -- rotation --


def served(place: str) -> bytes:
    """The certificate that a port shows now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    host, _, port = place.rpartition(":")
    with (
        socket.create_connection((host, int(port)), CALL_SECONDS) as plain,
        context.wrap_socket(plain) as wrapped,
    ):
        shown = wrapped.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def replace(path: Path, data: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.replace(path)


def test_new_files_are_used_for_new_connections_and_bad_ones_are_not(tmp_path: Path) -> None:
    secure = Secure(tmp_path)
    places = (secure.server.address, secure.server.http)
    with secure.server, secure.client() as kept:
        assert kept.devices()
        new = OURS.server()
        replace(secure.certificate, new.certificate)
        replace(secure.key, new.key)
        wanted = ssl.PEM_cert_to_DER_cert(new.certificate.decode())
        until(lambda: all(served(each) == wanted for each in places), "the new certificate")
        replace(secure.certificate, OURS.server(until=-HOUR).certificate)
        until(lambda: "last good state" in secure.server.log(), "the refusal of a bad file")
        assert [served(each) for each in places] == [wanted, wanted]
        assert "server.crt" in secure.server.log()
        assert kept.devices()  # over the connection of the beginning
        with secure.client() as client:
            assert client.devices()
        assert "headrace_tls_files_stale 1.0" in secure.get("/metrics", secure.context())
        assert secure.server.stop() == 0, secure.server.log()


def test_no_request_fails_while_certificates_and_tokens_change(tmp_path: Path) -> None:
    """The short form of ``make test-tls``."""
    rotate(tmp_path, 3.0)
