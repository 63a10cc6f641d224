"""OPENVINO over the wire: it agrees with CPU, and a request ends as it should."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.testing import networks
from headrace.testing.case import Case, network_of, parse
from headrace.testing.compare import assert_same, assert_same_outputs
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import decode_values
from tests.integration.child_processes import children
from tests.integration.harness import Server, until

MAGIKA = Path(__file__).parents[2] / ".cache/magika/model.onnx"
DEVICE = "OPENVINO"
TOLERANCE = 1e-4
_RESHAPE = "reshape (float[N] x, int64[2] p) => (float[A,B] y) { y = Reshape(x, p) }"


@pytest.fixture
def loaded(server: Server) -> Iterator[Server]:
    """The server without the networks that the test left there."""
    before = server.networks()
    yield server
    server.unload(*(name for name in server.networks() if name not in before))


def magika() -> Case:
    if not MAGIKA.is_file():
        pytest.skip("make fetches the model")
    data = np.random.default_rng(0).integers(0, 256, (3, 2048)).astype(np.int32)
    model = onnx.load(MAGIKA)
    (x,) = network_of(model).inputs
    return Case("magika", model, {x.name: data})


CASES = {
    "magika": magika,
    "image": networks.image,
    "transformer": networks.transformer,
    "recurrent": networks.recurrent,
    "mlp": networks.mlp,
    "local_function": networks.local_function,
}


@pytest.mark.parametrize("name", CASES)
def test_it_agrees_with_cpu(loaded: Server, name: str) -> None:
    case = CASES[name]()
    for device in ("CPU", DEVICE):
        loaded.load(case, device, f"{name}-{device}")
    outputs = [loaded.infer(f"{name}-{device}", case.inputs) for device in (DEVICE, "CPU")]
    assert_same_outputs(outputs[0], outputs[1], TOLERANCE)


def test_many_requests_on_two_networks_at_once_get_their_own_outputs(loaded: Server) -> None:
    add, large = networks.add(), networks.image()
    for case in (add, large):
        loaded.load(case, DEVICE)
    calls = []
    for turn in range(64):
        case = (add, large)[turn % 2]
        inputs = {name: np.asarray(value) * (turn + 1) for name, value in case.inputs.items()}
        inputs = {name: value.astype(np.float32) for name, value in inputs.items()}
        calls.append((case, inputs, loaded.start(case.name, inputs)))
    for case, inputs, call in calls:
        reply = call.result()
        outputs = decode_values(reply.outputs, reply.attachments, "outputs")
        assert_same_outputs(outputs, case.expected(inputs), TOLERANCE)


def test_a_request_that_only_the_run_finds_wrong_fails_each_time_and_alone(loaded: Server) -> None:
    loaded.load(Case("reshape", parse(_RESHAPE), {}), DEVICE)
    x = np.ones(4, np.float32)
    calls = [
        loaded.start("reshape", {"x": x, "p": np.array([2 + turn % 2, 2], np.int64)})
        for turn in range(8)
    ]
    for turn, call in enumerate(calls):
        if turn % 2:
            with pytest.raises(grpc.RpcError) as caught:
                call.result()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        else:
            reply = call.result()
            outputs = decode_values(reply.outputs, reply.attachments, "outputs")
            assert_same(outputs["y"], x.reshape(2, 2), 0)


def test_an_exported_network_is_imported_under_another_name(loaded: Server) -> None:
    case = networks.typed(np.float32, "float")
    loaded.load(case, DEVICE)
    info = loaded.import_blob(loaded.export(case.name), "again")
    assert not [note for note in info.notes if "anew" in note]
    assert_same_outputs(loaded.infer("again", case.inputs), case.expected(), TOLERANCE)


def test_a_reply_says_what_each_layer_cost_in_the_networks_own_names(loaded: Server) -> None:
    case = networks.mlp()
    loaded.load(case, DEVICE)
    call = loaded.start(case.name, case.inputs, performance_counts=True)
    layers = call.result().performance_counts
    names = {origin for layer in layers for origin in layer.original_layers}
    assert {"dense1", "relu1", "dense2", "dense3", "softmax"} <= names
    assert {layer.device.partition(".")[0] for layer in layers} <= {"CPU", DEVICE}


def test_the_series_say_how_many_requests_cpu_ran(loaded: Server) -> None:
    case = networks.mlp()
    loaded.load(case, DEVICE)
    for _ in range(2):
        loaded.infer(case.name, case.inputs)

    def counted() -> float:
        labels = {"network": case.name, "device": "OPENVINO.CPU", "reason": "compiling"}
        return loaded.total("headrace_fallback_requests_total", **labels)

    until(lambda: counted() == 2, "the worker was to tell")


def test_the_status_says_what_runs_each_shape_and_why(loaded: Server) -> None:
    case = networks.mlp()
    loaded.load(case, DEVICE)
    loaded.infer(case.name, case.inputs)

    def told() -> list[dict[str, Any]]:
        found = json.loads(loaded.get(f"/status?match={case.name}"))["networks"]
        return [shape for each in found for shape in each["shapes"]]

    until(lambda: bool(told()), "the worker was to tell")
    (shape,) = told()
    assert shape["device"] == "CPU"
    assert shape["reason"] == "compiling: answered 1 time(s)"


def test_parts_of_a_network_that_it_does_not_claim_run_in_its_process(loaded: Server) -> None:
    text = "parts (float[N] x) => (int64[1,M] y) { a = Neg(x) b = Abs(a) y = NonZero(b) }"
    x = np.array([0, 3, 0, 4], np.float32)
    loaded.load(Case("parts", parse(text), {}), DEVICE, config={"FALLBACK": "ALL"})

    def trial_ended() -> bool:
        outputs = loaded.infer("parts", {"x": x})
        assert_same_outputs(outputs, {"y": np.array([[1, 3]], np.int64)}, 0.0)
        found = json.loads(loaded.get("/status?match=parts"))["networks"]
        texts = [shape["reason"] for each in found for shape in each["shapes"]]
        return any("parts on OpenVINO and CPU" in each and "trial" not in each for each in texts)

    until(trial_ended, "both ways were to be measured")


def test_what_the_device_can_do_is_asked_by_its_id(server: Server) -> None:
    target = pb.Target(device=DEVICE)
    for device_id in server.metric("AVAILABLE_DEVICES", DEVICE):
        reply = server.stub.GetMetric(
            pb.GetMetricRequest(
                target=target,
                name="OPTIMIZATION_CAPABILITIES",
                options={"DEVICE_ID": device_id},
            )
        )
        assert "FP32" in str(reply.value)


def test_an_idle_server_has_not_loaded_the_library_until_a_network_needs_it() -> None:
    with Server("--devices", "CPU,OPENVINO") as idle:

        def libraries(pid: int) -> str:
            return Path(f"/proc/{pid}/maps").read_text()

        idle.get("/metrics")
        health_pb2_grpc.HealthStub(idle.channel).Check(health_pb2.HealthCheckRequest())
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        reflected = reflection_pb2_grpc.ServerReflectionStub(idle.channel)
        next(reflected.ServerReflectionInfo(iter([request])))
        idle.load(networks.add(), "CPU", "elsewhere")
        assert children(idle) == []
        assert idle.total("headrace_device_up", device=DEVICE) == 1
        idle.load(networks.add(), DEVICE)
        assert "libopenvino" not in libraries(idle.process.pid)
        assert ["libopenvino" in libraries(each.pid) for each in children(idle)] == [True]
        assert idle.total("headrace_device_up", device="OPENVINO.CPU") == 1


def test_an_operator_may_have_it_in_the_servers_own_process(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text('[plugins.OPENVINO.config]\nISOLATION = "NONE"\n')
    with Server("--devices", "CPU,OPENVINO", "--config", str(config)) as server:
        case = networks.image()
        server.load(case, DEVICE)
        assert_same_outputs(server.infer(case.name, case.inputs), case.expected(), TOLERANCE)
        assert children(server) == []
