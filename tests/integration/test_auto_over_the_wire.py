"""AUTO through the wire: a first reply before the better device is ready, falling back, return."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.plugins.multi.contest import WORTH
from headrace.testing import networks
from headrace.testing.compare import assert_same_outputs
from tests.integration.callers import Callers, relu
from tests.integration.harness import Server, assert_settled, until
from tests.integration.listed_devices import FRAGILE, held, metric, serving, set_config, worker

DEVICES = "CPU,TEMPLATE,HETERO,MULTI,AUTO,BATCH,SLOW,FRAGILE,MISSING"
CONFIG = f"""
[plugins.AUTO.config]
CHOICE = "PRIORITY"
[plugins.SLOW]
factory = "tests.support.gated_device:create_plugin"
{FRAGILE}
[plugins.MISSING]
factory = "tests.support.crashing_device:create_without_driver"
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


def await_device(server: Server, device: str) -> None:
    until(lambda: metric(server, "m", "EXECUTION_DEVICES") == [device], f"the switch to {device}")


def test_the_fastest_device_serves_when_nothing_else_runs(server: Server) -> None:
    server.load(MLP, "AUTO:SLOW,CPU", "m", {"CHOICE": "MEASURED"})
    assert_same_outputs(server.infer("m", MLP.inputs), MLP.expected(), 1e-5)  # shows its shapes
    candidates: list[dict[str, Any]] = []

    def are_measured() -> bool:
        candidates[:] = map(json.loads, metric(server, "m", "CANDIDATES"))
        return all(each["requests_per_second"] for each in candidates)

    until(are_measured, "the measurement")
    fastest = min(candidates, key=lambda each: each["latency_seconds"])
    (chosen,) = (each for each in candidates if each["chosen"])
    assert chosen["latency_seconds"] <= fastest["latency_seconds"] * WORTH
    assert metric(server, "m", "EXECUTION_DEVICES") == [f"{chosen['device']}.0"]
    assert_same_outputs(server.infer("m", MLP.inputs), MLP.expected(), 1e-5)
    assert server.total("headrace_network_requests_total", network="m") == 2


def test_the_first_reply_comes_before_the_better_device_is_ready(server: Server) -> None:
    set_config(server, {"HOLD": "YES"}, device="SLOW")
    server.load(MLP, "AUTO:SLOW,CPU", "m")
    assert_same_outputs(server.infer("m", MLP.inputs), MLP.expected(), 1e-5)
    assert metric(server, "m", "EXECUTION_DEVICES") == ["CPU.0"]
    assert metric(server, "m", "DEVICE_STATES") == ["CPU=serving", "SLOW=loading"]
    set_config(server, {"HOLD": "NO"}, device="SLOW")
    await_device(server, "SLOW.0")
    assert_same_outputs(server.infer("m", MLP.inputs), MLP.expected(), 1e-5)
    assert server.total("headrace_member_requests_total", network="m", device="SLOW") == 1


def test_no_reply_is_lost_or_doubled_by_the_switch(server: Server) -> None:
    set_config(server, {"HOLD": "YES"}, device="SLOW")
    server.load(relu("m"), "AUTO:SLOW,CPU", "m")
    with Callers(server, "m") as callers:
        callers.await_ok(10)
        set_config(server, {"HOLD": "NO"}, device="SLOW")
        await_device(server, "SLOW.0")
        callers.await_ok(10)
    assert callers.outcomes.keys() == {"OK"}
    asked = sum(callers.outcomes.values())
    assert server.total("headrace_network_requests_total", network="m") == asked
    assert server.total("headrace_member_requests_total", network="m") == asked


def test_an_unload_ends_a_load_under_way(server: Server) -> None:
    set_config(server, {"HOLD": "YES"}, device="SLOW")
    server.load(MLP, "AUTO:SLOW,CPU", "m")
    server.unload("m")
    assert server.networks() == []
    set_config(server, {"HOLD": "NO"}, device="SLOW")


def test_requests_fall_back_while_the_device_is_dead_and_return(
    server: Server, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    server.load(held(hold), "FRAGILE")
    server.load(relu("m"), "AUTO:FRAGILE,CPU", "m")
    await_device(server, "FRAGILE.0")
    with Callers(server, "m") as callers:
        callers.await_ok(10)
        hold.touch()
        os.kill(worker(server), signal.SIGKILL)
        await_device(server, "CPU.0")
        callers.await_ok(5)
        hold.unlink()
        await_device(server, "FRAGILE.0")
        callers.await_ok(10)
    assert callers.outcomes.keys() == {"OK"}


def test_without_a_list_it_chooses_by_itself_and_says_what_it_passed_over(server: Server) -> None:
    info = server.load(MLP, "AUTO:-SLOW,-FRAGILE", "m")
    assert_same_outputs(server.infer("m", MLP.inputs), MLP.expected(), 1e-4)
    assert metric(server, "m", "EXECUTION_DEVICES")
    assert any("MISSING was left out: device MISSING did not start" in note for note in info.notes)


def test_a_key_for_one_device_counts_where_the_list_only_excludes(server: Server) -> None:
    device = "AUTO:-SLOW,-FRAGILE"
    server.load(MLP, device, "m", {"CPU.NUM_STREAMS": "1"})
    assert metric(server, "m", "EXECUTION_DEVICES") == ["CPU.0"]
    assert metric(server, "m", "OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 1
    with pytest.raises(grpc.RpcError) as caught:
        server.load(MLP, device, "n", {"SLOW.NUM_STREAMS": "1"})
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "device", ["AUTO:[HETERO:TEMPLATE,CPU],CPU", "AUTO:[BATCH:TEMPLATE(4)],CPU"]
)
def test_a_device_of_the_list_may_have_a_list_of_its_own(server: Server, device: str) -> None:
    server.load(MLP, device, "m", {"ENABLE_STARTUP_FALLBACK": "NO"})
    assert_same_outputs(server.infer("m", MLP.inputs), MLP.expected(), 1e-5)
    assert metric(server, "m", "EXECUTION_DEVICES") != ["CPU.0"]


def test_what_it_chose_is_exported_and_chosen_again(server: Server) -> None:
    server.load(MLP, "AUTO:FRAGILE,CPU", "m")
    await_device(server, "FRAGILE.0")
    server.import_blob(server.export("m"), "copy")
    assert metric(server, "copy", "EXECUTION_DEVICES") == ["FRAGILE.0"]
    x = np.ones((2, 8), np.float32)
    assert_same_outputs(server.infer("copy", {"x": x}), MLP.expected({"x": x}), 1e-5)
