"""What callers without a pause see of a server's end: `make test-stop`.

The callers are grpcio's two clients and one in C++, which needs Debian's g++, pkg-config,
protobuf-compiler-grpc, libprotobuf-dev and libgrpc++-dev. Each kind sees ten servers stop, or as
many as the variable STOPS says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import grpc
import pytest

from headrace.testing import networks
from tests.integration.harness import BASIC, CALL_SECONDS, Server, infer_request
from tests.support.cpp import compiled

pytestmark = pytest.mark.timeout(3600)

HERE = Path(__file__).parent
PROTO = HERE.parents[1] / "proto"
STOPS = int(os.environ.get("STOPS", "10"))
NEEDED = ("protoc", "grpc_cpp_plugin")
OK, UNAVAILABLE = (code.value[0] for code in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE))


@pytest.fixture(scope="module")
def cpp_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client in C++, compiled with code that is generated of our protocol."""
    lacking = [tool for tool in NEEDED if shutil.which(tool) is None]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} not found: apt-get install protobuf-compiler-grpc")
    folder = tmp_path_factory.mktemp("cpp")
    common = sysconfig.get_path("purelib")
    sources = ["headrace/v1/inference_engine.proto", "google/rpc/status.proto"]
    plugin = f"--plugin=protoc-gen-grpc={shutil.which('grpc_cpp_plugin')}"
    outputs = [f"--cpp_out={folder}", f"--grpc_out={folder}", plugin]
    run = ["protoc", f"-I{PROTO}", f"-I{common}", *outputs, *sources]
    subprocess.run(run, check=True)
    generated = [folder / source.replace(".proto", ".pb.cc") for source in sources]
    generated.append(folder / "headrace/v1/inference_engine.grpc.pb.cc")
    return compiled(HERE / "closed_loop.cc", folder, f"-I{folder}", *generated)


def statuses(command: list[str], request: Path, callers: int) -> Counter[int]:
    """Stops one server under so many callers; how often they saw which status."""
    case = networks.add()
    with Server(*BASIC) as server:
        server.load(case, "CPU")
        request.write_bytes(infer_request("add", case.inputs).SerializeToString())
        with subprocess.Popen(
            [*command, server.address, str(request), str(callers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            try:
                assert client.stdout is not None
                assert client.stdout.readline() == "calling\n"
                assert server.stop() == 0, server.log()
                said, _ = client.communicate("", CALL_SECONDS)
            finally:
                client.kill()
        assert "Traceback" not in server.log(), server.log()
    return Counter({int(code): int(count) for code, count in map(str.split, said.splitlines())})


@pytest.mark.parametrize("callers", [16, 80])
@pytest.mark.parametrize("client", ["sync", "aio", "cpp"])
def test_callers_without_a_pause_see_nothing_but_replies_and_unavailable(
    client: str, callers: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if client == "cpp":
        command = [str(request.getfixturevalue("cpp_client"))]
    else:
        command = [sys.executable, str(HERE / "closed_loop.py"), client]
    seen: Counter[int] = Counter()
    for _ in range(STOPS):
        seen += statuses(command, tmp_path / "request", callers)
    print(f"{client}, {callers} callers, {STOPS} stops: {dict(seen)}")
    assert seen.keys() == {OK, UNAVAILABLE}, seen
