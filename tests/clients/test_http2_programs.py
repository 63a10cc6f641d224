"""Programs that speak HTTP/2 and know nothing of headrace: curl, h2load, the libraries of gRPC for
Node, Go, C++ and Python, and tritonclient through nginx, HAProxy and Envoy.

Debian's packages are curl, nghttp2-client, npm, golang-google-grpc-dev, libgrpc++-dev, nginx and
haproxy.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from tests.clients.conftest import REPOSITORY, Serving, load_over_rest
from tests.support.cpp import compiled
from tests.support.proxies import NAMES, proxied

METHOD = "inference.GRPCInferenceService/ModelInfer"
HEADERS = ("-H", "content-type: application/grpc", "-H", "te: trailers")
SECONDS = 60
LARGE = 4 << 20  # floats
LARGEST = (16 << 20) - 64  # a message of 64 MiB with what is beside them
GRPC_JS = "@grpc/grpc-js@1.14"
GO_PATH = "/usr/share/gocode"
PROGRAMS = REPOSITORY / "tests/clients"

pytestmark = pytest.mark.timeout(4 * SECONDS)


def program(name: str, package: str) -> str:
    """The path of a program."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        pytest.skip(f"{name} not found: apt-get install {package}")
    return found


def output(*command: str | Path, seconds: float = SECONDS) -> str:
    done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace")


@pytest.fixture(scope="module")
def address(serving: Serving) -> str:
    """A server that has the network double."""
    load_over_rest(serving, "double")
    return serving.grpc


def request(folder: Path, count: int) -> Path:
    """A file with a call's message: so many ones to double."""
    ones = np.ones((1, count), np.float32)
    message = service_pb2.ModelInferRequest(
        model_name="double",
        inputs=[{"name": "x", "datatype": "FP32", "shape": ones.shape}],
        raw_input_contents=[ones.tobytes()],
    ).SerializeToString()
    path = folder / f"{count}.message"
    path.write_bytes(struct.pack(">BI", 0, len(message)) + message)
    return path


@pytest.mark.parametrize("count", [1, LARGE])
def test_curl_has_a_reply(address: str, tmp_path: Path, count: int) -> None:
    curl = program("curl", "curl")
    sent, reply, fields = request(tmp_path, count), tmp_path / "reply", tmp_path / "fields"
    where = f"http://{address}/{METHOD}"
    written = ("--dump-header", fields, "--output", reply)
    output(
        curl,
        "-s",
        "--http2-prior-knowledge",
        *HEADERS,
        "--data-binary",
        f"@{sent}",
        *written,
        where,
    )
    assert "grpc-status: 0" in fields.read_text()
    response = service_pb2.ModelInferResponse.FromString(reply.read_bytes()[5:])
    assert (np.frombuffer(response.raw_output_contents[0], np.float32) == 2).all()


@pytest.mark.parametrize("version", ["--http1.1", "--http2", "--http2-prior-knowledge"])
def test_curl_without_grpc_is_told_what_the_port_speaks(address: str, version: str) -> None:
    said = output(program("curl", "curl"), "-s", "-i", version, f"http://{address}/")
    assert " 415 " in said.splitlines()[0]
    assert "this port speaks grpc" in said.lower()


@pytest.mark.parametrize(
    ("connections", "streams", "calls", "count"),
    [(1, 1, 500, 8), (1, 32, 2000, 8), (32, 1, 2000, 8), (1000, 1, 5000, 8), (1, 4, 8, LARGE)],
)
def test_h2load_has_a_reply_to_each_call(
    address: str, tmp_path: Path, connections: int, streams: int, calls: int, count: int
) -> None:
    h2load = program("h2load", "nghttp2-client")
    sizes = ("-c", str(connections), "-m", str(streams), "-n", str(calls))
    sent = request(tmp_path, count)
    said = output(h2load, *sizes, *HEADERS, "-d", sent, f"http://{address}/{METHOD}")
    assert f"{calls} succeeded, 0 failed, 0 errored, 0 timeout" in said, said
    print(*re.findall(r"finished in .*", said))


def calls_in_node(folder: Path) -> list[str | Path]:
    node, npm = program("node", "nodejs"), program("npm", "npm")
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--prefix", folder, GRPC_JS],
        capture_output=True,
        timeout=2 * SECONDS,
        check=False,
    )
    if installed.returncode:
        pytest.skip(f"npm cannot install {GRPC_JS}: {installed.stderr.decode()[-300:]}")
    return [node, shutil.copy(PROGRAMS / "calls.js", folder)]


def calls_in_go(folder: Path) -> list[str | Path]:
    go = program("go", "golang-go golang-google-grpc-dev")
    environment = {**os.environ, "GO111MODULE": "off", "GOPATH": GO_PATH, "GOFLAGS": ""}
    command: list[str | Path] = [go, "build", "-o", folder / "calls", PROGRAMS / "calls.go"]
    subprocess.run(command, check=True, env=environment, timeout=4 * SECONDS)
    return [folder / "calls"]


def calls_in_cpp(folder: Path) -> list[str | Path]:
    return [compiled(PROGRAMS / "calls.cc", folder)]


def calls_in_python(_: Path, kind: str) -> list[str | Path]:
    return [sys.executable, PROGRAMS / "calls.py", kind]


@pytest.mark.timeout(10 * SECONDS)
@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(calls_in_node, id="Node"),
        pytest.param(calls_in_go, id="Go"),
        pytest.param(calls_in_cpp, id="C++"),
        pytest.param(partial(calls_in_python, kind="sync"), id="grpcio"),
        pytest.param(partial(calls_in_python, kind="aio"), id="grpc.aio"),
    ],
)
def test_each_library_of_grpc_has_what_it_asks_for(
    prepare: Callable[[Path], list[str | Path]], address: str, tmp_path: Path
) -> None:
    """Calls of 0 B to 64 MiB, all streams, metadata, compression, deadlines, cancels, pings."""
    command = prepare(tmp_path)
    files = [request(tmp_path, count) for count in (8, LARGE, LARGEST)]
    said = output(*command, address, *files, seconds=4 * SECONDS)
    assert said.splitlines()[-1] == "done", said


def ones(count: int) -> Any:
    values = np.ones((1, count), np.float32)
    given = triton.InferInput("x", values.shape, "FP32")
    given.set_data_from_numpy(values)
    return given


def double(client: Any, count: int, **more: Any) -> None:
    reply = client.infer("double", [ones(count)], **more)
    assert (reply.as_numpy("y") == 2).all()


def test_pings_of_clients_end_no_call(address: str) -> None:
    """gRPC's own server ends a connection for three pings in five minutes without messages. These
    come ten times as often as clients are advised to send them."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    often = triton.KeepAliveOptions(
        keepalive_time_ms=1000,
        keepalive_timeout_ms=10_000,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=0,
    )
    with triton.InferenceServerClient(address, keepalive_options=often) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(2):
            time.sleep(5)  # five pings
            client.async_stream_infer("double", [ones(8)])
            _, error = answers.get(timeout=SECONDS)
            assert error is None
        client.stop_stream()


@pytest.mark.parametrize("name", NAMES)
def test_calls_come_through_a_proxy(address: str, tmp_path: Path, name: str) -> None:
    with (
        proxied(name, address, tmp_path) as proxy,
        triton.InferenceServerClient(proxy.address) as client,
    ):
        assert client.is_server_live()
        for count in (1, 1000, LARGE):
            double(client, count)
        double(client, 8, headers={"x-long": "a" * 15_000})
        double(client, 100_000, compression_algorithm="gzip")
        with pytest.raises(triton.InferenceServerException, match="did you mean 'double'"):
            client.infer("doubel", [])


@pytest.mark.parametrize("name", NAMES)
def test_streams_deadlines_and_cancels_come_through_a_proxy(
    address: str, tmp_path: Path, name: str
) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def noted(result: Any, error: Any) -> None:
        answers.put((result, error))

    with (
        proxied(name, address, tmp_path) as proxy,
        triton.InferenceServerClient(proxy.address) as client,
    ):
        client.start_stream(noted)
        for number in range(200):
            client.async_stream_infer("double", [ones(1000)], request_id=str(number))
        found = [answers.get(timeout=SECONDS) for _ in range(200)]
        client.stop_stream()
        assert {result.get_response().id for result, error in found if error is None} == {
            str(number) for number in range(200)
        }
        with pytest.raises(triton.InferenceServerException, match="Deadline"):
            client.infer("double", [ones(LARGE)], client_timeout=0.001)
        client.async_infer("double", [ones(LARGE)], noted).cancel()
        _, error = answers.get(timeout=SECONDS)
        assert "CANCELLED" in str(error)
        double(client, 8)
