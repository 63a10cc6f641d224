"""Further devices of the list, for requests that the subgraph's own device does not take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue

import numpy as np
import pytest

from headrace.plugins.hetero.config import SCHEMA
from headrace.plugins.hetero.executable_network import HeteroNetwork
from headrace.plugins.hetero.running.others import Other, Others
from headrace.plugins.hetero.running.subgraph import LoadedSubgraph
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import (
    HeadraceError,
    Internal,
    InvalidArgument,
    InvalidModel,
    Unavailable,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.loading.executor import LoadExecutor
from headrace.runtime.network.values import Value
from headrace.runtime.system.asker import Asker, asking
from headrace.runtime.virtual.flow import Ends
from tests.support.fake_device import FakeDevice, Outcomes, fake_device, identity_network
from tests.support.gate import Gate
from tests.support.patience import PATIENCE_SECONDS

Compute = Callable[[Job], Mapping[str, Value]]


class Stub(ExecutableNetwork):
    """Computes with a function."""

    def __init__(self, device: FakeDevice, compute: Compute) -> None:
        super().__init__(identity_network(), SCHEMA.resolve(), device.executor)
        self._compute = compute
        self.closed = False
        self.open(device.place)

    def _infer(self, job: Job) -> None:
        job.outputs = dict(self._compute(job))

    def _close(self) -> None:
        self.closed = True


def passing(job: Job) -> Mapping[str, Value]:
    return {"y": job.inputs["x"]}


def refusing(error: Exception) -> Compute:
    def compute(_: Job) -> Mapping[str, Value]:
        raise error

    return compute


def network(own: Stub, others: Others, device: FakeDevice) -> HeteroNetwork:
    ends = Ends(("x",), ("y",))
    subgraph = LoadedSubgraph(1, "FIRST", own, ends, (), "", "", {}, others)
    made = HeteroNetwork(identity_network(), SCHEMA.resolve(), [subgraph], {})
    made.open(device.place)
    return made


def ask(network: HeteroNetwork) -> Job:
    outcomes = Outcomes()
    job = outcomes.job({"x": np.ones((1, 2), np.float32)})
    network.submit(job)
    outcomes.wait()
    return job


@pytest.fixture
def executor() -> Iterator[LoadExecutor]:
    made = LoadExecutor()
    yield made
    made.stop()


NOT_THESE = InvalidArgument("not these values", field="inputs")


def test_the_next_device_serves_what_the_first_one_refuses(executor: LoadExecutor) -> None:
    with fake_device() as device:
        loads: list[str] = []

        def load(name: str, _: CancelToken) -> ExecutableNetwork:
            loads.append(name)
            return Stub(device, passing)

        made = network(
            Stub(device, refusing(NOT_THESE)), Others(["SECOND", "THIRD"], load, executor), device
        )
        for _ in range(3):
            assert ask(made).outcome is Outcome.COMPLETED
        assert loads == ["SECOND"]


def test_a_device_that_does_not_load_it_is_passed_over_for_good(executor: LoadExecutor) -> None:
    with fake_device() as device:
        loads: list[str] = []

        def load(name: str, _: CancelToken) -> ExecutableNetwork:
            loads.append(name)
            if name == "SECOND":
                raise InvalidModel("not this network", field="model")
            return Stub(device, passing)

        made = network(
            Stub(device, refusing(NOT_THESE)), Others(["SECOND", "THIRD"], load, executor), device
        )
        for _ in range(2):
            assert ask(made).outcome is Outcome.COMPLETED
        assert loads == ["SECOND", "THIRD"]


@pytest.mark.parametrize("bug", [ValueError("a bug"), InvalidModel("refused", field="model")])
def test_if_no_device_is_left_the_request_has_its_own_error(
    executor: LoadExecutor, bug: Exception
) -> None:
    def load(name: str, _: CancelToken) -> ExecutableNetwork:
        raise bug

    with fake_device() as device:
        job = ask(
            network(Stub(device, refusing(NOT_THESE)), Others(["SECOND"], load, executor), device)
        )
        assert isinstance(job.error, InvalidArgument)
        assert job.error.message == "subgraph 1 of 1 on FIRST: not these values"


def test_if_no_device_takes_it_the_last_one_says_why(executor: LoadExecutor) -> None:
    with fake_device() as device:
        last = InvalidArgument("not here either", field="inputs")
        others = Others(["SECOND"], lambda name, _: Stub(device, refusing(last)), executor)
        job = ask(network(Stub(device, refusing(NOT_THESE)), others, device))
        assert isinstance(job.error, InvalidArgument)
        assert job.error.message == "subgraph 1 of 1 on SECOND: not here either"


@pytest.mark.parametrize("error", [Internal("a bug"), Unavailable("its process has ended")])
def test_a_device_that_has_a_bug_or_is_down_is_not_replaced(
    executor: LoadExecutor, error: HeadraceError
) -> None:
    with fake_device() as device:
        others = Others(["SECOND"], lambda name, _: Stub(device, passing), executor)
        job = ask(network(Stub(device, refusing(error)), others, device))
        assert type(job.error) is type(error)
        assert not others.loaded()


def test_requests_that_come_during_the_load_wait_for_it(executor: LoadExecutor) -> None:
    with fake_device() as device:
        gate, found = Gate(), SimpleQueue[Other | None]()
        loads: list[str] = []

        def load(name: str, _: CancelToken) -> ExecutableNetwork:
            loads.append(name)
            gate()
            return Stub(device, passing)

        others = Others(["SECOND"], load, executor)
        for _ in range(3):
            others.after(0, found.put)
        gate.await_arrivals()
        assert found.empty()
        gate.open()
        first, *more = (found.get(timeout=PATIENCE_SECONDS) for _ in range(3))
        assert first is not None
        assert all(each is first for each in more)
        assert loads == ["SECOND"]


def test_an_identity_loads_one_subgraph_at_a_time_and_keeps_no_other_one_waiting(
    executor: LoadExecutor,
) -> None:
    gates = [Gate(), Gate(), Gate()]
    found = SimpleQueue[Other | None]()
    with fake_device() as device:
        for who, gate in zip(("eve", "eve", "bob"), gates, strict=True):

            def load(*_: object, gate: Gate = gate) -> ExecutableNetwork:
                gate()
                return Stub(device, passing)

            with asking(Asker(who)):
                Others(["SECOND"], load, executor).after(0, found.put)
        gates[0].await_arrivals()
        gates[2].await_arrivals()
        assert not gates[1].most_inside
        for gate in gates:
            gate.open()
        assert all(found.get(timeout=PATIENCE_SECONDS) for _ in gates)


def test_a_device_that_loads_later_has_the_keys_that_were_set_before_and_meanwhile(
    executor: LoadExecutor,
) -> None:
    with fake_device() as device:
        gate, found = Gate(), SimpleQueue[Other | None]()

        def load(*_: object) -> ExecutableNetwork:
            gate()
            return Stub(device, passing)

        others = Others(["SECOND"], load, executor)
        first = network(Stub(device, passing), others, device)
        first.set_config({"EXECUTION_TIMEOUT": "3"})
        others.after(0, found.put)
        gate.await_arrivals()
        first.set_config({"EXECUTION_TIMEOUT": "4"})
        gate.open()
        other = found.get(timeout=PATIENCE_SECONDS)
        assert other is not None
        assert other.executable.config.explicit_strings() == {"EXECUTION_TIMEOUT": "4"}
        first.set_config({"EXECUTION_TIMEOUT": "5"})
        assert other.executable.config.explicit_strings() == {"EXECUTION_TIMEOUT": "5"}


def test_a_request_without_a_thread_for_the_load_ends_and_a_later_one_loads(
    executor: LoadExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with fake_device() as device:
        found = SimpleQueue[Other | None]()
        others = Others(["SECOND"], lambda name, _: Stub(device, passing), executor)
        with monkeypatch.context() as exhausted:
            exhausted.setattr(threading.Thread, "start", refuse)
            others.after(0, found.put)
            assert found.get_nowait() is None
        others.after(0, found.put)
        assert found.get(timeout=PATIENCE_SECONDS) is not None


def test_what_was_loaded_is_closed_with_the_network(executor: LoadExecutor) -> None:
    with fake_device() as device:
        second, tokens = Stub(device, passing), list[CancelToken]()

        def load(name: str, token: CancelToken) -> ExecutableNetwork:
            tokens.append(token)
            return second

        others = Others(["SECOND"], load, executor)
        made = network(Stub(device, refusing(NOT_THESE)), others, device)
        assert ask(made).outcome is Outcome.COMPLETED
        made.close()
        assert second.closed
        assert isinstance(tokens[0].error, HeadraceError)
