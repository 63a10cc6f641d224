"""Networks on several devices at once, through the wire, while a device is killed and revived."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from headrace.testing import networks
from headrace.testing.compare import assert_same_outputs
from tests.integration.callers import Callers, relu
from tests.integration.harness import (
    Server,
    Stream,
    assert_settled,
    changes,
    details_of,
    infer_request,
    outcome_of,
    until,
)
from tests.integration.listed_devices import FRAGILE, held, metric, serving, set_config, worker

KILLS = 1
"""Each takes as long as a process needs to start beside busy callers."""
DEVICES = "CPU,CPU2,TEMPLATE,HETERO,MULTI,AUTO,BATCH,FRAGILE,FAULTY"
CONFIG = f"""
[plugins.CPU2]
device = "CPU"
{FRAGILE}
NUM_STREAMS = 2

[plugins.FAULTY]
factory = "tests.support.faulty_device:create_plugin"
"""
MLP = networks.mlp()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("settings"), CONFIG, DEVICES) as running:
        yield running


@pytest.fixture(autouse=True)
def settled(server: Server) -> Iterator[None]:
    yield
    server.unload(*server.networks())
    assert_settled(server)


def served(server: Server, network: str) -> dict[str, int]:
    """How many requests each device has completed."""
    lines = metric(server, network, "DEVICE_REQUESTS")
    return {name: int(count) for name, _, count in (line.partition("=") for line in lines)}


def await_state(server: Server, state: str) -> None:
    """Until one of the network's devices has a state that begins so."""

    def found() -> bool:
        return any(line.startswith(state) for line in metric(server, "m", "DEVICE_STATES"))

    until(found, state)


@pytest.mark.parametrize(
    "device",
    [
        "MULTI:CPU,CPU2",
        "MULTI:TEMPLATE(1),CPU(4)",
        "MULTI:[HETERO:TEMPLATE,CPU](2),CPU(2)",
        "MULTI:[BATCH:CPU(8)](4),CPU(2)",
        "MULTI:[BATCH:CPU(4)](6),[HETERO:CPU2,TEMPLATE](2)",
        "MULTI:[BATCH:[HETERO:TEMPLATE,CPU](4)](8),CPU2",
        "HETERO:[MULTI:CPU,CPU2],TEMPLATE",
        "HETERO:[BATCH:CPU(8)],TEMPLATE",
        "BATCH:[HETERO:TEMPLATE,CPU](8)",
        "AUTO:[BATCH:CPU(8)],TEMPLATE",
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


def test_a_device_that_is_killed_and_revived_under_load_costs_no_reply(
    server: Server, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    server.load(held(hold), "FRAGILE")
    server.load(relu("m"), "MULTI:FRAGILE,CPU", "m")
    with Callers(server, "m") as callers:
        for _ in range(KILLS):
            before = served(server, "m")
            until(lambda: served(server, "m")["FRAGILE"] > before["FRAGILE"], "FRAGILE to serve")  # noqa: B023
            hold.touch()
            os.kill(worker(server), signal.SIGKILL)
            until(
                lambda: any(
                    s.startswith("FRAGILE=out") for s in metric(server, "m", "DEVICE_STATES")
                ),
                "FRAGILE to be taken out",
            )
            callers.await_ok(10)
            hold.unlink()
            until(
                lambda: "FRAGILE=serving" in metric(server, "m", "DEVICE_STATES"),
                "FRAGILE to be put back",
            )
        callers.await_ok(10)
    assert callers.outcomes.keys() == {"OK"}
    assert server.total("headrace_member_outages_total", network="m", device="FRAGILE") >= KILLS


@pytest.mark.parametrize("kind", ["MULTI", "AUTO"])
def test_a_device_that_failed_to_load_joins_once_it_can(server: Server, kind: str) -> None:
    set_config(server, {"LOADS": "NO"}, device="FAULTY")
    try:
        config = {"CHOICE": "PRIORITY"} if kind == "AUTO" else {}
        server.load(relu("m"), f"{kind}:FAULTY,CPU", "m", config)
        await_state(server, "FAULTY=failed: the device has no room")
        assert "FAULTY was left out: the device has no room" in metric(server, "m", "NOTES")
        assert server.total("headrace_member_load_failures_total", network="m", device="FAULTY")
        with Callers(server, "m") as callers:
            callers.await_ok(5)
            set_config(server, {"LOADS": "YES"}, device="FAULTY")
            until(lambda: served(server, "m").get("FAULTY"), "FAULTY to serve")
    finally:
        set_config(server, {"LOADS": "YES"}, device="FAULTY")
    assert callers.outcomes.keys() == {"OK"}
    assert metric(server, "m", "NOTES") == []


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


def test_values_that_a_device_refuses_run_on_another_one_and_take_none_out(server: Server) -> None:
    server.load(relu("m"), "MULTI:FAULTY,CPU", "m")
    set_config(server, {"FAULT": "refusal"}, device="FAULTY")
    try:
        outputs = server.infer("m", {"x": np.ones(2, np.float32)})
    finally:
        set_config(server, {"FAULT": ""}, device="FAULTY")
    np.testing.assert_array_equal(outputs["y"], np.ones(2))
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
        ("AUTO:[MULTI:CPU,CPU2],TEMPLATE", "cannot be in a list of AUTO's"),
        ("HETERO:[HETERO:CPU,CPU2],TEMPLATE", "would split the network twice"),
        ("MULTI:BATCH:CPU(8)", "expected brackets around a device with a list, as [BATCH:…]"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused_with_the_remedy(
    server: Server, device: str, said: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        server.load(MLP, device, "m")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in details_of(caught.value).message


@pytest.mark.parametrize("device", ["MULTI:CPU,CPU2", "AUTO:CPU"])
def test_under_a_hint_batches_are_tried_on_each_device_of_the_list(
    server: Server, device: str
) -> None:
    info = server.load(MLP, device, "m", {"PERFORMANCE_HINT": "THROUGHPUT"})
    for member in device.partition(":")[2].split(","):
        said = [note for note in info.notes if note.startswith(f"{member}: ")]
        assert any("times the throughput of requests apart" in note for note in said)
    assert_same_outputs(server.infer("m", MLP.inputs), MLP.expected(), 1e-5)
    assert metric(server, "m", "NOTES") == changes(info)
    assert server.total("headrace_network_notes_total", network="m") == len(changes(info))


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
