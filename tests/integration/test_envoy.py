"""The front end Envoy. `make test-envoy` runs all integration tests over it; this is a sample."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from headrace.client import Client
from headrace.testing import networks
from headrace.wire.errors import REQUEST_ID_KEY
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    Stream,
    details_of,
    infer_request,
    is_running,
    outcome_of,
    until,
)
from tests.support.certificates import Authority
from tests.support.raw_http2 import Raw

pytest.importorskip("pyvoy", reason="the extra envoy is not installed")

ENVOY = (*BASIC, "--front-end", "envoy")
ADD, ENDLESS = networks.add(), networks.endless()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*ENVOY) as running:
        running.load(ADD, "CPU")
        running.load(ENDLESS, "TEMPLATE")
        yield running
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


def test_envoy_answers_in_the_servers_own_process(server: Server) -> None:
    program = Path(f"/proc/{server.process.pid}/exe").readlink()
    assert program.name == "envoy"
    outputs = server.infer("add", ADD.inputs)
    assert outputs


def test_an_error_has_its_details_and_the_requests_id(server: Server) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        server.stub.Infer(infer_request("nämeless %", ADD.inputs, id="r7"), timeout=CALL_SECONDS)
    details = details_of(raised.value)
    assert details.code is grpc.StatusCode.NOT_FOUND
    assert "nämeless %" in details.message
    assert dict(raised.value.trailing_metadata())[REQUEST_ID_KEY] == "r7"


def test_a_stream_with_many_requests_in_flight_answers_all(server: Server) -> None:
    stream = Stream(server.stub)
    names = [f"r{number}" for number in range(32)]
    for name in names:
        stream.send(infer_request("add", ADD.inputs, id=name))
    assert sorted(stream.next().id for _ in names) == sorted(names)
    stream.done()


def test_a_message_larger_than_the_limit_is_refused_and_the_connection_lives(
    server: Server,
) -> None:
    large = {"x": np.zeros((65 << 20) // 4, np.float32)}
    with pytest.raises(grpc.RpcError) as raised:
        server.infer("add", large)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    server.infer("add", ADD.inputs)


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_caller_that_gives_up_frees_the_device(server: Server, how: str) -> None:
    seconds = CALL_SECONDS if how == "cancel" else 2.0
    call = server.start("endless", ENDLESS.inputs, timeout=seconds)
    if how == "cancel":
        until(lambda: is_running(server, "TEMPLATE"))
        call.cancel()
    until(call.done)
    until(lambda: server.metric("NUMBER_OF_EXEC_INFER_REQUESTS", "TEMPLATE") == 0)


def test_a_client_that_updates_its_windows_often_is_not_cut_off(server: Server) -> None:
    with Raw(server.address) as raw:
        first = raw.headers()
        raw.h2.send_data(first, bytes(5), end_stream=True)
        raw.flush()
        assert raw.status(first) == "0"
        second = raw.headers()
        for _ in range(1000):
            raw.h2.increment_flow_control_window(1, second)
        raw.h2.send_data(second, bytes(5), end_stream=True)
        raw.flush()
        assert raw.status(second) == "0"


def served(server: Server, ca: str) -> bytes:
    """The certificate that a new connection gets."""
    host, _, port = server.address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), CALL_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        found = wrapped.getpeercert(binary_form=True)
        assert found is not None
        return found


def test_a_renewed_certificate_is_served_to_new_connections_and_open_ones_go_on(
    tmp_path: Path,
) -> None:
    authority = Authority()
    certificate, key = authority.server().write(tmp_path, "server")
    ca = str(authority.write(tmp_path))
    with Server(*ENVOY, "--tls-cert", str(certificate), "--tls-key", str(key)) as server:
        target = server.address.replace("127.0.0.1", "localhost")
        with Client(target, tls_ca=ca, timeout=CALL_SECONDS) as client:
            assert client.devices()
            first = served(server, ca)
            renewed = authority.server()
            certificate.write_bytes(renewed.certificate)
            key.write_bytes(renewed.key)
            until(lambda: served(server, ca) != first)
            assert client.devices()
        assert server.stop() == 0, server.log()


def test_sigterm_gives_results_or_unavailable_and_nothing_else() -> None:
    with Server(*ENVOY) as server:
        server.load(ADD, "CPU")
        calls = [server.start("add", ADD.inputs) for _ in range(64)]
        server.terminate()
        calls += [server.start("add", ADD.inputs) for _ in range(64)]
        for call in calls:
            until(call.done)
        codes = {call.code() for call in calls}
        assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}, codes
        assert server.process.wait(CALL_SECONDS) == 0, server.log()


def test_results_of_a_stream_name_their_errors(server: Server) -> None:
    stream = Stream(server.stub)
    stream.send(infer_request("nothing", ADD.inputs, id="a"))
    assert outcome_of(stream.next()) == "NOT_FOUND"
    stream.done()
