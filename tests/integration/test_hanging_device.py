"""A device whose process hangs holds up its own calls, and nobody else's."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from headrace.oip import open_inference_pb2 as oip
from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.child_processes import children
from tests.integration.harness import Server, infer_request

CALL_SECONDS = 8.0
"""Less than a thread waits for a worker that hangs, so a wait on the event loop is found."""
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
)
_PATHS = (
    *("/v2", "/v2/health/ready", "/v2/models/stats", "/v2/models/apart", "/v2/models/apart/ready"),
    *("/v2/models/apart/config", "/v2/models/apart/stats", "/metrics", "/readyz", "/healthz"),
)


def methods() -> Iterator[MethodDescriptor]:
    """Every method of both services. Those that take the network away come last."""
    found = [method for service in _SERVICES for method in service.methods]
    yield from sorted(found, key=lambda method: "Unload" in method.name)


def request_for(method: MethodDescriptor) -> Any:
    """A request that is about the device that hangs, or its network."""
    if method.name in ("Infer", "InferStream"):
        one = infer_request("apart", {"x": np.ones(2, np.float32)})
        return one if method.name == "Infer" else pb.InferStreamRequest(requests=[one])
    made: Any = GetMessageClass(method.input_type)()
    for field, value in (
        *(("name", "apart"), ("model_name", "apart"), ("network", "apart"), ("device", "APART")),
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


def begin(server: Server, method: MethodDescriptor) -> Any:
    """Calls the method, without waiting for the reply."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    kinds: Any = server.channel
    call = kinds.stream_stream(path, lambda message: message.SerializeToString(), bytes)
    return call(iter([request_for(method)]), timeout=LEAVES_SECONDS)


def get(server: Server, path: str) -> None:
    try:
        with urllib.request.urlopen(f"http://{server.http}{path}", timeout=LEAVES_SECONDS) as reply:
            reply.read()
    except OSError:
        pass  # it may not be answered


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    path = tmp_path / "headrace.toml"
    path.write_text(_CONFIG)
    with Server("--config", str(path), "--devices", "APART,CPU") as running:
        yield running


def test_while_a_worker_hangs_no_method_holds_up_calls_of_other_devices(server: Server) -> None:
    server.load(Case("apart", _RELU, {}), "APART")
    server.load(Case("calm", _RELU, {}), "CPU")
    server.infer("apart", {"x": np.ones(2, np.float32)})
    (worker,) = children(server)
    calm = infer_request("calm", {"x": np.ones(2, np.float32)})
    of_cpu = pb.GetMetricRequest(target=pb.Target(device="CPU"), name="RANGE_FOR_STREAMS")
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(4) as pool:
            calls = []
            for method in methods():
                calls += [begin(server, method) for _ in range(3)]
                server.stub.Infer(calm, timeout=CALL_SECONDS)
            for path in _PATHS:
                pool.submit(get, server, path)
                server.stub.Infer(calm, timeout=CALL_SECONDS)
            server.stub.GetMetric(of_cpu, timeout=CALL_SECONDS)
            another = pb.LoadNetworkRequest(name="late", device="CPU")
            another.model.data = _RELU.SerializeToString()
            server.stub.LoadNetwork(another, timeout=CALL_SECONDS)
            server.stub.UnloadNetwork(pb.UnloadNetworkRequest(name="late"), timeout=CALL_SECONDS)
        codes = {call.code() for call in calls}
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    assert grpc.StatusCode.INTERNAL not in codes
    assert worker.is_running()
