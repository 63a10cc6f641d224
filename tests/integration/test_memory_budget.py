"""More networks than the memory budget has room for, over real sockets."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.client import Client, errors
from headrace.oip import open_inference_pb2 as oip
from headrace.oip import open_inference_pb2_grpc as oip_grpc
from headrace.testing import networks
from headrace.testing.case import parse
from headrace.testing.compare import assert_same_outputs
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import decode_values
from tests.integration.harness import (
    CALL_SECONDS,
    Server,
    Stream,
    infer_request,
    outcome_of,
    refused_start,
    until,
)
from tests.support.gate import run_together
from tests.support.open_inference import infer_request as open_request
from tests.support.open_inference import outputs_of, requested
from tests.support.stateful import SUM, SUM_STATES

NAMES = tuple(f"net{number}" for number in range(6))
WEIGHTS = 256 * 1024  # of four bytes: a load takes 7 MiB at most, and a loaded network 1 MiB
PIPELINE = """
[[step]]
name = "one"
network = "net0"
inputs = {x = "x"}
outputs = {middle = "y"}

[[step]]
name = "two"
network = "net1"
inputs = {x = "middle"}
outputs = {y = "y"}

[outputs]
y = "y"
"""


def model(number: int) -> bytes:
    """y = x + number, with a weight of 1 MiB."""
    weight = np.full(WEIGHTS, number, np.float32)
    text = """m (float[N] x) => (float[N] y) {
        most = ReduceMax<keepdims = 0>(w)
        y = Add(x, most)
    }"""
    return parse(text, {"w": weight}).SerializeToString()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(model(number))
    return tmp_path


@pytest.fixture
def tight(repository: Path) -> Iterator[Server]:
    """A server with room for the load of one network beside two that are loaded."""
    (repository / "sum").mkdir()
    (repository / "sum" / "model.onnx").write_bytes(SUM.SerializeToString())
    (repository / "sum" / "network.toml").write_text(f"[config]\nSTATES = '{SUM_STATES}'")
    with Server(
        "--devices",
        "CPU",
        "--model-repository",
        str(repository),
        "--memory-budget",
        "CPU=9MiB",
    ) as server:
        yield server
        assert server.stop() == 0, server.log()
        assert "Traceback" not in server.log(), server.log()


def open_stub(server: Server) -> Any:
    return oip_grpc.GRPCInferenceServiceStub(server.channel)  # type: ignore[no-untyped-call]


def x(value: float) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.full(2, value, np.float32)}


def states(server: Server) -> dict[str, str]:
    with Client(server.address) as client:
        return {each.name: each.info.state for each in client.networks()}


def test_a_server_with_a_budget_loads_nothing_at_its_start_and_is_ready(tight: Server) -> None:
    assert set(states(tight).values()) == {"KNOWN"}
    stub = open_stub(tight)
    index = stub.RepositoryIndex(oip.RepositoryIndexRequest(ready=True), timeout=CALL_SECONDS)
    assert {each.name: (each.state, each.reason) for each in index.models}["net0"] == (
        "READY",
        "its first request loads it",
    )
    assert stub.ModelReady(oip.ModelReadyRequest(name="net0"), timeout=CALL_SECONDS).ready
    assert json.loads(tight.get("/v2/models/net0/ready"))["ready"]
    health = health_pb2_grpc.HealthStub(tight.channel)
    of_network = health.Check(health_pb2.HealthCheckRequest(service="net0"), timeout=CALL_SECONDS)
    assert of_network.status == health_pb2.HealthCheckResponse.SERVING
    assert tight.total("headrace_network_up", network="net0") == 1
    assert tight.total("headrace_network_loaded", network="net0") == 0
    assert set(states(tight).values()) == {"KNOWN"}


def test_every_way_to_ask_loads_what_is_asked_for(tight: Server) -> None:
    stub = open_stub(tight)
    metadata = oip.ModelMetadataRequest(name="net0")
    assert [each.name for each in stub.ModelMetadata(metadata, timeout=CALL_SECONDS).inputs] == [
        "x"
    ]
    assert json.loads(tight.get("/v2/models/net1/config"))["name"] == "net1"
    reply = stub.ModelInfer(open_request("net2", x(1)), timeout=CALL_SECONDS)
    np.testing.assert_array_equal(outputs_of(reply)["y"], [3, 3])
    wanted = [requested("y", classification=1)]
    reply = stub.ModelInfer(open_request("net3", x(1), outputs=wanted), timeout=CALL_SECONDS)
    assert outputs_of(reply)["y"].tolist() == ["4.000000:0"]
    with Client(tight.address) as client:
        assert [port.name for port in client.network("net4").inputs] == ["x"]
    np.testing.assert_array_equal(tight.infer("net5", x(1))["y"], [6, 6])
    assert tight.total("headrace_cold_requests_total") == 6
    assert tight.total("headrace_network_loaded", network="net5") == 1
    assert tight.total("headrace_network_idle_seconds", network="net5") < CALL_SECONDS
    with Client(tight.address) as client:
        listed = next(each for each in client.repository() if each.name == "net5")
        shown = client.network("net5").info
    for each in (listed, shown):
        assert each.memory_bytes > 0
        assert each.idle_seconds is not None
        assert 0 < each.idle_seconds < CALL_SECONDS
    assert tight.total("headrace_evictions_total", device="CPU") >= 3


def test_a_stream_waits_for_its_networks(tight: Server) -> None:
    stream = Stream(tight.stub)
    stream.send(*(infer_request(name, x(1), id=name) for name in NAMES))
    stream.done()
    results = [stream.next() for _ in NAMES]
    assert {outcome_of(each) for each in results} == {"OK"}, results
    assert {each.id for each in results} == {*NAMES}


def test_the_requests_of_a_sequence_wait_in_their_order(tight: Server) -> None:
    stream = Stream(tight.stub)
    value = np.ones((1, 2), np.float32)
    stream.send(
        *(
            infer_request(
                "sum",
                {"x": value},
                id=str(turn),
                session=pb.Session(id="s", start=turn == 0, end=turn == 4),
            )
            for turn in range(5)
        )
    )
    stream.done()
    results = [stream.next() for _ in range(5)]
    assert {outcome_of(each) for each in results} == {"OK"}, results
    assert [each.id for each in results] == ["0", "1", "2", "3", "4"]


def test_callers_of_more_networks_than_fit_all_get_right_answers(tight: Server) -> None:
    def call(turn: int) -> Callable[[], None]:
        def many() -> None:
            with Client(tight.address) as client:
                for step in range(10):
                    number = (turn * step + turn) % len(NAMES)
                    found = client.network(NAMES[number]).infer(x(turn))
                    np.testing.assert_array_equal(found["y"], [turn + number] * 2)

        return many

    run_together(*map(call, range(8)))
    assert "READY" in states(tight).values()
    assert tight.total("headrace_network_requests_total", outcome="failed") == 0


def test_a_pipeline_is_loaded_after_the_networks_of_its_steps(repository: Path) -> None:
    (repository / "both").mkdir()
    (repository / "both" / "pipeline.toml").write_text(PIPELINE)
    options = ("--devices", "CPU,PIPELINE", "--model-repository", str(repository))
    with Server(*options, "--memory-budget", "CPU=1GiB") as server:
        with Client(server.address) as client:
            np.testing.assert_array_equal(client.network("both").infer(x(1))["y"], [2, 2])
            own = client.load_pipeline(PIPELINE.replace("net0", "net2"), name="own")
            np.testing.assert_array_equal(own.infer(x(1))["y"], [4, 4])
        ready = {name for name, state in states(server).items() if state == "READY"}
        assert ready == {"both", "own", "net0", "net1", "net2"}


def test_a_client_s_pipeline_is_there_after_a_restart_with_the_networks_of_its_steps(
    repository: Path, tmp_path: Path
) -> None:
    options = [
        "--devices",
        "CPU,PIPELINE",
        "--model-repository",
        str(repository),
        "--memory-budget",
        "CPU=1GiB",
        "--state-dir",
        str(tmp_path / ".state"),
    ]
    with Server(*options) as server, Client(server.address) as client:
        client.load_pipeline(PIPELINE, name="own")
        assert server.stop() == 0
    with Server(*options) as server, Client(server.address) as client:
        np.testing.assert_array_equal(client.network("own").infer(x(1))["y"], [2, 2])
        assert states(server)["own"] == "READY"


GATED = """
devices = "GATED"
[plugins.GATED]
factory = "tests.support.exporting_device:create_gated"
"""


def test_a_start_does_not_wait_for_the_networks_of_clients_and_their_requests_do(
    tmp_path: Path,
) -> None:
    config, state = tmp_path / "headrace.toml", tmp_path / "state"
    config.write_text(GATED)
    (tmp_path / "gate").touch()
    budget = ("--memory-budget", "GATED=1GiB")
    options = ("--config", str(config), "--state-dir", str(state), *budget)
    folder = {"TEST_GATE": str(tmp_path)}
    case = networks.add()
    with Server(*options, environment=folder) as server:
        server.load(case, "GATED", "kept")
        before = server.infer("kept", case.inputs)
        server.kill()
    with (tmp_path / "gate").open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        with Server(*options, environment=folder) as server:
            assert states(server)["kept"] in ("KNOWN", "LOADING")
            waits = server.start("kept", case.inputs)
            fcntl.flock(gate, fcntl.LOCK_UN)
            reply = waits.result()
            outputs = decode_values(reply.outputs, reply.attachments, "outputs")
            assert_same_outputs(outputs, before, 0.0)
            assert states(server) == {"kept": "READY"}
            assert server.stop() == 0, server.log()


def test_a_network_that_a_request_loads_already_is_loaded_again_by_name_after_that(
    tmp_path: Path,
) -> None:
    config, net = tmp_path / "headrace.toml", tmp_path / "models" / "net"
    config.write_text(GATED)
    (tmp_path / "gate").touch()
    net.mkdir(parents=True)
    (net / "model.onnx").write_bytes(networks.add().model.SerializeToString())
    (net / "network.toml").write_text('device = "GATED"')
    options = ("--config", str(config), "--model-repository", str(net.parent))
    with (
        (tmp_path / "gate").open() as gate,
        Server(
            *options, "--memory-budget=GATED=1GiB", environment={"TEST_GATE": str(tmp_path)}
        ) as server,
    ):
        fcntl.flock(gate, fcntl.LOCK_EX)
        waits = server.start("net", networks.add().inputs)
        until(lambda: states(server)["net"] == "LOADING")
        load = oip.RepositoryModelLoadRequest(model_name="net")
        loads = [open_stub(server).RepositoryModelLoad.future(load) for _ in range(2)]
        assert not any(each.done() for each in loads)
        fcntl.flock(gate, fcntl.LOCK_UN)
        for each in (waits, *loads):
            each.result(CALL_SECONDS)
        assert states(server) == {"net": "READY"}


def test_the_networks_of_clients_stay_in_memory_also_after_a_restart(
    repository: Path, tmp_path: Path
) -> None:
    options = ("--devices", "CPU", "--state-dir", str(tmp_path / ".state"))
    room = ("--model-repository", str(repository), "--memory-budget", "CPU=12MiB")
    with Server(*options) as server, Client(server.address) as client:
        client.load_network(model(7), device="CPU", name="own")
        server.kill()
    with Server(*options, *room) as server, Client(server.address) as client:
        for name in ("own", *NAMES):
            client.network(name).infer(x(1))
        assert states(server)["own"] == "READY"
        assert server.total("headrace_evictions_total", device="CPU") > 0


def test_a_network_that_cannot_fit_says_what_it_needs(repository: Path) -> None:
    with (
        Server(
            "--devices=CPU",
            f"--model-repository={repository}",
            "--memory-budget=CPU=512KiB",
        ) as server,
        Client(server.address) as client,
    ):
        with pytest.raises(errors.ResourceExhausted, match="'net0' needs 1 MiB to load"):
            client.network("net0")
        assert states(server)["net0"] == "KNOWN"


@pytest.mark.parametrize("budget", ["CPUS=1GiB", "CPU", "CPU=0", "0%", "101%", "CPU=1GiB,CPU=1GiB"])
def test_a_budget_that_is_none_ends_the_start(budget: str) -> None:
    code, log = refused_start("--devices", "CPU", "--memory-budget", budget)
    assert code
    assert "memory" in log
    assert "Traceback" not in log


def test_a_budget_may_be_a_part_of_the_memory_of_the_machine(repository: Path) -> None:
    with Server(
        "--devices=CPU",
        f"--model-repository={repository}",
        "--memory-budget=50%",
    ) as server:
        assert server.total("headrace_memory_budget_bytes", device="all") > 2**20
        np.testing.assert_array_equal(server.infer("net3", x(1))["y"], [4, 4])
        # It is measured when what only the load needed is free, perhaps after the reply.
        until(lambda: server.total("headrace_network_memory_bytes", network="net3") >= 2**20)


def test_two_clients_whose_networks_drive_each_other_out_always_find_them(
    repository: Path,
) -> None:
    with Server(
        "--devices=CPU",
        f"--model-repository={repository}",
        "--memory-budget=CPU=7MiB",  # of one network, while another one is loaded
    ) as server:

        def client(number: int, *, loads: bool) -> Callable[[], None]:
            name = NAMES[number]

            def ask() -> None:
                stub = open_stub(server)
                for step in range(8):
                    if loads:
                        load = oip.RepositoryModelLoadRequest(model_name=name)
                        stub.RepositoryModelLoad(load, timeout=CALL_SECONDS)
                    reply = stub.ModelInfer(open_request(name, x(step)), timeout=CALL_SECONDS)
                    np.testing.assert_array_equal(outputs_of(reply)["y"], [step + number] * 2)

            return ask

        run_together(client(0, loads=False), client(1, loads=False))
        run_together(client(2, loads=True), client(3, loads=True))
        assert server.total("headrace_evictions_total", device="CPU") >= 3
        assert server.total("headrace_network_requests_total", outcome="failed") == 0


def test_clients_networks_make_room_if_the_operator_wants_it(tmp_path: Path) -> None:
    options = ["--devices", "CPU", "--memory-budget", "CPU=9MiB", "--evict-client-networks"]
    options += ["--state-dir", str(tmp_path / ".state")]
    with Server(*options) as server, Client(server.address) as client:
        for number, name in enumerate(NAMES):
            client.load_network(model(number), name=name)
        for number, name in enumerate(NAMES):
            np.testing.assert_array_equal(server.infer(name, x(1))["y"], [1 + number] * 2)
        assert {*states(server).values()} == {"READY", "EVICTED"}
        assert server.stop() == 0
    with Server(*options) as server:
        assert {*states(server).values()} == {"KNOWN"}
        for number, name in enumerate(NAMES):
            np.testing.assert_array_equal(server.infer(name, x(1))["y"], [1 + number] * 2)


def test_openvino_has_a_budget_of_its_own(repository: Path) -> None:
    pytest.importorskip("openvino")
    for name in NAMES[:4]:
        (repository / name / "network.toml").write_text('device = "OPENVINO"')
    with Server(
        "--devices=CPU,OPENVINO",
        f"--model-repository={repository}",
        "--memory-budget=OPENVINO=9MiB,CPU=1GiB",
    ) as server:
        for number, name in enumerate(NAMES):
            np.testing.assert_array_equal(server.infer(name, x(1))["y"], [1 + number] * 2)
        assert server.total("headrace_evictions_total", device="OPENVINO") >= 1
        assert server.total("headrace_evictions_total", device="CPU") == 0
        ready = {name for name, state in states(server).items() if state == "READY"}
        assert ready >= {*NAMES[3:]}
