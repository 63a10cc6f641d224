"""Many requests at once: all answers are right, none is lost, no request disturbs another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.errors import Cancelled, InvalidArgument, QueueFull
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.metrics.families import DEVICE_ACCEPTED, DEVICE_REQUESTS
from headrace.testing import networks
from headrace.testing.compare import assert_same_outputs
from headrace.testing.counted import number
from headrace.testing.infer_request import InferRequest, RequestState
from headrace.testing.occupied import PATIENCE_SECONDS, occupied
from headrace.testing.suite.fixtures import DeviceFixtures, Loader

_THREADS = 8
_ADD = networks.add()

NewRequest = Callable[[ExecutableNetwork], InferRequest]


class ConcurrencyConformance(DeviceFixtures):
    @pytest.mark.parametrize("streams", ["AUTO", "1", "2"])
    def test_eight_threads_on_two_networks_get_their_own_results(
        self, plugin: Plugin, load: Loader, streams: str
    ) -> None:
        plugin.set_config({"NUM_STREAMS": streams})
        cases = (networks.mlp(), networks.relu_relu())
        loaded = tuple(map(load, cases))

        def inputs(worker: int, turn: int) -> dict[str, np.ndarray]:
            seed = 100 * worker + turn
            if (worker + turn) % 2 == 0:
                return {"x": networks.random(turn % 4 + 1, 8, seed=seed)}
            return {name: networks.random(4, seed=seed + at) for at, name in enumerate("xy")}

        def work(worker: int) -> None:
            requests = [InferRequest(network) for network in loaded]
            for turn in range(10):
                at, feed = (worker + turn) % 2, inputs(worker, turn)
                outputs = requests[at].infer(feed)
                assert_same_outputs(outputs, cases[at].expected(feed), self.tolerance)

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(work, range(_THREADS)))

    def test_requests_of_every_priority_come_to_an_end(
        self, add: ExecutableNetwork, new_request: NewRequest
    ) -> None:
        requests = [new_request(add) for _ in range(42)]
        with occupied(add):
            for at, request in enumerate(requests):
                request.start_async(_ADD.inputs, priority=at % 21 - 10)
        for request in requests:
            assert_same_outputs(request.result(PATIENCE_SECONDS), _ADD.expected(), self.tolerance)

    def test_a_higher_priority_goes_first(self, plugin: Plugin, load: Loader) -> None:
        plugin.set_config({"NUM_STREAMS": "1"})
        network = load(_ADD)
        order: list[int] = []
        ended = threading.Semaphore(0)

        def done(job: Job) -> None:
            order.append(job.priority)
            ended.release()

        with occupied(network):
            for priority in (-10, 10, 0):
                network.submit(Job(_ADD.inputs, done, priority=priority))
        for _ in range(3):
            assert ended.acquire(timeout=PATIENCE_SECONDS)
        assert order == [10, 0, -10]

    def test_a_request_that_fails_disturbs_no_other(
        self, load: Loader, new_request: NewRequest
    ) -> None:
        case = self.fragile
        network = load(case)
        good, bad = case.inputs, {**case.inputs, **self.breaking}
        requests = [new_request(network) for _ in range(20)]
        for at, request in enumerate(requests):
            request.start_async(bad if at % 2 else good)
        for at, request in enumerate(requests):
            if at % 2:
                with pytest.raises(InvalidArgument):
                    request.result(PATIENCE_SECONDS)
            else:
                outputs = request.result(PATIENCE_SECONDS)
                assert_same_outputs(outputs, case.expected(), self.tolerance)

    def test_a_request_that_is_cancelled_disturbs_no_other(
        self, add: ExecutableNetwork, new_request: NewRequest
    ) -> None:
        requests = [new_request(add) for _ in range(20)]
        with occupied(add):
            for request in requests:
                request.start_async(_ADD.inputs)
            for request in requests[::2]:
                request.cancel()
        for request in requests[1::2]:
            assert_same_outputs(request.result(PATIENCE_SECONDS), _ADD.expected(), self.tolerance)
        assert all(request.state is RequestState.CANCELLED for request in requests[::2])

    def test_a_full_queue_refuses_with_a_delay_and_loses_nothing(
        self, plugin: Plugin, load: Loader, new_request: NewRequest
    ) -> None:
        plugin.set_config({"QUEUE_CAPACITY": "4", "NUM_STREAMS": "1"})
        network = load(_ADD)
        accepted: list[InferRequest] = []
        with occupied(network):
            for _ in range(5):  # the queue's four, and one for the stream
                accepted.append(new_request(network))
                accepted[-1].start_async(_ADD.inputs)
            refused = new_request(network)
            with pytest.raises(QueueFull) as caught:
                refused.start_async(_ADD.inputs)
            assert caught.value.retry_delay_seconds is not None
            assert caught.value.retry_delay_seconds > 0
            assert refused.state is RequestState.IDLE
        for request in accepted:
            request.result(PATIENCE_SECONDS)
        self.check(network, _ADD)

    def test_every_accepted_request_is_counted_with_its_one_outcome(
        self, load: Loader, services: Services
    ) -> None:
        network = load(_ADD)
        ended = threading.Semaphore(0)
        outcomes: list[Outcome | None] = []

        def done(job: Job) -> None:
            outcomes.append(job.outcome)
            ended.release()

        jobs = [Job(_ADD.inputs, done, deadline=0.0 if at % 3 == 2 else None) for at in range(30)]
        with occupied(network):
            for job in jobs:
                network.submit(job)
            for job in jobs[::3]:
                job.token.cancel(Cancelled("not wanted"))
        for _ in jobs:
            assert ended.acquire(timeout=PATIENCE_SECONDS)
        assert [outcomes.count(outcome) for outcome in (Outcome.CANCELLED, Outcome.EXPIRED)] == [
            10,
            10,
        ]
        assert outcomes.count(Outcome.COMPLETED) == 10
        device = network.place.device
        counted = services.counters.device(device).snapshot()
        assert number(counted, DEVICE_ACCEPTED, device, "request") == 30
        assert number(counted, DEVICE_REQUESTS, device, "request") == 30
        assert network.place.admission.in_flight == 0
