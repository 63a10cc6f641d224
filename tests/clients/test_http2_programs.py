"""Programs that speak HTTP/2 and know nothing of headrace: curl, h2load, Node's grpc-js, and
tritonclient through nginx and HAProxy.

Debian's packages are curl, nghttp2-client, npm, nginx and haproxy.
"""

from __future__ import annotations

import re
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from tests.clients.conftest import REPOSITORY, Serving, load_over_rest

METHOD = "inference.GRPCInferenceService/ModelInfer"
HEADERS = ("-H", "content-type: application/grpc", "-H", "te: trailers")
SECONDS = 60
LARGE = 4 << 20  # floats
GRPC_JS = "@grpc/grpc-js@1.14"

pytestmark = pytest.mark.timeout(4 * SECONDS)


def program(name: str, package: str) -> str:
    """The path of a program."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        pytest.skip(f"{name} not found: apt-get install {package}")
    return found


def output(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
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


def test_grpc_js_has_what_it_asks_for(address: str, tmp_path: Path) -> None:
    node, npm = program("node", "nodejs"), program("npm", "npm")
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--prefix", tmp_path, GRPC_JS],
        capture_output=True,
        timeout=2 * SECONDS,
        check=False,
    )
    if installed.returncode:
        pytest.skip(f"npm cannot install {GRPC_JS}: {installed.stderr.decode()[-300:]}")
    script = shutil.copy(REPOSITORY / "tests/clients/calls.js", tmp_path)
    said = output(node, script, address, request(tmp_path, 8), request(tmp_path, LARGE))
    assert said.splitlines()[-1] == "done", said


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


NGINX = """
pid {folder}/pid; error_log stderr; daemon off;
events {{ worker_connections 256; }}
http {{
    access_log off; client_max_body_size 0; client_body_temp_path {folder}/body;
    server {{
        listen 127.0.0.1:{port} http2; large_client_header_buffers 4 32k;
        location / {{ grpc_pass grpc://{server}; }}
    }}
}}
"""
HAPROXY = """
global
    tune.bufsize 65536
defaults
    mode http
    timeout connect 10s
    timeout client 1m
    timeout server 1m
listen proxy
    bind 127.0.0.1:{port} proto h2
    server one {server} proto h2
"""


def nginx(folder: Path, file: Path) -> list[str | Path]:
    return [program("nginx", "nginx"), "-p", folder, "-e", "stderr", "-c", file]


def haproxy(_: Path, file: Path) -> list[str | Path]:
    return [program("haproxy", "haproxy"), "-db", "-f", file]


@contextmanager
def proxy(
    command: Callable[[Path, Path], list[str | Path]], text: str, server: str, folder: Path
) -> Iterator[str]:
    """Runs a proxy, and yields its address."""
    port, file = free_port(), folder / "proxy.conf"
    file.write_text(text.format(folder=folder, port=port, server=server))
    with subprocess.Popen(command(folder, file), stderr=subprocess.DEVNULL) as process:
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def double(client: Any, count: int, **more: Any) -> None:
    ones = np.ones((1, count), np.float32)
    given = triton.InferInput("x", ones.shape, "FP32")
    given.set_data_from_numpy(ones)
    reply = client.infer("double", [given], **more)
    assert (reply.as_numpy("y") == 2).all()


@pytest.mark.parametrize(("command", "text"), [(nginx, NGINX), (haproxy, HAPROXY)])
def test_calls_come_through_a_proxy(
    address: str,
    tmp_path: Path,
    command: Callable[[Path, Path], list[str | Path]],
    text: str,
) -> None:
    with (
        proxy(command, text, address, tmp_path) as through,
        triton.InferenceServerClient(through) as client,
    ):
        until = time.monotonic() + SECONDS
        while True:
            try:
                assert client.is_server_live()
                break
            except triton.InferenceServerException:
                assert time.monotonic() < until
        for count in (1, 1000, LARGE):
            double(client, count)
        double(client, 8, headers={"x-long": "a" * 15_000})
        double(client, 100_000, compression_algorithm="gzip")
        with pytest.raises(triton.InferenceServerException, match="did you mean 'double'"):
            client.infer("doubel", [])
