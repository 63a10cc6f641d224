"""Unary calls whose caller gives up or whose time is up: queue and backend hear of it at once.

The server's devices have one stream, which an endless network holds where a queue is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import (
    BASIC,
    Server,
    assert_settled,
    details_of,
    infer_request,
    until,
)
from tests.support.patience import DEADLINES
from tests.support.raw_http2 import Raw

ENDLESS, ADD, FRAGILE = networks.endless(), networks.add(), networks.fragile()
LATE = grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.fixture(scope="module")
def narrow() -> Iterator[Server]:
    """A server whose devices have one stream each."""
    with Server(*BASIC) as running:
        for device in {"TEMPLATE", "CPU"}.intersection(running.devices()):
            request = pb.SetConfigRequest(
                target=pb.Target(device=device), config={"NUM_STREAMS": "1"}
            )
            running.stub.SetConfig(request)
            for case in (ENDLESS, ADD, FRAGILE):
                running.load(case, device, f"{case.name}-{device}")
        yield running
        assert_settled(running)
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


@pytest.fixture(params=["TEMPLATE", "CPU"])
def device(request: pytest.FixtureRequest, narrow: Server) -> str:
    if request.param not in narrow.devices():
        pytest.skip(f"{request.param} is not up on this server")
    return str(request.param)


def running(server: Server, device: str) -> int:
    return int(server.metric("NUMBER_OF_EXEC_INFER_REQUESTS", device))


def waiting(server: Server, device: str) -> int:
    return int(server.metric("NUMBER_OF_WAITING_INFER_REQUESTS", device))


def outcomes(server: Server, network: str) -> dict[str, int]:
    """How many of the network's requests ended in which way."""
    kinds = ("completed", "failed", "cancelled", "expired")
    name = "headrace_network_requests_total"
    return {kind: int(server.total(name, network=network, outcome=kind)) for kind in kinds}


def expect(server: Server, network: str, before: dict[str, int], **more: int) -> None:
    """Waits until exactly so many requests more have ended in each way."""
    wanted = {kind: count + more.get(kind, 0) for kind, count in before.items()}
    until(lambda: outcomes(server, network) == wanted, f"{more} were to be counted")


def only_expired(server: Server, network: str, before: dict[str, int]) -> bool:
    """Whether requests have ended since, all of them because their time was up."""
    now = outcomes(server, network)
    return now["expired"] > before["expired"] and {**now, "expired": 0} == {**before, "expired": 0}


def let_expire(server: Server, network: str, inputs: Any, arrived: Callable[[], bool]) -> None:
    """Makes a call whose deadline passes on the server, and not on the way there.

    The caller only says its deadline and has no clock. gRPC's client ends the call itself, and its
    deadline is the earlier one by the time on the way. If that is long, because the machine is
    busy, the server takes the end for a cancel.
    """
    message = infer_request(network, inputs).SerializeToString()
    for seconds in DEADLINES:
        with Raw(server.address) as caller, ThreadPoolExecutor(1) as pool:
            timeout = ("grpc-timeout", f"{round(seconds * 1000)}m")
            stream = caller.headers(timeout, path="/headrace.v1.InferenceEngine/Infer")
            caller.send(stream, message)
            end = pool.submit(caller.status, stream)
            until(lambda end=end: end.done() or arrived())  # type: ignore[misc]
            on_the_way = end.done()
            assert int(end.result()) == LATE.value[0]
        if not on_the_way:
            return
    raise AssertionError("no call arrived in time")


def executions(server: Server, device: str) -> int:
    return int(server.total("headrace_device_execution_seconds_count", device=f"{device}.0"))


@contextmanager
def occupied(server: Server, device: str) -> Iterator[None]:
    """The device's only stream is busy for as long as the context lasts."""
    held = server.start(f"endless-{device}", ENDLESS.inputs)
    until(lambda: running(server, device) == 1, "the stream was to be busy")
    try:
        yield
    finally:
        held.cancel()
    until(lambda: running(server, device) == 0, "the run was to stop")


def test_a_call_that_is_cancelled_stops_its_run(narrow: Server, device: str) -> None:
    network = f"endless-{device}"
    before = outcomes(narrow, network)
    call = narrow.start(network, ENDLESS.inputs)
    until(lambda: running(narrow, device) == 1, "the run was to start")
    call.cancel()
    until(lambda: running(narrow, device) == 0, "the run was to stop")
    expect(narrow, network, before, cancelled=1)
    assert_settled(narrow)


def test_a_call_whose_deadline_passes_stops_its_run(narrow: Server, device: str) -> None:
    network = f"endless-{device}"
    before = outcomes(narrow, network)
    let_expire(narrow, network, ENDLESS.inputs, lambda: running(narrow, device) == 1)
    until(lambda: running(narrow, device) == 0, "the run was to stop")
    until(lambda: only_expired(narrow, network, before), "the expiry was to be counted")
    assert_settled(narrow)


def test_a_request_s_own_timeout_stops_its_run_and_says_so(narrow: Server, device: str) -> None:
    network = f"endless-{device}"
    before = outcomes(narrow, network)
    call = narrow.start(network, ENDLESS.inputs, timeout_seconds=0.1)
    details = details_of(call.exception())
    assert details.code is LATE
    assert "the deadline passed" in details.message
    expect(narrow, network, before, expired=1)


def test_a_run_that_outlives_execution_timeout_is_stopped(narrow: Server, device: str) -> None:
    config = {"EXECUTION_TIMEOUT": "0.1"}
    narrow.load(ENDLESS, device, f"bounded-{device}", config)
    details = details_of(narrow.start(f"bounded-{device}", ENDLESS.inputs).exception())
    assert details.code is LATE
    assert "EXECUTION_TIMEOUT" in details.message
    narrow.unload(f"bounded-{device}")


def test_a_request_that_waits_leaves_the_queue_when_it_is_cancelled(
    narrow: Server, device: str
) -> None:
    network = f"add-{device}"
    before = outcomes(narrow, network)
    with occupied(narrow, device):
        call = narrow.start(network, ADD.inputs)
        until(lambda: waiting(narrow, device) == 1, "the request was to wait")
        call.cancel()
        until(lambda: waiting(narrow, device) == 0, "the request was to leave")
        assert running(narrow, device) == 1, "it left while the stream was still busy"
        expect(narrow, network, before, cancelled=1)
    assert_settled(narrow)


def test_a_deadline_that_passes_in_the_queue_ends_the_request_uncomputed(
    narrow: Server, device: str
) -> None:
    network = f"add-{device}"
    before = outcomes(narrow, network)
    with occupied(narrow, device):
        computed = executions(narrow, device)
        own = narrow.start(network, ADD.inputs, timeout_seconds=0.1)
        assert details_of(own.exception()).code is LATE
        let_expire(narrow, network, ADD.inputs, lambda: waiting(narrow, device) == 1)
        until(lambda: waiting(narrow, device) == 0, "both were to leave the queue")
        assert running(narrow, device) == 1, "they left while the stream was still busy"
        until(lambda: only_expired(narrow, network, before), "the expiries were to be counted")
    assert_settled(narrow)
    assert executions(narrow, device) == computed + 1, "nothing ran but what held the stream"


def test_every_call_has_the_outcome_that_its_caller_saw(narrow: Server, device: str) -> None:
    """Ten of each kind, together in one queue."""
    add, fragile = f"add-{device}", f"fragile-{device}"
    before = outcomes(narrow, add), outcomes(narrow, fragile)
    out_of_bounds = {"x": FRAGILE.inputs["x"], "at": np.array([5], np.int64)}
    calls: dict[str, list[Any]] = {}
    with occupied(narrow, device):
        for kind, network, inputs, fields in (
            ("good", add, ADD.inputs, {}),
            ("bad", fragile, out_of_bounds, {}),
            ("cancelled", add, ADD.inputs, {}),
            ("late", add, ADD.inputs, {"timeout_seconds": 0.1}),
        ):
            calls[kind] = [narrow.start(network, inputs, **fields) for _ in range(10)]
        assert [call.code() for call in calls["late"]] == [LATE] * 10
        until(lambda: waiting(narrow, device) == 30, "all others were to wait")
        for call in calls["cancelled"]:
            call.cancel()
        until(lambda: waiting(narrow, device) == 20, "those that were cancelled were to leave")
    for call in calls["good"]:
        assert call.exception() is None
    for call in calls["bad"]:
        assert call.code() in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.FAILED_PRECONDITION,
        )
    expect(narrow, add, before[0], completed=10, cancelled=10, expired=10)
    expect(narrow, fragile, before[1], failed=10)
    assert_settled(narrow)
