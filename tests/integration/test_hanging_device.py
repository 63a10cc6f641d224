"""A device whose process hangs holds up its own calls, and nobody else's."""

from __future__ import annotations

import base64
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from headrace.oip import open_inference_pb2 as oip
from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.child_processes import children
from tests.integration.harness import Server, infer_request
from tests.support.patience import PATIENCE_SECONDS

CALL_SECONDS = 8.0
"""Less than a thread waits for a worker that hangs, so a wait on the event loop is found."""
TRIES = 3
"""A busy machine may hold up one call for so long. A wait on the event loop does that each time."""
LEAVES_SECONDS = 2.0
"""How long the callers of the device that hangs wait."""
_CONFIG = """
[plugins.APART]
device = "CPU"
[plugins.APART.config]
ISOLATION = "PROCESS"
NUM_STREAMS = 2
"""
_RELU = parse("g (float[n] x) => (float[n] y) { y = Relu(x) }")
_SERVICES: tuple[ServiceDescriptor, ...] = (
    pb.DESCRIPTOR.services_by_name["InferenceEngine"],
    oip.DESCRIPTOR.services_by_name["GRPCInferenceService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
)
_OVER = ("AUTO:APART,CPU", "HETERO:APART,CPU", "MULTI:APART,CPU", "BATCH:APART(2)")
"""Devices that ask the one that hangs."""
_PATHS = ("/metrics", "/readyz", "/healthz", "/status", "/")
_TENSOR = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 1]}
_FILE = base64.b64encode(_RELU.SerializeToString()).decode()
_CONFIG_OF_LOAD = json.dumps({"parameters": {"DEVICE": {"string_value": "APART"}}})
_BODIES: Mapping[str, Mapping[str, Any]] = {
    "infer": {"inputs": [_TENSOR]},
    "load": {"parameters": {"config": _CONFIG_OF_LOAD, "file:1/model.onnx": _FILE}},
    "register": {"key": "/none", "offset": 0, "byte_size": 8},
}
"""What is sent to the paths of REST that end so. Other POSTs take an empty object."""


def methods() -> Iterator[MethodDescriptor]:
    """Every method of all services. Those that take the network away come last."""
    found = [method for service in _SERVICES for method in service.methods]
    yield from sorted(found, key=lambda method: "Unload" in method.name)


def request_for(method: MethodDescriptor) -> Any:
    """A request that is about the device that hangs, or its network."""
    if method.name in ("Infer", "InferStream"):
        one = infer_request("apart", {"x": np.ones(2, np.float32)})
        return one if method.name == "Infer" else pb.InferStreamRequest(requests=[one])
    made: Any = GetMessageClass(method.input_type)()
    for field, value in (
        ("name", "apart"),
        ("model_name", "apart"),
        ("network", "apart"),
        ("service", "apart"),
        ("device", "APART"),
        ("functions", _RELU.SerializeToString()),
    ):
        known = method.input_type.fields_by_name.get(field)
        if known is not None and known.message_type is None:
            setattr(made, field, value)
    if "model" in method.input_type.fields_by_name:
        made.model.data = _RELU.SerializeToString()
        if method.name == "LoadNetwork":
            made.name = "another"
    if "target" in method.input_type.fields_by_name:
        made.target.network = "apart"
        if method.name == "GetMetric":
            made.name = "RANGE_FOR_STREAMS"
            made.target.device = "APART"
        if method.name == "SetConfig":
            made.config["PERF_COUNT"] = "YES"
    if method.name in ("ModelInfer", "ModelStreamInfer"):
        tensor = made.inputs.add(name="x", datatype="FP32", shape=[2])
        tensor.contents.fp32_contents.extend([1.0, 1.0])
    return made


def requests_over() -> Iterator[tuple[MethodDescriptor, Any]]:
    """Calls to devices that ask the one that hangs."""
    engine = _SERVICES[0].methods_by_name
    for device in _OVER:
        name = device.partition(":")[0].lower()
        for method in ("QueryNetwork", "LoadNetwork"):
            request = request_for(engine[method])
            request.device = device
            if method == "LoadNetwork":
                request.name = name
            yield engine[method], request
        metric = request_for(engine["GetMetric"])
        metric.target.device = device
        yield engine["GetMetric"], metric


def begin(server: Server, method: MethodDescriptor, request: Any) -> Any:
    """Calls the method, without waiting for the reply."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    kinds: Any = server.channel
    call = kinds.stream_stream(path, lambda message: message.SerializeToString(), bytes)
    return call(iter([request]), timeout=LEAVES_SECONDS)


def rest(server: Server) -> Iterator[tuple[str, bytes | None]]:
    """Every path of REST about another network of the device, and the body of a POST. Those that
    take the network away come last."""
    with urllib.request.urlopen(f"http://{server.http}/v2/openapi.json") as reply:
        paths: dict[str, dict[str, Any]] = json.load(reply)["paths"]
    for path in sorted(paths, key=lambda path: "unload" in path):
        filled = path.format(model="rested", version="1", name="rested")
        for method in paths[path]:
            end = filled.rpartition("/")[2]
            is_post = method == "post"
            yield filled, json.dumps(_BODIES.get(end, {})).encode() if is_post else None


def ask(server: Server, path: str, body: bytes | None, seconds: float) -> int:
    """The status, or 0 if there is no answer in time."""
    try:
        url = f"http://{server.http}{path}"
        with urllib.request.urlopen(url, body, timeout=seconds) as reply:
            reply.read()
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def is_free(call: Callable[[], object], calm: Callable[[], bool]) -> bool:
    """Whether others get their answers while a call is under way."""
    for _ in range(TRIES):
        call()
        if calm():
            return True
    return False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    path = tmp_path / "headrace.toml"
    path.write_text(_CONFIG)
    with Server("--config", str(path), "--devices", "APART,CPU,AUTO,HETERO,MULTI,BATCH") as running:
        yield running


def test_while_a_worker_hangs_no_method_holds_up_calls_of_other_devices(server: Server) -> None:
    server.load(Case("apart", _RELU, {}), "APART")
    server.load(Case("rested", _RELU, {}), "APART")
    server.load(Case("calm", _RELU, {}), "CPU")
    server.infer("apart", {"x": np.ones(2, np.float32)})
    (worker,) = children(server)
    calm = infer_request("calm", {"x": np.ones(2, np.float32)})
    one = json.dumps(_BODIES["infer"]).encode()
    of_cpu = pb.GetMetricRequest(target=pb.Target(device="CPU"), name="RANGE_FOR_STREAMS")

    names = (f"late{number}" for number in range(TRIES))

    def in_time(method: Any, request: Any) -> bool:
        code = method.future(request, timeout=CALL_SECONDS).code()
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)
        return code is grpc.StatusCode.OK

    def calm_by_grpc() -> bool:
        return in_time(server.stub.Infer, calm)

    def calm_by_both() -> bool:
        said = ask(server, "/v2/models/calm/infer", one, CALL_SECONDS)
        assert said in (HTTPStatus.OK, 0)
        return calm_by_grpc() and said == HTTPStatus.OK

    def threads_are_free() -> bool:
        another = pb.LoadNetworkRequest(name=next(names), device="CPU")
        another.model.data = _RELU.SerializeToString()
        metric = in_time(server.stub.GetMetric, of_cpu)
        return in_time(server.stub.LoadNetwork, another) and metric

    os.kill(worker.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(4) as pool:
            calls: list[Any] = []
            asked: list[Future[int]] = []

            def call(method: MethodDescriptor, request: Any, count: int = 1) -> None:
                calls.extend(begin(server, method, request) for _ in range(count))

            def ask_for(path: str, body: bytes | None) -> None:
                asked.append(pool.submit(ask, server, path, body, LEAVES_SECONDS))

            def call_all() -> None:
                for method in methods():
                    call(method, request_for(method))

            for method in methods():
                again = partial(call, method, request_for(method), 3)
                assert is_free(again, calm_by_grpc), method.name
            for path, body in (*((path, None) for path in _PATHS), *rest(server)):
                assert is_free(partial(ask_for, path, body), calm_by_both), path
            statuses = {each.result() for each in asked}
            assert is_free(call_all, threads_are_free)
            for method, request in requests_over():
                assert is_free(partial(call, method, request), calm_by_grpc), method.name
            later = pb.LoadNetworkRequest(name="later", device="CPU")
            later.model.data = _RELU.SerializeToString()
            # Callers who have left took all loading threads.
            server.stub.LoadNetwork(later, timeout=PATIENCE_SECONDS)
            assert worker.is_running()  # the load did not wait for the worker's end
        codes = {call.code() for call in calls}
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    assert grpc.StatusCode.INTERNAL not in codes
    assert HTTPStatus.INTERNAL_SERVER_ERROR not in statuses
    assert 0 in statuses  # some wait for the worker
    assert worker.is_running()
