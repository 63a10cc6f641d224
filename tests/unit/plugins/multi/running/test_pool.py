"""The pool with real threads: callers, devices that fail, and changes of order, all at once."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from headrace.plugins.multi.executable_network import PooledNetwork
from headrace.plugins.multi.plugin import AutoPlugin, MultiPlugin
from headrace.plugins.multi.running.requests import PoolRequest
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.load import Load
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import Cancelled, InvalidArgument, Unavailable
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.transform.options import NetworkOptions
from headrace.testing import networks
from headrace.testing.occupied import eventually
from headrace.testing.services import services as real_services
from tests.support.gate import Gate, run_together
from tests.support.interleaving import frequent_switches
from tests.support.moody_device import MoodyNetwork, MoodyPlugin, moody
from tests.support.patience import PATIENCE_SECONDS

_ADD = networks.add()
_CALLERS = 4
_JOBS = 120
_TROUBLES = 50


class Life:
    """Callers that submit and cancel, and somebody who breaks, mends and rearranges devices."""

    def __init__(self, network: PooledNetwork, services: Services, seed: int) -> None:
        self._network = network
        self._services = services
        self._seed = seed
        self._lock = threading.Lock()
        self._ended = threading.Semaphore(0)
        self.answers: Counter[Job] = Counter()

    def run(self) -> None:
        callers = [self._caller(number) for number in range(_CALLERS)]
        run_together(*callers, self._trouble)
        for _ in range(_CALLERS * _JOBS):
            assert self._ended.acquire(timeout=PATIENCE_SECONDS), "a job has no answer"

    def _caller(self, number: int) -> Callable[[], None]:
        dice = random.Random(f"{self._seed} {number}")

        def call() -> None:
            for _ in range(_JOBS):
                late = dice.choice([0.001, PATIENCE_SECONDS, PATIENCE_SECONDS])
                job = Job(
                    _ADD.inputs,
                    self._done,
                    priority=dice.randint(-3, 3),
                    deadline=time.monotonic() + late,
                    may_run_inline=dice.random() < 0.3,
                )
                self._network.submit(job)
                if dice.random() < 0.2:
                    job.token.cancel(Cancelled("not wanted"))

        return call

    def _done(self, job: Job) -> None:
        with self._lock:
            self.answers[job] += 1
        self._ended.release()

    def _trouble(self) -> None:
        dice, states = random.Random(self._seed), self._services.states
        for number in range(_TROUBLES):
            if number == _TROUBLES // 2:  # from now on it loads the network
                self._device("C").mends()
                states.set("C", DeviceState.UP)
            device = self._device(dice.choice("AB"))
            what = dice.random()
            if what < 0.3:
                errors = [Unavailable("gone"), RuntimeError("bug"), InvalidArgument("no")]
                device.breaks(dice.choice(errors))
            elif what < 0.6:
                device.mends()
            elif what < 0.8:
                states.set(device.name, DeviceState.DOWN, "unplugged")
            else:
                states.set(device.name, DeviceState.UP)
            if "MULTI_DEVICE_PRIORITIES" in self._network.config.schema and dice.random() < 0.3:
                order = dice.choice(["A,B,C", "C(3),A", "B,C(2)"])
                self._network.set_config({"MULTI_DEVICE_PRIORITIES": order})
        for name in "ABC":
            self._device(name).mends()
            states.set(name, DeviceState.UP)

    def _device(self, name: str) -> MoodyPlugin:
        plugin = self._services.devices.plugin(name)
        assert isinstance(plugin, MoodyPlugin)
        return plugin


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", [MultiPlugin, AutoPlugin])
def test_every_request_has_one_answer_whatever_happens(
    kind: type[MultiPlugin | AutoPlugin], seed: int
) -> None:
    with real_services([moody(name) for name in "ABC"]) as services, frequent_switches():
        late = services.devices.plugin("C")
        assert isinstance(late, MoodyPlugin)
        late.refuses(Unavailable("not yet"))
        services.states.set("C", DeviceState.DOWN, "not yet")
        name = kind.__name__.removesuffix("Plugin").upper()
        options = NetworkOptions(members=DeviceName.parse(f"{name}:A,B,C").members)
        network = kind(name, services, {}).load_network(Load(_ADD.network, options=options))
        assert isinstance(network, PooledNetwork)
        life = Life(network, services, seed)
        life.run()
        assert set(life.answers.values()) == {1}
        assert network.place.admission.in_flight == 0
        assert network.pool.waiting == 0
        eventually(lambda: not network.pool.running, "the end of what runs")
        if kind is MultiPlugin:
            network.set_config({"MULTI_DEVICE_PRIORITIES": "A,B,C"})
            states = partial(network.get_metric, "DEVICE_STATES")
            eventually(lambda: "C=serving" in states(), "the device that loads late")  # type: ignore[operator]
        network.close()


def test_a_request_that_waited_is_freed_without_the_garbage_collector() -> None:
    class Watched(Job):
        __slots__ = ("__weakref__",)

    job = Watched({}, lambda _: None)
    alive, request = weakref.ref(job), PoolRequest(job)
    request.listen(lambda _: None)
    job.complete()
    request.stop_listening()
    gc.disable()
    try:
        del job, request
        assert alive() is None
    finally:
        gc.enable()


@contextmanager
def _busy() -> Iterator[PooledNetwork]:
    """A network on one device, which has as much as it runs."""
    with real_services([moody("A")]) as services:
        options = NetworkOptions(members=DeviceName.parse("MULTI:A").members)
        network = MultiPlugin("MULTI", services, {}).load_network(
            Load(_ADD.network, options=options)
        )
        assert isinstance(network, PooledNetwork)
        device, gate, ended = services.devices.plugin("A"), Gate(), threading.Event()
        assert isinstance(device, MoodyPlugin)
        device.on_infer = lambda _: gate()
        network.submit(Job(_ADD.inputs, lambda _: ended.set()))
        gate.await_arrivals()
        try:
            yield network
        finally:
            gate.open()
            assert ended.wait(PATIENCE_SECONDS)
            network.close()


def test_a_cancel_reaches_a_request_that_failed_before_its_caller_was_back() -> None:
    with _busy() as network:
        pool: Any = network.pool
        do, job = pool._do, Job(_ADD.inputs, lambda _: None)

        def fail_meanwhile(*given: Any, **how: Any) -> None:
            do(*given, **how)
            job.outcome = Outcome.FAILED  # on a device's thread, which will reopen it

        pool._do = fail_meanwhile
        network.submit(job)
        pool._do, job.outcome = do, None
        job.token.cancel(Cancelled("not wanted"))
        assert job.outcome is Outcome.CANCELLED


def test_a_cancel_reaches_a_request_that_is_about_to_wait() -> None:
    with _busy() as network:
        pool: Any = network.pool
        event, job = pool._event, Job(_ADD.inputs, lambda _: None)

        def cancel_before(what: Any) -> Any:
            job.token.cancel(Cancelled("not wanted"))
            return event(what)

        pool._event = cancel_before
        network.submit(job)
        pool._event = event
        assert job.outcome is Outcome.CANCELLED
        assert pool.waiting == 0


def test_each_copy_that_has_left_is_closed_when_its_device_has_no_request() -> None:
    closed: list[str] = []
    with _busy() as network:
        (member,) = network.pool.members
        network.pool.when_empty(member, lambda: closed.append("first"))
        network.pool.when_empty(member, lambda: closed.append("second"))
        assert not closed
    eventually(lambda: closed == ["first", "second"], "the copies' ends")


def test_a_request_whose_device_leaves_at_the_same_moment_does_not_keep_the_copy() -> None:
    closed: list[str] = []

    class Leaving(list[None]):
        def append(self, note: None) -> None:
            super().append(note)
            if pool.direct is not None:  # as an event on another thread does
                pool.direct = None
                pool.when_empty(member, lambda: closed.append("copy"))
                assert not closed

    with real_services([moody("A")]) as services:
        options = NetworkOptions(members=DeviceName.parse("AUTO:A").members)
        network = AutoPlugin("AUTO", services, {}).load_network(Load(_ADD.network, options=options))
        assert isinstance(network, PooledNetwork)
        pool: Any = network.pool
        (member,) = pool.members
        pool.direct.at_work = pool.direct.device.at_work = Leaving()
        job = Job(_ADD.inputs, lambda _: ended.set())
        ended = threading.Event()
        network.submit(job)
        assert ended.wait(PATIENCE_SECONDS)
        assert closed == ["copy"]
        assert job.outcome is Outcome.COMPLETED
        eventually(lambda: not pool.running, "the end of what runs")
        network.close()


def test_copies_that_leave_are_closed_even_if_one_of_them_fails_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(MoodyNetwork):
        def _close(self) -> None:
            super()._close()
            raise RuntimeError("the driver is stuck")

    with _busy() as network:
        (member,) = network.pool.members
        config = member.executable.config
        plugin: Any = network._members.candidates["A"].target.plugin
        copies = [Stuck(_ADD.network, config, plugin) for _ in range(2)]
        for copy in copies:
            network.pool.when_empty(member, copy.close)
    eventually(lambda: [copy.closed for copy in copies] == [1, 1], "the copies' ends")
    assert network.get_metric("DEVICE_REQUESTS") == ["A=1"]
    assert "the driver is stuck" in caplog.text
