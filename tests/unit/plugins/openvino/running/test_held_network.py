"""A network is closed when no shape needs it any more, and no request runs on it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.plugins.openvino.running.held_network import HeldNetwork
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import Cancelled
from headrace.runtime.execution.job import Job, nobody_waits


class FakeNetwork:
    """Answers with its inputs, and counts how often it is closed."""

    def __init__(self) -> None:
        self.closed = 0
        self.jobs: list[Job] = []
        self.settles_after = 2

    def is_settled(self) -> bool:
        return len(self.jobs) >= self.settles_after

    def compute(self, job: Job) -> None:
        assert not self.closed
        self.jobs.append(job)
        job.outputs = dict(job.inputs)

    def close(self) -> None:
        self.closed += 1


def held_of(network: FakeNetwork) -> HeldNetwork:
    return HeldNetwork(cast("ExecutableNetwork", network), "somewhere")


def test_an_idle_network_is_closed_as_it_is_dropped_and_once() -> None:
    network = FakeNetwork()
    held = held_of(network)
    held.drop()
    held.drop()
    assert network.closed == 1
    assert not held.take()


def test_one_that_runs_is_closed_after_its_last_run() -> None:
    network = FakeNetwork()
    held = held_of(network)
    assert held.take()
    assert held.take()
    held.drop()
    held.give_back()
    closed = [network.closed]
    held.give_back()
    assert [*closed, network.closed] == [0, 1]


def test_a_run_beside_another_network_leaves_the_job_alone() -> None:
    network = FakeNetwork()
    inputs: Any = {"x": 1}
    job = Job(inputs, nobody_waits, profile=True)
    job.room = {}
    assert held_of(network).run_beside(job) == inputs
    assert not job.outputs
    (mine,) = network.jobs
    assert mine.token is job.token
    assert mine.room is None
    assert not mine.profile


def test_what_is_dropped_settles_nothing() -> None:
    network = FakeNetwork()
    held = held_of(network)
    assert held.settled({}, (), 9) is held
    assert len(network.jobs) == network.settles_after
    held.drop()
    with pytest.raises(Cancelled):
        held.settled({}, (), 9)
    assert len(network.jobs) == network.settles_after


def test_what_never_settles_runs_a_limited_number_of_times() -> None:
    network = FakeNetwork()
    network.settles_after = 9
    held_of(network).settled({}, (), 3)
    assert len(network.jobs) == 3
