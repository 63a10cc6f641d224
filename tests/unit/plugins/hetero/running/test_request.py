"""Requests on their way through subgraphs: order, hand-over, overlap, failure, one end."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from headrace.plugins.hetero import executable_network
from headrace.plugins.hetero.config import SCHEMA
from headrace.plugins.hetero.executable_network import HeteroNetwork
from headrace.plugins.hetero.running.request import HeteroRequest
from headrace.plugins.hetero.running.subgraph import LoadedSubgraph
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    QueueFull,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.inline_budget import InlineBudget
from headrace.runtime.execution.job import Job, LayerProfile, Outcome
from headrace.runtime.metrics import families
from headrace.runtime.network.values import Array, Value
from headrace.runtime.responses import keys
from headrace.runtime.responses.memory import ResponseMemory
from headrace.runtime.responses.network import CachingNetwork
from headrace.runtime.virtual.flow import Ends
from headrace.testing.case import Case, parse
from headrace.testing.counted import number
from headrace.testing.occupied import eventually
from tests.support.fake_device import FakeDevice, Outcomes, fake_device, identity_network
from tests.support.gate import Gate
from tests.support.patience import PATIENCE_SECONDS

Compute = Callable[[Job], Mapping[str, Value]]

CHAIN = "n (float[2] x) => (float[2] y) { a = Abs(x) b = Neg(a) y = Relu(b) }"
CHAIN_ENDS = (Ends(("x",), ("a",)), Ends(("a",), ("b",)), Ends(("b",), ("y",)))
DIAMOND = "n (float[2] x) => (float[2] y) { a = Abs(x) b = Neg(a) c = Neg(a) y = Add(b, c) }"
DIAMOND_ENDS = (
    Ends(("x",), ("a",)),
    Ends(("a",), ("b",)),
    Ends(("a",), ("c",)),
    Ends(("b", "c"), ("y",)),
)


class Stub(ExecutableNetwork):
    """A subgraph that computes with a function."""

    def __init__(self, device: FakeDevice, compute: Compute) -> None:
        config = SCHEMA.resolve()
        super().__init__(identity_network(), config, device.executor, streams=64)
        self._compute = compute
        self.jobs: list[Job] = []
        self.open(device.place)

    def _infer(self, job: Job) -> None:
        self.jobs.append(job)
        job.outputs = dict(self._compute(job))


def passing(ends: Ends) -> Compute:
    """Gives new arrays of zeros."""
    return lambda job: {name: np.zeros(2, np.float32) for name in ends.outputs}


class Rig:
    """Devices with a stream each, and a network over them, one subgraph a device."""

    def __init__(self, devices: list[FakeDevice], outer: FakeDevice) -> None:
        self.devices = devices
        self.outer = outer
        self.outcomes = Outcomes()
        self.stubs: list[Stub] = []

    def network(
        self, text: str, all_ends: tuple[Ends, ...], computes: Mapping[int, Compute] | None = None
    ) -> HeteroNetwork:
        self.stubs = [
            Stub(device, (computes or {}).get(at, passing(ends)))
            for at, (device, ends) in enumerate(zip(self.devices, all_ends, strict=False))
        ]
        subgraphs = [
            LoadedSubgraph(at + 1, f"D{at}", stub, ends, (), "", "", {"origins": {"l": ["layer"]}})
            for at, (stub, ends) in enumerate(zip(self.stubs, all_ends, strict=True))
        ]
        whole = Case("n", parse(text), {}).network
        found = HeteroNetwork(whole, SCHEMA.resolve(), subgraphs, {})
        found.open(self.outer.place)
        return found

    def submit(self, network: ExecutableNetwork, **conditions: Any) -> Job:
        job = self.outcomes.job({"x": np.ones(2, np.float32)}, **conditions)
        network.submit(job)
        return job


@pytest.fixture
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        devices = [stack.enter_context(fake_device()) for _ in range(4)]
        yield Rig(devices, stack.enter_context(fake_device(capacity=8)))


def gated(gate: Gate, ends: Ends) -> Compute:
    def compute(job: Job) -> Mapping[str, Value]:
        gate()
        return passing(ends)(job)

    return compute


def failing(error: Exception) -> Compute:
    def compute(_: Job) -> Mapping[str, Value]:
        raise error

    return compute


# -- order and hand-over --


def test_each_subgraph_starts_when_what_it_reads_is_there(rig: Rig) -> None:
    network = rig.network(DIAMOND, DIAMOND_ENDS)
    job = rig.submit(network)
    rig.outcomes.wait()
    assert job.outcome is Outcome.COMPLETED
    first, left, right, last = (stub.jobs[0] for stub in rig.stubs)
    assert first.finished <= min(left.started, right.started)
    assert max(left.finished, right.finished) <= last.started


def test_tensors_are_handed_over_without_a_copy(rig: Rig) -> None:
    given = np.ones(2, np.float32)
    taken: list[Value] = []

    def take(job: Job) -> Mapping[str, Value]:
        taken.append(job.inputs["a"])
        return {"b": given}

    network = rig.network(CHAIN, CHAIN_ENDS, {0: lambda _: {"a": given}, 1: take})
    rig.submit(network)
    rig.outcomes.wait()
    assert taken[0] is given


def test_a_tensor_is_freed_after_its_last_reader(rig: Rig) -> None:
    alive: list[weakref.ref[Array]] = []
    gate = Gate()

    def give(_: Job) -> Mapping[str, Value]:
        array = np.ones(2, np.float32)
        alive.append(weakref.ref(array))
        return {"a": array}

    network = rig.network(CHAIN, CHAIN_ENDS, {0: give, 2: gated(gate, CHAIN_ENDS[2])})
    rig.submit(network)
    gate.await_arrivals()
    gc.collect()
    eventually(lambda: alive[0]() is None, "the end of a tensor that nobody will read")
    gate.open()
    rig.outcomes.wait()


def test_a_tensor_is_freed_after_a_failure(rig: Rig) -> None:
    alive: list[weakref.ref[Array]] = []

    def give(_: Job) -> Mapping[str, Value]:
        array = np.ones(2, np.float32)
        alive.append(weakref.ref(array))
        return {"a": array}

    network = rig.network(CHAIN, CHAIN_ENDS, {0: give, 1: failing(InvalidArgument("no"))})
    job = rig.submit(network)
    rig.outcomes.wait()
    assert job.outcome is Outcome.FAILED
    eventually(lambda: alive[0]() is None, "the end of a tensor that nobody will read")


def test_a_request_is_freed_without_the_garbage_collector(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[weakref.ref[HeteroRequest]] = []

    class Watched(HeteroRequest):
        def start(self) -> None:
            alive.append(weakref.ref(self))
            super().start()

    monkeypatch.setattr(executable_network, "HeteroRequest", Watched)
    network = rig.network(CHAIN, CHAIN_ENDS)
    gc.disable()
    try:
        rig.submit(network)
        rig.outcomes.wait()
        for stub in rig.stubs:
            stub.jobs.clear()
        eventually(lambda: alive[0]() is None, "the end of a request that has its outcome")
    finally:
        gc.enable()


def test_only_what_the_outputs_asked_for_need_runs(rig: Rig) -> None:
    text = "n (float[2] x) => (float[2] y, float[2] z) { a = Abs(x) y = Neg(a) z = Relu(a) }"
    ends = (Ends(("x",), ("a",)), Ends(("a",), ("y",)), Ends(("a",), ("z",)))
    network = rig.network(text, ends)
    job = rig.submit(network, output_names=("z",))
    rig.outcomes.wait()
    assert set(job.outputs) == {"z"}
    assert [len(stub.jobs) for stub in rig.stubs] == [1, 0, 1]


def test_parts_carry_what_the_request_was_given(rig: Rig) -> None:
    network = rig.network(CHAIN, CHAIN_ENDS)
    deadline = time.monotonic() + 60
    job = rig.submit(network, priority=7, deadline=deadline, profile=True, trace="r1")
    rig.outcomes.wait()
    for stub in rig.stubs:
        (part,) = stub.jobs
        assert part.ticket is job.ticket is rig.outer.admission.ticket
        assert (part.priority, part.deadline, part.profile) == (7, deadline, True)
        assert part.trace == "r1"


def test_one_subgraph_runs_the_job_of_the_caller_itself(rig: Rig) -> None:
    network = rig.network(CHAIN, (Ends(("x",), ("y",)),))
    job = rig.submit(network)
    rig.outcomes.wait()
    assert rig.stubs[0].jobs == [job]
    assert job.outcome is Outcome.COMPLETED
    assert [*job.outputs] == ["y"]
    for device, kind in ((rig.outer, "request"), (rig.devices[0], "part")):
        counted = device.counters.device("FAKE").snapshot()
        assert number(counted, families.DEVICE_REQUESTS, "FAKE", kind, "completed") == 1


def test_one_subgraph_runs_the_job_of_a_network_that_keeps_replies(rig: Rig) -> None:
    inner = rig.network("n (float[2] x) => (float[2] y) { y = Abs(x) }", (Ends(("x",), ("y",)),))
    own = keys.SCHEMA.resolve({"RESPONSE_CACHE": "YES"})
    job = rig.submit(CachingNetwork(inner, own, ResponseMemory(2**20)))
    rig.outcomes.wait()
    assert rig.stubs[0].jobs == [job]


def test_parts_are_counted_as_parts_and_never_refused(rig: Rig) -> None:
    gate = Gate()
    network = rig.network(CHAIN, CHAIN_ENDS, {0: gated(gate, CHAIN_ENDS[0])})
    rig.devices[0].admission.capacity = 1
    jobs = [rig.submit(network) for _ in range(9)]  # the outer queue's eight, and one that runs
    with pytest.raises(QueueFull):
        rig.submit(network)
    gate.open()
    rig.outcomes.wait(len(jobs))
    assert all(job.outcome is Outcome.COMPLETED for job in jobs)
    counted = rig.devices[0].counters.device("FAKE").snapshot()
    assert number(counted, families.DEVICE_REQUESTS, "FAKE", "part", "completed") == 9
    assert number(counted, families.DEVICE_ACCEPTED, "FAKE", "request") == 0


def test_a_profile_names_subgraphs_and_layers_of_the_whole(rig: Rig) -> None:
    def profiled(job: Job) -> Mapping[str, Value]:
        job.layers = [LayerProfile("l'", "Neg", "D1.0", "kernel", 0.5, ("l", "added"))]
        return passing(CHAIN_ENDS[1])(job)

    network = rig.network(CHAIN, CHAIN_ENDS, {1: profiled})
    job = rig.submit(network, profile=True)
    rig.outcomes.wait()
    (layer,) = job.layers
    assert (layer.subgraph, layer.device, layer.origins) == (2, "D1.0", ("layer",))


# -- overlap --


def test_independent_subgraphs_run_at_the_same_time(rig: Rig) -> None:
    gate = Gate()
    network = rig.network(
        DIAMOND, DIAMOND_ENDS, {at: gated(gate, DIAMOND_ENDS[at]) for at in (1, 2)}
    )
    rig.submit(network)
    gate.await_arrivals(2)
    gate.open()
    rig.outcomes.wait()
    assert gate.most_inside == 2


def test_the_next_request_enters_while_this_one_is_further_on(rig: Rig) -> None:
    gate = Gate()
    network = rig.network(CHAIN, CHAIN_ENDS, {1: gated(gate, CHAIN_ENDS[1])})
    rig.submit(network)
    gate.await_arrivals()
    rig.submit(network)
    eventually(lambda: len(rig.stubs[0].jobs) == 2, "the second request on the first device")
    assert not rig.outcomes.jobs
    gate.open()
    rig.outcomes.wait(2)


def test_it_has_no_thread_of_its_own(rig: Rig) -> None:
    network = rig.network(CHAIN, CHAIN_ENDS)
    before = set(threading.enumerate())
    rig.submit(network)
    rig.outcomes.wait()
    assert set(threading.enumerate()) <= before


def test_many_subgraphs_in_a_row_run_inline_without_recursion(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as would exhaust the stack if each ran inside of the one before."""
    monkeypatch.setattr("headrace.runtime.virtual.parts_request.LIMIT_SECONDS", 60.0)
    count = 400
    layers = " ".join(f"t{k + 1} = Neg(t{k})" for k in range(count))
    text = f"n (float[2] t0) => (float[2] t{count}) {{ {layers} }}"
    ends = tuple(Ends((f"t{k}",), (f"t{k + 1}",)) for k in range(count))
    rig.devices = [rig.devices[k % 2] for k in range(count)]
    network = rig.network(text, ends)
    for stub in rig.stubs:
        stub._runner.inline = budget = InlineBudget()
        budget.allowed = True
    job = rig.outcomes.job({"t0": np.ones(2, np.float32)}, may_run_inline=True)
    network.submit(job)
    assert job.error is None
    assert job.outcome is Outcome.COMPLETED  # when the submission returns


# -- failure and the end --


def test_an_error_about_a_tensor_between_subgraphs_blames_no_input_of_the_callers(
    rig: Rig,
) -> None:
    bad = InvalidArgument("input 'a' holds too much", field="inputs['a']")
    job = rig.submit(rig.network(CHAIN, CHAIN_ENDS, {1: failing(bad)}))
    rig.outcomes.wait()
    assert isinstance(job.error, FailedPrecondition)
    assert job.error.field is None
    assert "subgraph 2 of 3" in job.error.message


def test_an_error_about_an_input_of_the_callers_stays_one(rig: Rig) -> None:
    bad = InvalidArgument("input 'x' holds too much", field="inputs['x']")
    job = rig.submit(rig.network(CHAIN, CHAIN_ENDS, {0: failing(bad)}))
    rig.outcomes.wait()
    assert isinstance(job.error, InvalidArgument)
    assert job.error.field == "inputs['x']"


def test_a_failure_names_the_subgraph_and_its_device(rig: Rig) -> None:
    network = rig.network(CHAIN, CHAIN_ENDS, {1: failing(InvalidArgument("bad", field="inputs"))})
    job = rig.submit(network)
    rig.outcomes.wait()
    assert job.outcome is Outcome.FAILED
    assert isinstance(job.error, InvalidArgument)
    assert str(job.error) == "subgraph 2 of 3 on D1: bad"
    assert job.error.field == "inputs"
    assert job.error.metadata["subgraph"] == "2"
    assert not rig.stubs[2].jobs


def test_a_bug_in_a_device_is_internal_and_says_where(rig: Rig) -> None:
    network = rig.network(CHAIN, CHAIN_ENDS, {1: failing(RuntimeError("broken"))})
    job = rig.submit(network)
    rig.outcomes.wait()
    assert isinstance(job.error, Internal)
    assert job.error.metadata["place"] == "subgraph 2 of 3 on D1"
    assert isinstance(job.error.__cause__, RuntimeError)


def test_a_device_that_gives_too_little_has_a_bug(rig: Rig) -> None:
    network = rig.network(CHAIN, CHAIN_ENDS, {1: lambda _: {}})
    job = rig.submit(network)
    rig.outcomes.wait()
    assert isinstance(job.error, Internal)
    assert "subgraph 2 of 3" in str(job.error)


def test_a_device_that_runs_all_and_gives_too_little_has_a_bug(rig: Rig) -> None:
    network = rig.network(CHAIN, (Ends(("x",), ("y",)),), {0: lambda _: {}})
    job = rig.submit(network)
    rig.outcomes.wait()
    assert isinstance(job.error, Internal)
    assert "subgraph 1 of 1 on D0: the device gave [], not ('y',)" in str(job.error)
    assert job.outcome is Outcome.FAILED


def test_a_refused_request_that_cannot_begin_anew_fails(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: HeteroRequest) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(HeteroRequest, "start", fail)
    refusal = failing(InvalidArgument("no"))
    job = rig.submit(rig.network(CHAIN, (Ends(("x",), ("y",)),), {0: refusal}))
    rig.outcomes.wait()
    assert job.outcome is Outcome.FAILED
    assert isinstance(job.error, RuntimeError)


def test_a_failure_cancels_the_other_parts_and_waits_for_their_end(rig: Rig) -> None:
    """Until a backend returns it may read the request's inputs."""
    running, told, leave = threading.Event(), threading.Event(), threading.Event()

    def fail(_: Job) -> Mapping[str, Value]:
        assert running.wait(PATIENCE_SECONDS)
        raise InvalidArgument("bad")

    def slow(job: Job) -> Mapping[str, Value]:
        job.token.attach(told.set)
        running.set()
        leave.wait(PATIENCE_SECONDS)
        return passing(DIAMOND_ENDS[2])(job)

    network = rig.network(DIAMOND, DIAMOND_ENDS, {1: fail, 2: slow})
    job = rig.submit(network)
    assert told.wait(PATIENCE_SECONDS)
    assert job.outcome is None
    leave.set()
    rig.outcomes.wait()
    assert isinstance(job.error, InvalidArgument)
    assert not job.token.cancelled


def test_a_failure_disturbs_no_other_request(rig: Rig) -> None:
    turn = iter(range(20))

    def every_other(job: Job) -> Mapping[str, Value]:
        if next(turn) % 2:
            raise InvalidArgument("odd")
        return passing(CHAIN_ENDS[1])(job)

    rig.outer.admission.capacity = 64
    network = rig.network(CHAIN, CHAIN_ENDS, {1: every_other})
    for _ in range(20):
        rig.submit(network)
    rig.outcomes.wait(20)
    assert rig.outcomes.count() == {Outcome.COMPLETED: 10, Outcome.FAILED: 10}
    assert rig.outer.admission.in_flight == 0


def test_a_cancel_ends_the_part_that_runs_and_names_it(rig: Rig) -> None:
    running = threading.Event()

    def until_cancelled(job: Job) -> Mapping[str, Value]:
        stopped = threading.Event()
        job.token.attach(stopped.set)
        running.set()
        assert stopped.wait(PATIENCE_SECONDS)
        return {}

    network = rig.network(CHAIN, CHAIN_ENDS, {1: until_cancelled})
    job = rig.submit(network)
    assert running.wait(PATIENCE_SECONDS)
    job.token.cancel(Cancelled("not wanted"))
    rig.outcomes.wait()
    assert job.outcome is Outcome.CANCELLED
    assert str(job.error) == "subgraph 2 of 3 on D1: not wanted"
    assert not rig.stubs[2].jobs


def test_a_cancel_takes_a_part_out_of_its_queue(rig: Rig) -> None:
    gate = Gate()
    network = rig.network(CHAIN, CHAIN_ENDS, {1: gated(gate, CHAIN_ENDS[1])})
    rig.submit(network)
    gate.await_arrivals()
    waiting = rig.submit(network)
    eventually(lambda: rig.devices[1].executor.waiting == 1, "a part in the queue")
    waiting.token.cancel(Cancelled("not wanted"))
    rig.outcomes.wait()
    assert waiting.outcome is Outcome.CANCELLED
    assert rig.devices[1].executor.waiting == 0
    gate.open()
    rig.outcomes.wait(2)


def test_a_deadline_that_passes_on_a_subgraph_names_it(rig: Rig) -> None:
    reached = threading.Event()

    def until_cancelled(job: Job) -> Mapping[str, Value]:
        stopped = threading.Event()
        job.token.attach(stopped.set)
        reached.set()
        assert stopped.wait(PATIENCE_SECONDS)
        return {}

    network = rig.network(CHAIN, CHAIN_ENDS, {2: until_cancelled})
    for turn, seconds in enumerate((0.05, 0.5, 5, 50), 1):  # until it gets there in its time
        job = rig.submit(network, deadline=time.monotonic() + seconds)
        rig.outcomes.wait(turn)
        if reached.is_set():
            break
    assert job.outcome is Outcome.EXPIRED
    assert isinstance(job.error, DeadlineExceeded)
    assert "subgraph 3 of 3 on D2" in str(job.error)


def test_tokens_of_ended_requests_are_let_go(rig: Rig) -> None:
    network = rig.network(CHAIN, CHAIN_ENDS)
    job = rig.submit(network)
    rig.outcomes.wait()
    assert job.token._hooks == CancelToken()._hooks


def test_a_subgraph_that_is_gone_fails_the_request(rig: Rig) -> None:
    network = rig.network(CHAIN, CHAIN_ENDS)
    rig.stubs[1].close()
    job = rig.submit(network)
    rig.outcomes.wait()
    assert job.outcome is Outcome.FAILED
    assert "subgraph 2 of 3" in str(job.error)
