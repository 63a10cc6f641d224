"""Requests that run together, over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.runtime.system.processors import usable_processors
from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import decode_values
from headrace.wire.parameters import decode_parameter
from tests.integration.harness import CALL_SECONDS, Server, changes, details_of, until

IMAGE, MLP = networks.image(), networks.mlp()
MANY = 24


def image(rows: int, seed: int = 0) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).standard_normal((rows, 3, 32, 32), np.float32)}


@pytest.fixture
def load(server: Server) -> Iterator[Any]:
    """Loads a case; unloads it at the end."""
    if "BATCH" not in server.devices():
        pytest.skip("BATCH is not up on this server")
    names: list[str] = []

    def load(case: Case, device: str, config: Mapping[str, str] | None = None) -> pb.NetworkInfo:
        info = server.load(case, device, f"batch-{len(names)}", config)
        names.append(info.name)
        return info

    yield load
    server.unload(*names)


@contextmanager
def busy(server: Server, load: Any) -> Iterator[None]:
    """All of CPU's streams run something that does not end before the context does."""
    endless, streams = networks.endless(), usable_processors()
    name = load(endless, "CPU").name
    calls = [server.start(name, endless.inputs) for _ in range(streams)]
    until(
        lambda: server.metric("NUMBER_OF_EXEC_INFER_REQUESTS", "CPU") == streams,
        "the streams were to be busy",
    )
    yield
    for call in calls:
        call.cancel()


def expired(server: Server, name: str) -> None:
    """Has a request expire that waits, by which time the server has taken those before it."""
    late = server.start(name, image(1), timeout_seconds=0.05)
    assert late.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED


def refusal(load: Any, case: Case, device: str) -> Any:
    with pytest.raises(grpc.RpcError) as refused:
        load(case, device)
    return details_of(refused.value)


def outputs(call: Any) -> dict[str, Any]:
    reply = call.result()
    return dict(decode_values(reply.outputs, reply.attachments, "outputs"))


def test_what_comes_while_the_device_is_busy_runs_together(server: Server, load: Any) -> None:
    # However long the machine takes for all to come, none leaves with fewer than may be.
    patient = {"NUM_STREAMS": "1", "AUTO_BATCH_TIMEOUT": "1000000"}
    name = load(IMAGE, "BATCH:CPU(8)", patient).name
    asked = [image(1, seed) for seed in range(MANY)]
    with busy(server, load):
        calls = [server.start(name, inputs) for inputs in asked]
        expired(server, name)
    for call, inputs in zip(calls, asked, strict=True):
        np.testing.assert_allclose(
            outputs(call)["scores"], IMAGE.expected(inputs)["scores"], rtol=1e-3, atol=1e-4
        )
    # The first one was handed to the device's queue, before anybody else had come.
    assert (
        server.total("headrace_network_batch_size_count", network=name) == 1 + (MANY - 1 + 7) // 8
    )
    # The one that expired left with others when half of its time was over, or alone after that.
    rows = server.total("headrace_network_batch_size_sum", network=name)
    assert rows in (MANY, MANY + 1)
    assert server.total("headrace_network_requests_total", network=name) == MANY + 1


def test_one_late_request_is_no_trouble_for_its_mates(server: Server, load: Any) -> None:
    name = load(IMAGE, "BATCH:CPU(8)").name
    with busy(server, load):
        before = [server.start(name, image(1, seed)) for seed in range(6)]
        expired(server, name)
        after = [server.start(name, image(1, seed)) for seed in range(6)]
    assert all(outputs(call)["scores"].shape == (1, 10) for call in (*before, *after))


def test_a_bad_value_fails_alone(server: Server, load: Any) -> None:
    text = """pick (float[N,5] x, int64[N,1] at) => (float[N,1] y) {
        y = GatherElements<axis = 1>(x, at) }"""
    name = load(Case("pick", parse(text), {}), "BATCH:CPU(8)").name
    x = np.arange(5, dtype=np.float32)[None]
    values = [0, 1, 99, 3]
    calls = [server.start(name, {"x": x, "at": np.array([[at]], np.int64)}) for at in values]
    found = [
        call.exception().code().name if call.exception() else float(outputs(call)["y"][0, 0])
        for call in calls
    ]
    assert found == [0.0, 1.0, "INVALID_ARGUMENT", 3.0]


def test_a_replaced_network_answers_all_that_it_has_taken(server: Server, load: Any) -> None:
    name = load(IMAGE, "BATCH:CPU(4)").name
    calls = [server.start(name, image(8 if at == 0 else 1)) for at in range(MANY)]
    request = pb.LoadNetworkRequest(
        name=name,
        model=pb.ModelSource(data=IMAGE.model.SerializeToString()),
        device="BATCH:CPU(4)",
        replace=True,
    )
    server.stub.LoadNetwork(request, timeout=CALL_SECONDS)
    assert all(outputs(call)["scores"].shape[1] == 10 for call in calls)


def test_nonsense_is_refused_by_name(load: Any) -> None:
    for device in ("BATCH:[BATCH:CPU(2)](4)", "BATCH:[MULTI:CPU](4)", "BATCH:CPU(1)", "BATCH"):
        told = refusal(load, MLP, device)
        assert told.code is grpc.StatusCode.INVALID_ARGUMENT, device
        assert told.field == "device"


def test_a_network_that_cannot_be_batched_is_refused_with_the_reason(load: Any) -> None:
    told = refusal(load, networks.recurrent(), "BATCH:CPU(8)")
    assert told.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "a trial has shown that a row's 'y' depends on the other rows" in told.message


def test_under_a_hint_it_is_served_all_the_same_and_the_reason_told(
    server: Server, load: Any
) -> None:
    info = load(networks.recurrent(), "CPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
    assert info.notes[0].startswith(
        "served unbatched: requests to this network cannot run together"
    )
    assert info.config["ALLOW_AUTO_BATCHING"] == "NO"


def test_a_hint_is_measured_and_says_what_it_chose(server: Server, load: Any) -> None:
    info = load(MLP, "CPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
    assert "times the throughput of requests apart, measured in" in info.notes[0]
    assert info.config["NUM_STREAMS"] != "AUTO"
    target = pb.Target(network=info.name)
    metric = pb.GetMetricRequest(target=target, name="OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    optimum = decode_parameter(server.stub.GetMetric(metric).value)
    batched = info.config["ALLOW_AUTO_BATCHING"] == "YES"
    assert optimum == int(info.config["NUM_STREAMS"]) * (8 if batched else 1)


def test_an_import_under_a_hint_is_measured_as_a_load_is(server: Server, load: Any) -> None:
    info = load(MLP, "CPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
    again = server.import_blob(server.export(info.name), "hinted-again")
    assert "times the throughput of requests apart, measured in" in again.notes[0]
    target = pb.Target(network="hinted-again")
    notes = server.stub.GetMetric(pb.GetMetricRequest(target=target, name="NOTES"))
    assert decode_parameter(notes.value) == changes(again)
    server.unload("hinted-again")


def test_a_hint_can_be_told_to_leave_requests_apart(load: Any) -> None:
    hint = {"PERFORMANCE_HINT": "THROUGHPUT", "ALLOW_AUTO_BATCHING": "NO"}
    assert changes(load(MLP, "CPU", hint)) == []


@pytest.mark.parametrize(
    "device", ["MULTI:[BATCH:CPU(4)](8),TEMPLATE", "BATCH:[HETERO:CPU,TEMPLATE](4)"]
)
def test_batches_combine_with_devices_that_choose_or_split(
    server: Server, load: Any, device: str
) -> None:
    if device.partition(":")[0] not in server.devices():
        pytest.skip("it is not up on this server")
    name = load(MLP, device).name
    calls = [server.start(name, MLP.inputs) for _ in range(MANY)]
    expected = MLP.expected()
    for call in calls:
        np.testing.assert_allclose(outputs(call)["scores"], expected["scores"], rtol=1e-4)


def test_what_was_batched_is_batched_again_after_an_import(server: Server, load: Any) -> None:
    name = load(MLP, "BATCH:CPU(4)").name
    info = server.import_blob(server.export(name), "batch-again")
    assert info.device == "BATCH:CPU(4)"
    assert "requests run together" in json.dumps(list(info.notes))
    server.unload("batch-again")
