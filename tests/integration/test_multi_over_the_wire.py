"""Networks on several devices at once, through the wire, while a device is killed and revived."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.testing import networks
from headrace.testing.compare import assert_same_outputs
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.parameters import decode_parameter
from tests.integration.callers import Callers, relu
from tests.integration.harness import (
    CALL_SECONDS,
    Server,
    Stream,
    assert_settled,
    details_of,
    infer_request,
    outcome_of,
    until,
)

KILLS = 1
"""Each takes as long as a process needs to start beside busy callers."""
DEVICES = "CPU,CPU2,TEMPLATE,HETERO,MULTI,AUTO,BATCH,FRAGILE,FAULTY"
CONFIG = """
[plugins.CPU2]
device = "CPU"

[plugins.FRAGILE]
factory = "tests.support.crashing_device:create_plugin"
[plugins.FRAGILE.config]
ISOLATION = "PROCESS"
NUM_STREAMS = 2

[plugins.FAULTY]
factory = "tests.support.faulty_device:create_plugin"
"""
MLP = networks.mlp()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("settings") / "headrace.toml"
    file.write_text(CONFIG, "utf-8")
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with Server("--config", str(file), "--devices", DEVICES, environment=environment) as running:
        yield running
        assert running.stop() == 0, running.log()


@pytest.fixture(autouse=True)
def settled(server: Server) -> Iterator[None]:
    yield
    server.unload(*server.networks())
    assert_settled(server)


def set_config(server: Server, changes: Mapping[str, str], **target: str) -> None:
    request = pb.SetConfigRequest(target=pb.Target(**target))
    for key, text in changes.items():
        request.config[key] = text
    server.stub.SetConfig(request, timeout=CALL_SECONDS)


def metric(server: Server, network: str, name: str) -> Any:
    request = pb.GetMetricRequest(target=pb.Target(network=network), name=name)
    return decode_parameter(server.stub.GetMetric(request, timeout=CALL_SECONDS).value)


def served(server: Server, network: str) -> dict[str, int]:
    """How many requests each device has completed."""
    lines = metric(server, network, "DEVICE_REQUESTS")
    return {name: int(count) for name, _, count in (line.partition("=") for line in lines)}


def await_state(server: Server, state: str) -> None:
    """Until one of the network's devices has a state that begins so."""

    def found() -> bool:
        return any(line.startswith(state) for line in metric(server, "m", "DEVICE_STATES"))

    until(found, state)


def worker(server: Server) -> int:
    """The process that FRAGILE lives in."""
    return int(re.findall(r"lives in process (\d+)", server.log())[-1])


@pytest.mark.parametrize(
    "device",
    [
        "MULTI:CPU,CPU2",
        "MULTI:TEMPLATE(1),CPU(4)",
        "MULTI:[HETERO:TEMPLATE,CPU](2),CPU(2)",
        "MULTI:[BATCH:CPU(8)](4),CPU(2)",
        "HETERO:[MULTI:CPU,CPU2],TEMPLATE",
    ],
)
def test_outputs_are_those_of_one_device(server: Server, device: str) -> None:
    server.load(MLP, device, "m")
    stream = Stream(server.stub)
    fed = {f"{seed}": {"x": networks.random(seed % 3 + 1, 8, seed=seed)} for seed in range(30)}
    stream.send(*(infer_request("m", inputs, id=key) for key, inputs in fed.items()))
    stream.done()
    found = {result.id: result for result in stream.results}
    assert {outcome_of(result) for result in found.values()} == {"OK"}
    assert found.keys() == fed.keys()
    for inputs in list(fed.values())[:5]:
        assert_same_outputs(server.infer("m", inputs), MLP.expected(inputs), 1e-5)


def test_a_device_that_is_killed_and_revived_under_load_costs_no_reply(server: Server) -> None:
    server.load(relu("m"), "MULTI:FRAGILE,CPU", "m")
    with Callers(server, "m") as callers:
        for _ in range(KILLS):
            before = served(server, "m")
            until(lambda: served(server, "m")["FRAGILE"] > before["FRAGILE"], "FRAGILE to serve")  # noqa: B023
            os.kill(worker(server), signal.SIGKILL)
            until(
                lambda: any(
                    s.startswith("FRAGILE=out") for s in metric(server, "m", "DEVICE_STATES")
                ),
                "FRAGILE to be taken out",
            )
            callers.await_ok(10)
            until(
                lambda: "FRAGILE=serving" in metric(server, "m", "DEVICE_STATES"),
                "FRAGILE to be put back",
            )
        callers.await_ok(10)
    assert callers.outcomes.keys() == {"OK"}
    assert server.total("headrace_member_outages_total", network="m", device="FRAGILE") >= KILLS


@pytest.mark.parametrize("fault", ["down", "bug", "exit", "nothing"])
def test_a_device_that_fails_in_any_way_costs_no_reply(server: Server, fault: str) -> None:
    server.load(relu("m"), "MULTI:FAULTY,CPU", "m")
    set_config(server, {"FAULT": fault}, device="FAULTY")
    try:
        with Callers(server, "m") as callers:
            callers.await_ok(30)
            set_config(server, {"FAULT": ""}, device="FAULTY")
            until(lambda: served(server, "m")["FAULTY"] > 0, "FAULTY to serve again")
    finally:
        set_config(server, {"FAULT": ""}, device="FAULTY")
    assert callers.outcomes.keys() == {"OK"}


def test_a_refusal_of_values_is_the_callers_and_takes_no_device_out(server: Server) -> None:
    server.load(relu("m"), "MULTI:FAULTY,CPU", "m")
    set_config(server, {"FAULT": "refusal"}, device="FAULTY")
    try:
        with pytest.raises(grpc.RpcError) as caught:
            server.infer("m", {"x": np.ones(2, np.float32)})
    finally:
        set_config(server, {"FAULT": ""}, device="FAULTY")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert metric(server, "m", "DEVICE_STATES") == ["FAULTY=serving", "CPU=serving"]


def test_priorities_change_while_requests_run_and_shares_are_in_the_metrics(server: Server) -> None:
    server.load(relu("m"), "MULTI:CPU(1),CPU2(1)", "m")
    x = {"x": np.ones(2, np.float32)}
    for _ in range(3):
        server.infer("m", x)
    set_config(server, {"MULTI_DEVICE_PRIORITIES": "CPU2(2),CPU"}, network="m")
    for _ in range(2):
        server.infer("m", x)
    assert served(server, "m") == {"CPU2": 2, "CPU": 3}
    assert metric(server, "m", "EXECUTION_DEVICES") == ["CPU2.0", "CPU.0"]
    for device, count in (("CPU", 3), ("CPU2", 2)):
        found = server.total("headrace_member_requests_total", network="m", device=device)
        assert found == count
    with pytest.raises(grpc.RpcError) as caught:
        set_config(server, {"MULTI_DEVICE_PRIORITIES": "TEMPLATE"}, network="m")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("MULTI", "MULTI:CPU(4)"),
        ("MULTI:CPU,CPU(2)", "each device once"),
        ("MULTI:", "a device's name"),
        ("MULTI:[MULTI:CPU,CPU2],TEMPLATE", "cannot be in a list of MULTI's"),
        ("MULTI:[AUTO:CPU,CPU2],TEMPLATE", "cannot be in a list of MULTI's"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused_with_the_remedy(
    server: Server, device: str, said: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        server.load(MLP, device, "m")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in details_of(caught.value).message


def test_an_unload_lets_requests_finish(server: Server) -> None:
    server.load(relu("m"), "MULTI:FRAGILE,CPU", "m")
    x = np.ones(2, np.float32)
    calls = [server.start("m", {"x": x}) for _ in range(40)]
    calls[0].result()
    server.unload("m")
    outcomes = {call.exception() is None or call.code() for call in calls}
    assert outcomes <= {True, grpc.StatusCode.NOT_FOUND}


def test_an_exported_network_comes_back_on_its_devices(server: Server) -> None:
    server.load(MLP, "MULTI:CPU(2),TEMPLATE(1)", "m")
    info = server.import_blob(server.export("m"), "copy")
    assert info.device == "MULTI:CPU(2),TEMPLATE(1)"
    assert_same_outputs(server.infer("copy", MLP.inputs), MLP.expected(), 1e-5)
