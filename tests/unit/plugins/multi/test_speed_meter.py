"""The runs of a measurement."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace.plugins.multi.speed_meter import NotIdle, SpeedMeter
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.services import Services
from headrace.runtime.errors import Cancelled, FailedPrecondition, InvalidArgument
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.testing import networks
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services as real_services
from tests.support.moody_device import MoodyPlugin, moody
from tests.support.patience import PATIENCE_SECONDS

_ADD = networks.add()


@pytest.fixture
def offered() -> Iterator[Services]:
    with real_services([moody("A"), moody("B")]) as made:
        yield made


@pytest.fixture
def loaded(offered: Services) -> Iterator[list[ExecutableNetwork]]:
    made = [offered.devices.plugin(name).load_network(Load(_ADD.network)) for name in "AB"]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def meter(offered: Services) -> SpeedMeter:
    return SpeedMeter(offered, CancelToken(), threading.Event())


def device(offered: Services, name: str) -> MoodyPlugin:
    plugin = offered.devices.plugin(name)
    assert isinstance(plugin, MoodyPlugin)
    return plugin


def test_each_device_runs_alone_and_with_full_streams(
    offered: Services, loaded: list[ExecutableNetwork], meter: SpeedMeter
) -> None:
    runs = [meter.settle(network, _ADD.inputs) for network in loaded]
    found = meter.measure(runs, _ADD.inputs)
    assert len(found) == 2
    assert all(each.latency_seconds > 0 and each.requests_per_second > 0 for each in found)
    accepted, _ = offered.counters.requests()
    assert not accepted  # its runs are no requests


def test_the_runs_let_every_request_go_first(
    offered: Services, loaded: list[ExecutableNetwork], meter: SpeedMeter
) -> None:
    meter.measure([meter.settle(network, _ADD.inputs) for network in loaded], _ADD.inputs)
    assert {job.priority for job in device(offered, "A").jobs} == {-10}


def test_a_run_during_which_a_request_comes_does_not_count(
    offered: Services, loaded: list[ExecutableNetwork], meter: SpeedMeter
) -> None:
    settled = meter.settle(loaded[0], _ADD.inputs)
    other = loaded[1]
    device(offered, "A").on_infer = lambda _: InferRequest(other).infer(_ADD.inputs)
    with pytest.raises(NotIdle):
        meter.measure([settled, settled], _ADD.inputs)


def test_a_device_that_tries_things_out_is_run_until_it_has_done_so(
    offered: Services, loaded: list[ExecutableNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()
    ends.set()  # it does not wait
    meter = SpeedMeter(offered, CancelToken(), ends)
    jobs = device(offered, "A").jobs
    monkeypatch.setattr(loaded[0], "is_settled", lambda: len(jobs) >= 7)
    meter.settle(loaded[0], _ADD.inputs)
    assert len(jobs) == 7
    monkeypatch.setattr(loaded[0], "is_settled", lambda: False)
    with pytest.raises(FailedPrecondition, match="does not settle"):
        meter.settle(loaded[0], _ADD.inputs)


def test_the_error_of_a_run_is_the_devices(
    offered: Services, loaded: list[ExecutableNetwork], meter: SpeedMeter
) -> None:
    device(offered, "A").breaks(InvalidArgument("no such token"))
    with pytest.raises(InvalidArgument, match="no such token"):
        meter.settle(loaded[0], _ADD.inputs)


def test_a_cancel_ends_a_run(offered: Services, loaded: list[ExecutableNetwork]) -> None:
    token = CancelToken()

    def hold(job: Job) -> None:
        ended = threading.Event()
        job.token.attach(ended.set)
        token.cancel(Cancelled("unloaded"))
        assert ended.wait(PATIENCE_SECONDS)

    device(offered, "A").on_infer = hold
    with pytest.raises(Cancelled, match="unloaded"):
        SpeedMeter(offered, token, threading.Event()).settle(loaded[0], _ADD.inputs)
