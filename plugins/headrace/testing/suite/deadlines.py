"""Deadlines in the queue and on the device, and the longest time that a run may take."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import DeadlineExceeded
from headrace.testing import networks
from headrace.testing.infer_request import InferRequest, RequestState
from headrace.testing.occupied import PATIENCE_SECONDS, occupied
from headrace.testing.suite.fixtures import DeviceFixtures, Loader

_ADD = networks.add()
_ENDLESS = networks.endless()

NewRequest = Callable[[ExecutableNetwork], InferRequest]


class DeadlineConformance(DeviceFixtures):
    def test_a_request_whose_deadline_passes_in_the_queue_does_not_run(
        self, add: ExecutableNetwork, adding: InferRequest
    ) -> None:
        with occupied(add):
            adding.start_async(_ADD.inputs, deadline=time.monotonic() + 0.02)
            assert adding.wait(PATIENCE_SECONDS)  # though no stream is free
        with pytest.raises(DeadlineExceeded):
            adding.result()
        assert adding.state is RequestState.IDLE

    def test_a_request_whose_deadline_has_passed_does_not_run(self, adding: InferRequest) -> None:
        adding.start_async(_ADD.inputs, deadline=time.monotonic() - 1)
        with pytest.raises(DeadlineExceeded):
            adding.result(PATIENCE_SECONDS)

    def test_a_deadline_that_is_kept_changes_nothing(self, adding: InferRequest) -> None:
        adding.start_async(_ADD.inputs, deadline=time.monotonic() + PATIENCE_SECONDS)
        adding.result(PATIENCE_SECONDS)

    def test_a_run_ends_at_the_deadline(self, load: Loader, new_request: NewRequest) -> None:
        request = new_request(load(_ENDLESS))
        request.start_async(_ENDLESS.inputs, deadline=time.monotonic() + 0.05)
        with pytest.raises(DeadlineExceeded):
            request.result(PATIENCE_SECONDS)

    def test_a_run_ends_at_the_execution_timeout(
        self, load: Loader, new_request: NewRequest
    ) -> None:
        request = new_request(load(_ENDLESS, {"EXECUTION_TIMEOUT": "0.05"}))
        request.start_async(_ENDLESS.inputs)
        with pytest.raises(DeadlineExceeded, match="EXECUTION_TIMEOUT"):
            request.result(PATIENCE_SECONDS)
        assert request.state is RequestState.IDLE
