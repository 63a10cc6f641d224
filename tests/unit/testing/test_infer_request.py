"""A reusable request: its states, and what happens to those who wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    RequestBusy,
)
from headrace.runtime.execution.job import Job, LayerProfile
from headrace.testing.infer_request import InferRequest, RequestState
from tests.support.fake_device import FakeDevice, fake_device, rows
from tests.support.gate import Gate, join, run_together
from tests.support.interleaving import frequent_switches
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with fake_device() as device:
        yield device


def test_it_infers_and_is_idle_again(device: FakeDevice) -> None:
    request, value = InferRequest(device.network()), rows()
    assert request.state is RequestState.IDLE
    assert request.infer({"x": value})["y"] is value
    assert request.state is RequestState.IDLE


def test_it_is_busy_until_the_outcome(device: FakeDevice) -> None:
    gate = Gate()
    request = InferRequest(device.network(lambda _: gate()))
    request.start_async({"x": rows()})
    assert request.state is RequestState.BUSY
    assert request.wait(0) is False
    with pytest.raises(RequestBusy, match="another one"):
        request.start_async({"x": rows()})
    gate.open()
    assert request.wait(PATIENCE_SECONDS) is True
    assert request.state.value == "idle"


def test_result_waits_no_longer_than_told(device: FakeDevice) -> None:
    gate = Gate()
    request = InferRequest(device.network(lambda _: gate()))
    request.start_async({"x": rows()})
    with pytest.raises(TimeoutError, match="still running after 0 seconds"):
        request.result(timeout=0)
    gate.open()
    assert set(request.result(PATIENCE_SECONDS)) == {"y"}
    assert set(request.result()) == {"y"}


def test_a_cancelled_one_is_cancelled_and_can_be_started_again(device: FakeDevice) -> None:
    gate = Gate()
    request = InferRequest(device.network(lambda _: gate()))
    request.start_async({"x": rows()})
    request.cancel()
    gate.open()
    with pytest.raises(Cancelled):
        request.result(PATIENCE_SECONDS)
    assert request.state is RequestState.CANCELLED
    assert set(request.infer({"x": rows()})) == {"y"}
    assert request.state.value == "idle"


def test_cancelling_one_that_does_not_run_changes_nothing(device: FakeDevice) -> None:
    request = InferRequest(device.network())
    request.cancel()
    request.infer({"x": rows()})
    request.cancel()
    assert set(request.result()) == {"y"}
    assert request.state is RequestState.IDLE


def test_what_the_inference_raised_is_raised_by_result(device: FakeDevice) -> None:
    def infer(job: Job) -> None:
        raise RuntimeError("a bug")

    request = InferRequest(device.network(infer))
    with pytest.raises(RuntimeError, match="a bug"):
        request.infer({"x": rows()})
    assert request.state is RequestState.IDLE


def test_an_expired_one_is_idle_again(device: FakeDevice) -> None:
    request = InferRequest(device.network())
    request.start_async({"x": rows()}, deadline=0.0)
    with pytest.raises(DeadlineExceeded):
        request.result()
    assert request.state is RequestState.IDLE


def test_a_refused_start_leaves_it_idle(device: FakeDevice) -> None:
    request = InferRequest(device.network())
    with pytest.raises(InvalidArgument):
        request.start_async({"y": rows()})
    assert request.state is RequestState.IDLE
    assert request.wait(0) is True
    with pytest.raises(FailedPrecondition, match="has not been started"):
        request.result()


def test_one_never_started_has_no_result(device: FakeDevice) -> None:
    request = InferRequest(device.network())
    assert request.wait(0) is True
    assert request.performance_counts == []
    with pytest.raises(FailedPrecondition, match="has not been started"):
        request.result()


def test_performance_counts_are_those_of_the_last_inference(device: FakeDevice) -> None:
    profile = LayerProfile("copy", "Identity", "FAKE", "f32", 0.001)
    network = device.network(lambda job: job.layers.append(profile) if job.profile else None)
    request = InferRequest(network)
    request.start_async({"x": rows()}, profile=True, output_names=("y",), priority=2)
    request.result(PATIENCE_SECONDS)
    assert request.performance_counts == [profile]


def test_the_callback_finds_it_ready_to_start_again(device: FakeDevice) -> None:
    gate, left = Gate(), [3]
    gate.open()
    ended = threading.Event()

    def again(request: InferRequest) -> None:
        assert request.state is RequestState.IDLE
        left[0] -= 1
        if left[0]:
            request.start_async({"x": rows()})
        else:
            ended.set()

    request = InferRequest(device.network(lambda _: gate()), again)
    request.start_async({"x": rows()})
    assert ended.wait(PATIENCE_SECONDS)
    assert left == [0]


def test_a_closed_one_is_stopped_and_takes_no_more(device: FakeDevice) -> None:
    request = InferRequest(device.network())
    request.close()
    request.close()
    assert request.state is RequestState.STOPPED
    with pytest.raises(FailedPrecondition, match="closed"):
        request.start_async({"x": rows()})


def test_close_cancels_what_runs_and_waits_for_its_end(device: FakeDevice) -> None:
    stopped: list[bool] = []

    def infer(job: Job) -> None:
        stop = threading.Event()
        job.token.attach(stop.set)
        stopped.append(stop.wait(PATIENCE_SECONDS))

    request = InferRequest(device.network(infer))
    request.start_async({"x": rows()})
    request.close()
    assert request.state is RequestState.STOPPED
    with pytest.raises(Cancelled):
        request.result()


def test_no_inference_begins_while_one_closes(device: FakeDevice) -> None:
    gate, cancelled = Gate(), threading.Event()

    def infer(job: Job) -> None:
        job.token.attach(cancelled.set)
        gate()

    request = InferRequest(device.network(infer))
    request.start_async({"x": rows()})
    gate.await_arrivals()
    closer = threading.Thread(target=request.close)
    closer.start()
    assert cancelled.wait(PATIENCE_SECONDS)
    with pytest.raises(FailedPrecondition, match="closed"):
        request.start_async({"x": rows()})
    gate.open()
    join(closer)
    assert request.state is RequestState.STOPPED


def test_wait_never_returns_while_a_newer_inference_runs_unfinished(device: FakeDevice) -> None:
    """One thread starts again the moment the request is idle, while others wait for results."""
    request = InferRequest(device.network())
    rounds, bad = 300, list[object]()
    over = threading.Event()

    def drive() -> None:
        for _ in range(rounds):
            request.start_async({"x": rows()})
            request.wait(PATIENCE_SECONDS)
        over.set()

    def read() -> None:
        while not over.is_set():
            try:
                outputs = request.result(PATIENCE_SECONDS)
            except FailedPrecondition:
                continue
            if set(outputs) != {"y"}:
                bad.append(outputs)

    with frequent_switches():
        run_together(drive, read, read)
    assert bad == []


def test_threads_that_start_at_once_start_one(device: FakeDevice) -> None:
    gate = Gate()
    request = InferRequest(device.network(lambda _: gate()))
    started: list[bool] = []

    def start() -> None:
        try:
            request.start_async({"x": rows()})
        except RequestBusy:
            started.append(False)
        else:
            started.append(True)

    with frequent_switches():
        run_together(*[start] * 6)
    gate.open()
    assert request.wait(PATIENCE_SECONDS)
    assert sorted(started) == [False] * 5 + [True]
