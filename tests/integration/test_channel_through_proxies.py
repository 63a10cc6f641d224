"""Our channels through nginx and HAProxy, where these are installed, to a server of grpcio's."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from headrace.client.channel.channel import CallFailed
from tests.support.channel_callers import KINDS, calling

SECONDS: Final = 60.0
NGINX: Final = """
pid {folder}/pid; error_log stderr; daemon off;
events {{ worker_connections 256; }}
http {{
    access_log off; client_max_body_size 0; client_body_temp_path {folder}/body;
    server {{
        listen 127.0.0.1:{port} http2; keepalive_requests 50;
        location / {{ grpc_pass grpc://{server}; }}
    }}
}}
"""
HAPROXY: Final = """
defaults
    mode http
    timeout connect 10s
    timeout client 1m
    timeout server 1m
listen proxy
    bind 127.0.0.1:{port} proto h2
    server one {server} proto h2
"""
COMMANDS: Final = {
    "nginx": (NGINX, ("-p", "{folder}", "-e", "stderr", "-c", "{file}")),
    "haproxy": (HAPROXY, ("-db", "-f", "{file}")),
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    def fail(_: bytes, context: Any) -> None:
        context.set_trailing_metadata((("some-bin", b"\x00\xff"),))
        context.abort(grpc.StatusCode.DATA_LOSS, "ä %")

    def chat(requests: Any, _: Any) -> Iterator[bytes]:
        yield from requests

    made = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
    echo = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    methods = {
        "Echo": echo,
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Chat": grpc.stream_stream_rpc_method_handler(chat),
    }
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", methods),))
    port = made.add_insecure_port("127.0.0.1:0")
    made.start()
    yield f"127.0.0.1:{port}"
    made.stop(None).wait()


class Proxy:
    """A proxy that runs.

    Attributes:
        address: where it listens.
        process: it.
    """

    def __init__(self, address: str, process: subprocess.Popen[bytes]) -> None:
        self.address = address
        self.process = process


@contextmanager
def running(name: str, server: str, folder: Path) -> Iterator[Proxy]:
    program = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if program is None:
        pytest.skip(f"{name} not found: apt-get install {name}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text, options = COMMANDS[name]
    file = folder / "proxy.conf"
    file.write_text(text.format(folder=folder, port=port, server=server))
    command = [program, *(each.format(folder=folder, file=file) for each in options)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + SECONDS
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    assert time.monotonic() < until
            yield Proxy(f"127.0.0.1:{port}", process)
        finally:
            process.terminate()


@pytest.fixture(params=COMMANDS)
def proxy(request: pytest.FixtureRequest, server: str, tmp_path: Path) -> Iterator[Proxy]:
    with running(request.param, server, tmp_path) as found:
        yield found


@pytest.mark.parametrize("kind", KINDS)
def test_messages_statuses_and_streams_come_through(kind: str, proxy: Proxy) -> None:
    with calling(kind, proxy.address) as callers:
        for size in (0, 1, 100_000, 5_000_000):
            reply = callers.one("/t/Echo", b"x" * size, timeout=SECONDS)
            assert bytes(reply.message) == b"x" * size
        with pytest.raises(CallFailed) as failed:
            callers.one("/t/Fail", timeout=SECONDS)
        assert (failed.value.code, failed.value.message) == (grpc.StatusCode.DATA_LOSS, "ä %")
        assert ("some-bin", b"\x00\xff") in list(failed.value.trailing)
        sent = [b"%d" % number * 1000 for number in range(100)]
        assert callers.chat("/t/Chat", sent, timeout=SECONDS) == (sent, None)


@pytest.mark.parametrize("kind", KINDS)
def test_no_call_fails_when_a_proxy_ends_connections(kind: str, proxy: Proxy) -> None:
    """nginx says goodbye after 50 requests, and does so here every few milliseconds."""
    with calling(kind, proxy.address) as callers:
        for turn in range(15):
            calls: list[tuple[str, Any, dict[str, Any]]] = [
                ("/t/Echo", b"%d %d" % (turn, number), {"timeout": SECONDS}) for number in range(32)
            ]
            for (_, request, _), outcome in zip(calls, callers.all(calls), strict=True):
                assert not isinstance(outcome, CallFailed), outcome
                assert bytes(outcome.message) == request


def test_no_call_fails_when_nginx_takes_its_configuration_anew(server: str, tmp_path: Path) -> None:
    with (
        running("nginx", server, tmp_path) as proxy,
        calling("threads", proxy.address) as callers,
    ):
        for turn in range(20):
            if turn % 5 == 4:
                proxy.process.send_signal(signal.SIGHUP)
            calls: list[tuple[str, Any, dict[str, Any]]] = [
                ("/t/Echo", b"%d" % number, {"timeout": SECONDS, "repeat": True})
                for number in range(16)
            ]
            for outcome in callers.all(calls):
                assert not isinstance(outcome, CallFailed), outcome
