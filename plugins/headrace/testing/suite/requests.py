"""Infer requests: their states, waiting and cancelling."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import Cancelled, FailedPrecondition, RequestBusy
from headrace.runtime.execution.job import Job, Outcome
from headrace.testing import networks
from headrace.testing.compare import assert_same_outputs
from headrace.testing.infer_request import InferRequest, RequestState
from headrace.testing.occupied import PATIENCE_SECONDS, eventually, occupied
from headrace.testing.suite.fixtures import DeviceFixtures, Loader

_ADD = networks.add()
_ENDLESS = networks.endless()

NewRequest = Callable[[ExecutableNetwork], InferRequest]


def start_running(network: ExecutableNetwork) -> tuple[Job, threading.Event]:
    """A job that a stream has begun, and the event that is set when it ends."""
    ended = threading.Event()
    job = Job(_ENDLESS.inputs, lambda _: ended.set())
    network.submit(job)
    eventually(lambda: job.started > 0, "the start of the request")
    return job, ended


class RequestConformance(DeviceFixtures):
    def test_a_request_is_idle_before_and_after_an_inference(self, adding: InferRequest) -> None:
        assert adding.state is RequestState.IDLE
        assert adding.wait(0)
        adding.infer(_ADD.inputs)
        assert adding.state is RequestState.IDLE

    def test_a_request_is_busy_until_its_end(
        self, add: ExecutableNetwork, adding: InferRequest
    ) -> None:
        with occupied(add):
            adding.start_async(_ADD.inputs)
            assert adding.state is RequestState.BUSY
            with pytest.raises(RequestBusy):
                adding.start_async(_ADD.inputs)
        assert adding.wait(PATIENCE_SECONDS)
        assert_same_outputs(adding.result(), _ADD.expected(), self.tolerance)

    def test_waiting_ends_when_time_is_up(
        self, add: ExecutableNetwork, adding: InferRequest
    ) -> None:
        with occupied(add):
            adding.start_async(_ADD.inputs)
            assert not adding.wait(0.01)
            with pytest.raises(TimeoutError):
                adding.result(timeout=0.01)
        assert adding.wait(PATIENCE_SECONDS)

    def test_a_request_can_be_used_again(self, load: Loader, new_request: NewRequest) -> None:
        case = networks.mlp()
        request = new_request(load(case))
        for batch in (1, 4, 2):
            inputs = {"x": networks.random(batch, 8, seed=batch)}
            assert_same_outputs(request.infer(inputs), case.expected(inputs), self.tolerance)

    def test_results_stay_when_the_request_is_used_again(self, adding: InferRequest) -> None:
        first = adding.infer(_ADD.inputs)
        adding.infer({name: networks.random(2, 3, seed=9) for name in _ADD.inputs})
        assert_same_outputs(first, _ADD.expected(), self.tolerance)

    def test_there_is_no_result_before_a_start(self, adding: InferRequest) -> None:
        with pytest.raises(FailedPrecondition):
            adding.result()

    def test_a_callback_comes_once_for_each_inference(self, add: ExecutableNetwork) -> None:
        calls: list[InferRequest] = []
        request = InferRequest(add, calls.append)
        request.infer(_ADD.inputs)
        request.infer(_ADD.inputs)
        eventually(lambda: len(calls) == 2, "the second callback")
        assert calls == [request, request]

    def test_only_the_outputs_asked_for_are_given(
        self, load: Loader, new_request: NewRequest
    ) -> None:
        case = networks.mlp()
        request = new_request(load(case))
        request.start_async(case.inputs, output_names=("label",))
        assert set(request.result()) == {"label"}

    def test_a_request_that_waits_can_be_cancelled(
        self, add: ExecutableNetwork, adding: InferRequest
    ) -> None:
        with occupied(add):
            adding.start_async(_ADD.inputs)
            adding.cancel()
            assert adding.wait(PATIENCE_SECONDS)  # though no stream is free
            assert adding.state is RequestState.CANCELLED
            with pytest.raises(Cancelled):
                adding.result()
        assert_same_outputs(adding.infer(_ADD.inputs), _ADD.expected(), self.tolerance)

    def test_a_request_that_runs_can_be_cancelled(self, load: Loader) -> None:
        network = load(_ENDLESS)
        job, ended = start_running(network)
        job.token.cancel(Cancelled("nobody waits any more"))
        assert ended.wait(PATIENCE_SECONDS)
        assert job.outcome is Outcome.CANCELLED

    def test_a_cancelled_run_gives_its_stream_back(self, load: Loader) -> None:
        network, other = load(_ENDLESS), load(_ADD)
        job, ended = start_running(network)
        job.token.cancel(Cancelled("nobody waits any more"))
        assert ended.wait(PATIENCE_SECONDS)
        self.check(other, _ADD)

    def test_cancelling_an_idle_request_does_nothing(self, adding: InferRequest) -> None:
        adding.cancel()
        adding.infer(_ADD.inputs)
        adding.cancel()
        assert adding.state is RequestState.IDLE
        assert_same_outputs(adding.result(), _ADD.expected(), self.tolerance)

    def test_closing_a_request_ends_what_it_has_in_flight(self, load: Loader) -> None:
        request = InferRequest(load(_ENDLESS))
        request.start_async(_ENDLESS.inputs)
        request.close()
        assert request.state is RequestState.STOPPED
        with pytest.raises(FailedPrecondition):
            request.start_async(_ENDLESS.inputs)
