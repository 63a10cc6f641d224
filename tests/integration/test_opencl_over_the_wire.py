"""OPENCL over the wire: many requests at once, and a worker that is killed under load."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from headrace.runtime.network.values import Value
from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.testing.compare import assert_same_outputs
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import decode_values
from tests.integration.child_processes import children
from tests.integration.harness import CALL_SECONDS, Server, assert_settled, details_of, until
from tests.integration.test_isolation import Load, await_next, relu

KILLS = int(os.environ.get("KILLS", "1"))
TOLERANCE = 1e-5
_REQUESTS = 100
_WEIGHT_BYTES = 16 << 20


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def server(state: Path) -> Iterator[Server]:
    options = ("--devices", "CPU,OPENCL", "--state-dir", str(state))
    with Server(*options, environment={"CACHEDB": "", "POCL_CACHE_DIR": ""}) as running:
        if "OPENCL" not in running.devices():
            pytest.skip(running.log().partition("OPENCL did not start: ")[2].partition("\n")[0])
        yield running
        assert running.stop() == 0, running.log()


@pytest.fixture(autouse=True)
def no_networks_left(server: Server) -> Iterator[None]:
    yield
    server.unload(*server.networks())


def worker(server: Server) -> psutil.Process:
    (process,) = children(server)
    return process


def doubled(case: Case, turn: int) -> dict[str, Value]:
    return {name: np.asarray(value) * np.float32(turn + 1) for name, value in case.inputs.items()}


@pytest.mark.long
def test_auto_misses_no_opencl_where_no_driver_is_installed() -> None:
    with Server(environment={"OCL_ICD_VENDORS": "/nonexistent"}) as running:
        info = running.load(networks.add(), "AUTO", "m")
        assert not [note for note in info.notes if "OPENCL" in note]
        assert running.stop() == 0


@pytest.mark.long
def test_a_network_whose_static_shapes_no_memory_holds_is_too_much_for_its_load(
    server: Server,
) -> None:
    """Kernels are made at the load, with an example of the shapes."""
    text = """huge (float[1,1048576] x) => (float[1048576,1048576] y) {
        t = Transpose(x)
        y = Mul(x, t)
    }"""
    model = pb.ModelSource(data=parse(text, {}).SerializeToString())
    request = pb.LoadNetworkRequest(name="huge", device="OPENCL", model=model)
    with pytest.raises(grpc.RpcError) as refused:
        server.stub.LoadNetwork(request, timeout=CALL_SECONDS)
    details = details_of(refused.value)
    assert details.code is grpc.StatusCode.RESOURCE_EXHAUSTED, details
    assert "no memory for the network" in details.message


@pytest.mark.long
def test_a_hundred_requests_at_once_on_two_networks_get_their_own_outputs(server: Server) -> None:
    cases = (networks.add(), networks.mlp())
    for case in cases:
        server.load(case, "OPENCL")
    inputs = [doubled(cases[turn % 2], turn) for turn in range(_REQUESTS)]
    calls = [server.start(cases[turn % 2].name, each) for turn, each in enumerate(inputs)]
    for turn, call in enumerate(calls):
        reply = call.result()
        outputs = decode_values(reply.outputs, reply.attachments, "outputs")
        assert_same_outputs(outputs, cases[turn % 2].expected(inputs[turn]), TOLERANCE)
    assert_settled(server)


def test_the_server_itself_does_not_load_the_backend_whose_kernels_lie_in_the_state_directory(
    server: Server, state: Path
) -> None:
    server.load(networks.add(), "OPENCL")
    assert "OpenCL" not in Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "OpenCL" in Path(f"/proc/{worker(server).pid}/maps").read_text()
    assert (state / "kept/OPENCL/kernels.db").stat().st_size


def test_it_says_what_kind_of_device_it_is(server: Server) -> None:
    assert server.metric("DEVICE_TYPE", "OPENCL") in ("DISCRETE", "INTEGRATED", "EMULATED")
    assert server.metric("AVAILABLE_DEVICES", "OPENCL")[0] == "0"
    assert server.metric("FULL_DEVICE_NAME", "OPENCL")
    assert "FP32" in server.metric("OPTIMIZATION_CAPABILITIES", "OPENCL")


def test_an_index_outside_of_what_it_picks_from_fails_alone(server: Server) -> None:
    case = networks.fragile()
    server.load(case, "OPENCL")
    bad = {**case.inputs, "at": np.array([5], np.int64)}
    calls = [server.start(case.name, bad if turn % 2 else case.inputs) for turn in range(6)]
    codes = [call.code().name for call in calls]
    assert codes == ["OK", "INVALID_ARGUMENT"] * 3


@pytest.mark.long
def test_a_worker_that_is_killed_under_load_loses_no_reply_and_gives_no_wrong_one(
    server: Server,
) -> None:
    server.load(relu("busy"), "OPENCL")
    server.load(relu("second"), "OPENCL")
    with Load(server, "busy", sizes=(4, 3000)) as load:
        load.wait_for("OK", 20)
        for _ in range(KILLS):
            process = worker(server)
            os.kill(process.pid, signal.SIGKILL)
            process.wait(CALL_SECONDS)
            await_next(server, "OPENCL", {process.pid})
            assert server.total("headrace_device_up", device="OPENCL.0") == 1.0
            load.wait_for("OK", 20)
    assert set(load.outcomes) <= {"OK", "UNAVAILABLE"}
    assert not load.wrong
    answer = server.infer("second", {"x": np.array([-1, 1], np.float32)})["y"]
    assert np.asarray(answer).tolist() == [0, 1]
    assert_settled(server)
    server.unload("busy", "second")
    maps = Path(f"/proc/{server.process.pid}/maps")
    until(lambda: "headrace-tensors" not in maps.read_text(), "shared memory is given back")
    assert len(children(server)) == 1


def test_memory_comes_back_when_a_network_goes(server: Server) -> None:
    size = int((_WEIGHT_BYTES // 4) ** 0.5)
    text = f"wide (float[1,{size}] x) => (float[1,{size}] y) {{ y = MatMul(x, w) }}"
    case = Case("wide", parse(text, {"w": networks.random(size, size)}), {})
    x = networks.random(1, size)
    held = []
    for _ in range(3):
        server.load(case, "OPENCL")
        server.infer(case.name, {"x": x})
        server.unload(case.name)
        held.append(worker(server).memory_info().rss)
    assert held[-1] - held[0] < _WEIGHT_BYTES
