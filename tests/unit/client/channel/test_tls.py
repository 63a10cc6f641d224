"""Our channels over TLS, to grpcio's server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.client.channel.channel import CallFailed
from headrace.client.channel.connecting import Tls
from headrace.client.security import Endpoint
from tests.support.certificates import Authority
from tests.support.channel_callers import KINDS, calling

OURS, OTHERS = Authority(), Authority("Somebody else's authority")
SECONDS = 60.0


@pytest.fixture(scope="module", params=[False, True], ids=["one way", "mutual"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, bool]]:
    """Address, and whether clients need a certificate."""
    pair, mutual = OURS.server(), bool(request.param)
    credentials = grpc.ssl_server_credentials(
        [(pair.key, pair.certificate)], OURS.certificate if mutual else None, mutual
    )
    made = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
    echo = grpc.unary_unary_rpc_method_handler(lambda message, _: message)
    chat = grpc.stream_stream_rpc_method_handler(lambda messages, _: messages)
    methods = {"Echo": echo, "Chat": chat}
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", methods),))
    port = made.add_secure_port("127.0.0.1:0", credentials)
    made.start()
    yield f"localhost:{port}", mutual
    made.stop(None).wait()


def tls(folder: Path, address: str, mutual: bool, authority: Authority = OURS) -> Tls | None:
    certificate, key = OURS.client("alice").write(folder, "alice") if mutual else (None, None)
    ca = authority.write(folder)
    return Endpoint(address, tls_ca=ca, tls_cert=certificate, tls_key=key).tls


@pytest.mark.parametrize("kind", KINDS)
def test_calls_and_streams_go_over_tls(kind: str, server: tuple[str, bool], tmp_path: Path) -> None:
    address, mutual = server
    with calling(kind, address, tls=tls(tmp_path, address, mutual)) as callers:
        for size in (0, 1, 16_384, 5_000_000):
            reply = callers.one("/t/Echo", b"x" * size, timeout=SECONDS)
            assert bytes(reply.message) == b"x" * size
        sent = [bytes([number]) * 50_000 for number in range(50)]
        assert callers.chat("/t/Chat", sent, timeout=SECONDS) == (sent, None)


@pytest.mark.parametrize("kind", KINDS)
def test_many_callers_share_a_connection_over_tls(
    kind: str, server: tuple[str, bool], tmp_path: Path
) -> None:
    address, mutual = server
    with calling(kind, address, tls=tls(tmp_path, address, mutual)) as callers:
        calls: list[tuple[str, Any, dict[str, Any]]] = [
            ("/t/Echo", bytes([number]) * (1 + number * 5_000), {"timeout": SECONDS})
            for number in range(32)
        ]
        for _ in range(10):
            for (_, request, _), outcome in zip(calls, callers.all(calls), strict=True):
                assert not isinstance(outcome, CallFailed), outcome
                assert bytes(outcome.message) == request


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("authority", "from an authority that the client does not know"),
        ("plain", "the server speaks TLS, and this client plain text"),
        ("certificate", "asks for a client certificate"),
    ],
)
def test_failures_are_explained(
    kind: str, changed: str, told: str, server: tuple[str, bool], tmp_path: Path
) -> None:
    address, mutual = server
    if changed == "certificate" and not mutual:
        pytest.skip("it needs none")
    authority = OTHERS if changed == "authority" else OURS
    found = tls(tmp_path, address, mutual and changed != "certificate", authority)
    with calling(kind, address, tls=None if changed == "plain" else found) as callers:
        with pytest.raises(CallFailed, match=told) as failed:
            callers.one("/t/Echo", timeout=SECONDS)
        assert failed.value.code is grpc.StatusCode.UNAVAILABLE
        assert failed.value.unreachable
