"""A server with --isolate-devices: no request and no model ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import ErrorDetails
from headrace.wire.parameters import decode_parameter
from tests.integration.child_processes import children
from tests.integration.harness import CALL_SECONDS, Server, assert_settled, details_of, until
from tests.support.crashing_device import CRASH, CRASHING_LAYER, CRASHING_QUERY

_CONFIG = """
[plugins.FRAGILE]
factory = "tests.support.crashing_device:create_plugin"

[plugins.UNGUARDED]
factory = "tests.support.unguarded_cpu:create_plugin"
"""
_DEVICES = "CPU,TEMPLATE,FRAGILE,UNGUARDED,HETERO,MULTI,AUTO,BATCH"
_CRASH: dict[str, Any] = {"x": np.array([CRASH], np.float32)}
_DIVISION = "division (int32[n] x, int32[n] y) => (int32[n] z) { z = Div(x, y) }"
_TOO_LARGE: dict[str, Any] = {"x": np.array([-(2**31)], np.int32), "y": np.array([-1], np.int32)}
"""Their quotient has more than 32 bits, and processors end a program for it."""


def relu(name: str, layer: str = "") -> Case:
    """A model with a layer that does something to its worker has a structure of its own."""
    named = f"[{layer}] " if layer else ""
    operator = {CRASHING_LAYER: "Abs", CRASHING_QUERY: "Neg"}.get(layer, "Relu")
    text = f"{name} (float[n] x) => (float[n] y) {{ {named}y = {operator}(x) }}"
    return Case(name, parse(text), {})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("isolate") / "headrace.toml"
    path.write_text(_CONFIG)
    environment = {"HEADRACE_ISOLATE_DEVICES": "yes"}
    options = ("--config", str(path), "--devices", _DEVICES)
    with Server(*options, environment=environment) as running:
        for device in ("CPU", "FRAGILE", "UNGUARDED"):
            running.load(relu(f"other_{device}"), device)
        yield running
        assert_settled(running)
        workers = children(running)
        assert running.stop() == 0
        psutil.wait_procs(workers, CALL_SECONDS)
        assert not any(each.is_running() for each in workers)


def refusal(call: Callable[[], object]) -> ErrorDetails:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return details_of(caught.value)


def assert_others_go_on(server: Server, device: str) -> None:
    """The other devices at once, and the other network of the device when that is up again."""
    assert answer(server, "CPU") == [0, 2]
    until(lambda: answer(server, device) == [0, 2], f"{device} comes back")


def answer(server: Server, device: str) -> object:
    """What the device's other network answers; None while there is no device."""
    try:
        (y,) = server.infer(f"other_{device}", {"x": np.array([-1, 2], np.float32)}).values()
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return None
        raise
    return y.tolist()  # type: ignore[union-attr]


def test_every_device_that_computes_has_a_process_and_no_other_has(server: Server) -> None:
    workers = children(server)
    assert len(workers) == 4
    for device in ("CPU", "TEMPLATE", "FRAGILE", "UNGUARDED"):
        request = pb.GetConfigRequest(target=pb.Target(device=device), name="ISOLATION")
        assert decode_parameter(server.stub.GetConfig(request).value) == "PROCESS"
    server.load(relu("split"), "HETERO:TEMPLATE,CPU")
    server.infer("split", {"x": np.array([1], np.float32)})
    server.unload("split")


@pytest.mark.parametrize("way", ["query", "load"])
def test_a_model_that_ends_a_worker_is_told_so_and_refused_there_alone(
    server: Server, way: str
) -> None:
    layer = CRASHING_QUERY if way == "query" else CRASHING_LAYER
    deadly = relu(f"deadly_{way}", layer)

    def query(device: str) -> pb.QueryNetworkReply:
        model = pb.ModelSource(data=deadly.model.SerializeToString())
        request = pb.QueryNetworkRequest(model=model, device=device)
        return server.stub.QueryNetwork(request, timeout=CALL_SECONDS)  # type: ignore[no-any-return]

    ways = {"query": lambda: query("FRAGILE"), "load": lambda: server.load(deadly, "FRAGILE")}
    first = refusal(ways[way])
    assert first.code is grpc.StatusCode.FAILED_PRECONDITION
    assert first.reason == "ENDED_WORKER"
    assert "ended the worker process of device FRAGILE (SIGSEGV)" in first.message
    assert "try again" not in first.message
    assert_others_go_on(server, "FRAGILE")
    for call in ways.values():
        assert refusal(call).message == first.message
    # Where the device is one of several, another one serves.
    assert query("HETERO:FRAGILE,CPU").supported_layers
    server.load(deadly, "MULTI:FRAGILE,CPU", name="elsewhere")
    server.infer("elsewhere", {"x": np.array([1], np.float32)})
    server.unload("elsewhere")


@pytest.mark.parametrize("device", ["FRAGILE", "UNGUARDED"])
def test_a_request_that_ends_a_worker_is_told_so(server: Server, device: str) -> None:
    if device == "FRAGILE":
        server.load(relu("victim"), device)
        inputs, signal = _CRASH, "SIGSEGV"
    else:
        server.load(Case("victim", parse(_DIVISION), {}), device)
        inputs, signal = _TOO_LARGE, "SIGFPE"
    told = refusal(lambda: server.infer("victim", inputs))
    assert told.code is grpc.StatusCode.FAILED_PRECONDITION
    assert f"this request ended the worker process of device {device} ({signal})" in told.message
    assert_others_go_on(server, device)
    server.unload("victim")
