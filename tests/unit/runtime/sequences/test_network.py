"""A network that keeps states: requests of one sequence in order, sequences beside each other, and
every end of a sequence."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    Internal,
    InvalidArgument,
    NotFound,
    QueueFull,
    ResourceExhausted,
    Unavailable,
)
from headrace.runtime.execution.job import Job, Outcome, Sequence
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.sequences.memory import StateMemory
from headrace.runtime.sequences.network import SequenceNetwork
from headrace.runtime.sequences.table import Ending
from tests.support.fake_device import FakeDevice, Outcomes, fake_device
from tests.support.gate import Gate, run_together
from tests.support.patience import PATIENCE_SECONDS
from tests.support.stateful import HeldNetwork, SumNetwork, more, number, start, stateful

S_BYTES = 8  # of the states of one sequence: float32[1, 2]


class Held:
    """A network on a device that ends requests when it is told to."""

    def __init__(self, device: FakeDevice, memory: StateMemory, **config: str) -> None:
        self.inner = HeldNetwork()
        self.counters = NetworkCounters("net", "FAKE")
        self.network = stateful(self.inner, device.place, config, memory, self.counters)
        self.memory = memory
        self.outcomes = Outcomes()

    def submit(self, sequence: Sequence | None, value: float = 1.0, **conditions: Any) -> Job:
        job = self.outcomes.job({**number(value)}, sequence=sequence, **conditions)
        self.network.submit(job)
        return job

    def end_only(self, identifier: str = "s", **conditions: Any) -> Job:
        job = self.outcomes.job({}, sequence=more(identifier, end=True), **conditions)
        self.network.submit(job)
        return job

    def run(self, sequence: Sequence, value: float = 1.0, owner: str = "") -> float:
        """A request from its start to its end."""
        job = self.submit(sequence, value, owner=owner)
        self.inner.finish(job)
        return doubled(job)

    def await_expiry(self) -> threading.Event:
        """Set when a sequence has expired; the table does not tell the counters any more."""
        expired = threading.Event()

        def note(how: Ending | None) -> None:
            if how is Ending.EXPIRED:
                expired.set()

        self.network._table._note = note
        return expired

    @property
    def open(self) -> object:
        return self.network.get_metric("OPEN_SEQUENCES")


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with fake_device() as device:
        yield device


@pytest.fixture
def memory() -> StateMemory:
    return StateMemory(2**20)


@pytest.fixture
def held(device: FakeDevice, memory: StateMemory) -> Held:
    return Held(device, memory)


def doubled(job: Job) -> float:
    assert job.error is None, job.error
    assert list(job.outputs) == ["doubled"]
    value = job.outputs["doubled"]
    assert isinstance(value, np.ndarray)
    return float(value[0, 0])


def given(job: Job) -> float:
    """The state that a job was started with."""
    value = job.inputs["total"]
    assert isinstance(value, np.ndarray)
    return float(value[0, 0])


def error_of(job: Job) -> HeadraceError:
    assert isinstance(job.error, HeadraceError), job.error
    return job.error


# -- what a client sees --


def test_the_states_are_not_the_clients(held: Held) -> None:
    assert [port.name for port in held.network.inputs] == ["x"]
    assert [port.name for port in held.network.outputs] == ["doubled"]
    assert held.network.states == {"total": "next"}


def test_a_request_has_only_the_outputs_that_are_the_clients(held: Held) -> None:
    job = held.submit(start(), 3.0)
    held.inner.finish(job)
    assert list(job.outputs) == list(job.output_names) == ["doubled"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "name"),
    [({"total": np.zeros((1, 2), np.float32)}, (), "total"), ({}, ("doubled", "next"), "next")],
)
def test_giving_or_asking_for_a_state_is_refused_by_its_name(
    held: Held, inputs: dict[str, Any], outputs: tuple[str, ...], name: str
) -> None:
    job = held.outcomes.job({**number(1), **inputs}, output_names=outputs, sequence=start())
    with pytest.raises(InvalidArgument, match=f"'{name}' is a state") as caught:
        held.network.submit(job)
    assert str(caught.value.field) in ("inputs['total']", "outputs")
    assert held.open == 0


@pytest.mark.parametrize("sequence", [None, Sequence(""), Sequence("i" * 129, start=True)])
def test_a_request_without_an_id_is_refused(held: Held, sequence: Sequence | None) -> None:
    with pytest.raises(InvalidArgument, match=r"which sequence|1 to 128") as caught:
        held.submit(sequence)
    assert str(caught.value.field).startswith("session")


def test_a_bad_input_is_refused_before_the_sequence_begins(held: Held) -> None:
    with pytest.raises(InvalidArgument, match="input 'x'"):
        held.network.submit(held.outcomes.job({"x": np.zeros(3)}, sequence=start()))
    assert held.open == 0


# -- the states --


def test_a_sequence_begins_with_zeros_and_goes_on_from_request_to_request(held: Held) -> None:
    assert [held.run(start(), 1.0), held.run(more(), 2.0), held.run(more(), 4.0)] == [2, 6, 14]


def test_sequences_do_not_see_each_other(held: Held) -> None:
    assert held.run(start("a"), 1.0) == 2
    assert held.run(start("b"), 10.0) == 20
    assert held.run(more("a"), 1.0) == 4
    assert held.run(more("b"), 1.0) == 22


def test_the_state_of_a_batch_is_as_large_as_the_first_request(held: Held) -> None:
    job = held.outcomes.job(number(1, rows=3), sequence=start())
    held.network.submit(job)
    assert job.inputs["total"].shape == (3, 2)  # type: ignore[union-attr]
    held.inner.finish(job)
    other = held.submit(more())
    assert isinstance(error_of(other), InvalidArgument)
    assert "has the size 1, but sequence 's' began with 3" in str(other.error)
    assert held.memory.taken == 3 * S_BYTES


def test_a_start_on_an_open_sequence_begins_it_again(held: Held) -> None:
    held.run(start(), 5.0)
    assert held.run(start(), 1.0) == 2
    assert held.open == 1
    assert held.memory.taken == S_BYTES


@pytest.mark.parametrize(
    "error", [Unavailable("the device is down"), Cancelled("enough"), DeadlineExceeded("late")]
)
def test_a_request_that_fails_leaves_the_state_of_the_last_one_that_completed(
    held: Held, error: HeadraceError
) -> None:
    held.run(start(), 5.0)
    failed = held.submit(more(), 100.0)
    held.inner.fail(failed, error)
    assert failed.error is error
    assert held.run(more(), 1.0) == 12


def test_a_start_that_fails_leaves_the_sequence_at_its_start(held: Held) -> None:
    held.run(start(), 5.0)
    failed = held.submit(start(), 100.0)
    held.inner.fail(failed, Unavailable("the device is down"))
    assert held.run(more(), 1.0) == 2


def test_a_state_of_another_shape_fails_its_request_and_is_not_kept(held: Held) -> None:
    held.run(start(), 5.0)
    job = held.submit(more(), 1.0)
    held.inner.started.remove(job)
    job.outputs = {"doubled": np.zeros((1, 2)), "next": np.zeros((2, 2), np.float32)}
    job.complete()
    assert isinstance(error_of(job), FailedPrecondition)
    assert "'next' came as float32[2, 2]" in str(job.error)
    assert held.run(more(), 1.0) == 12


@pytest.mark.parametrize("given", ["doubled", "next"])
def test_a_device_that_gives_too_little_changes_no_state(held: Held, given: str) -> None:
    held.run(start(), 5.0)
    job = held.submit(more(), 1.0)
    asked = job.output_names
    held.inner.started.remove(job)
    job.outputs = {given: np.ones((1, 2), np.float32)}
    job.complete()
    assert isinstance(error_of(job), Internal)
    assert job.output_names == asked  # another device is asked for all of them
    assert held.run(more(), 1.0) == 12


# -- the end --


def test_a_sequence_ends_with_the_request_that_says_so(held: Held) -> None:
    held.run(start(), 5.0)
    assert held.run(more(end=True), 1.0) == 12
    assert (held.open, held.memory.taken) == (0, 0)
    refused = error_of(held.submit(more()))
    assert isinstance(refused, FailedPrecondition)
    assert "sequence 's' is not open on network 'net'" in refused.message
    assert refused.field == "session.id"


def test_a_sequence_of_one_request_begins_and_ends(held: Held) -> None:
    assert held.run(start(end=True), 5.0) == 10
    assert (held.open, held.memory.taken) == (0, 0)


def test_who_hears_that_a_sequence_has_ended_finds_it_ended(held: Held) -> None:
    found: list[object] = []
    job = Job(number(5.0), lambda _: found.append(held.open), sequence=start(end=True))
    held.network.submit(job)
    held.inner.finish(job)
    assert found == [0]


def test_the_next_request_begins_when_the_last_one_has_been_reported(held: Held) -> None:
    found: list[int] = []
    job = Job(number(5.0), lambda _: found.append(len(held.inner.started)), sequence=start())
    held.network.submit(job)
    after = held.submit(more())
    held.inner.finish(job)
    assert (found, held.inner.started) == ([0], [after])


def test_a_request_without_inputs_only_ends_the_sequence(held: Held) -> None:
    held.run(start(), 5.0)
    job = held.end_only(output_names=("doubled",))
    assert (job.outcome, job.outputs, job.output_names) == (Outcome.COMPLETED, {}, ())
    assert (held.open, held.memory.taken, held.inner.started) == (0, 0, [])
    assert isinstance(held.end_only().error, FailedPrecondition)


def test_an_end_waits_for_the_requests_before_it(held: Held) -> None:
    first, second = held.submit(start()), held.submit(more())
    end = held.end_only()
    held.inner.finish(first)
    assert (end.outcome, held.inner.started) == (None, [second])
    held.inner.finish(second)
    assert end.outcome is Outcome.COMPLETED
    assert (held.open, held.memory.taken) == (0, 0)


def test_no_request_comes_after_one_that_ends_the_sequence(held: Held) -> None:
    first = held.submit(start(end=True))
    late = held.submit(more())
    assert "'s' is ending" in str(late.error)
    held.inner.finish(first)
    assert held.open == 0


def test_a_request_that_was_to_end_the_sequence_and_fails_may_be_repeated(held: Held) -> None:
    held.run(start(), 5.0)
    failed = held.submit(more(end=True))
    held.inner.fail(failed, Unavailable("the device is down"))
    assert held.run(more(end=True), 1.0) == 12
    assert held.open == 0


def test_a_waiting_end_that_is_cancelled_ends_nothing(held: Held) -> None:
    first, end = held.submit(start()), held.end_only()
    end.token.cancel(Cancelled("enough"))
    second = held.submit(more())
    held.inner.finish(first)
    held.inner.finish(second)
    assert doubled(second) == 4
    assert held.open == 1


def test_requests_that_wait_when_the_sequence_begins_again_end_as_they_would_have(
    held: Held,
) -> None:
    first, second = held.submit(start(), 1.0), held.submit(more(), 2.0)
    anew, after = held.submit(start(), 10.0), held.submit(more(), 20.0)
    assert held.inner.started == [first, anew]  # beside each other: they are two sequences
    held.inner.finish(anew)
    held.inner.finish(first)
    held.inner.finish(after)
    held.inner.finish(second)
    assert [doubled(job) for job in (first, second, anew, after)] == [2, 6, 20, 60]
    assert (held.open, held.memory.taken) == (1, S_BYTES)


def test_an_idle_sequence_ends_after_its_time(device: FakeDevice, memory: StateMemory) -> None:
    held = Held(device, memory, SEQUENCE_IDLE_TIMEOUT="0.01")
    expired = held.await_expiry()
    held.run(start("a"))
    running = held.submit(start("b"))
    assert expired.wait(PATIENCE_SECONDS)
    refused = held.submit(more("a"))
    assert "after 0.01 s without one, which is SEQUENCE_IDLE_TIMEOUT" in str(refused.error)
    assert held.memory.taken == S_BYTES  # b runs, and is not idle
    held.inner.finish(running)


def test_a_shorter_idle_time_holds_for_the_sequences_that_are_open(held: Held) -> None:
    expired = held.await_expiry()
    held.run(start())
    held.network.set_config({"SEQUENCE_IDLE_TIMEOUT": "0.001"})
    assert expired.wait(PATIENCE_SECONDS)
    assert (held.open, held.memory.taken) == (0, 0)


def test_closing_ends_all_sequences(held: Held) -> None:
    held.run(start("a"))
    held.run(start("b"))
    held.network.close()
    assert (held.memory.taken, held.inner.closed) == (0, 1)
    with pytest.raises(Unavailable, match="unloaded"):
        held.submit(more("a"))


# -- bounds --


def test_only_so_many_sequences_are_open(device: FakeDevice, memory: StateMemory) -> None:
    held = Held(device, memory, SEQUENCE_CAPACITY="2")
    held.run(start("a"))
    held.run(start("b"))
    refused = error_of(held.submit(start("c")))
    assert isinstance(refused, ResourceExhausted)
    assert "has 2 open sequences, SEQUENCE_CAPACITY is 2" in refused.message
    held.run(start("a"))  # again, so it needs no room
    held.end_only("a")
    held.run(start("c"))
    held.network.set_config({"SEQUENCE_CAPACITY": "3"})
    held.run(start("d"))
    assert held.open == 3


def test_one_identity_leaves_sequences_to_others(device: FakeDevice, memory: StateMemory) -> None:
    held = Held(device, memory, SEQUENCE_CAPACITY="16")
    for each in range(14):
        held.run(start(f"e{each}"), owner="eve")
    refused = error_of(held.submit(start("e14"), owner="eve"))
    assert isinstance(refused, ResourceExhausted)
    assert "you have 14 open sequences" in refused.message
    held.run(start("b"), owner="bob")
    held.run(start("e0"), owner="eve")  # again, so it needs no room
    held.end_only("b")
    held.end_only("e0")
    held.run(start("e14"), owner="eve")


def test_the_states_of_a_sequence_count_for_whoever_began_it_last(device: FakeDevice) -> None:
    held = Held(device, StateMemory(16 * S_BYTES))
    for each in range(14):
        held.run(start(f"e{each}"), owner="eve")
    refused = error_of(held.submit(start("e14"), owner="eve"))
    assert "an eighth stays for others" in refused.message
    held.run(start("e0"), owner="bob")
    assert held.memory.taken == 14 * S_BYTES
    assert held.memory._of == {"eve": 13 * S_BYTES, "bob": S_BYTES}


def test_states_take_only_so_many_bytes(device: FakeDevice) -> None:
    held = Held(device, StateMemory(2 * S_BYTES + 1))
    other = Held(device, held.memory)
    held.run(start("a"))
    other.run(start("a"))
    assert isinstance(held.submit(start("b")).error, ResourceExhausted)
    held.run(start("a"))  # in the place of the old one
    other.end_only("a")
    held.run(start("b"))
    assert held.memory.taken == 2 * S_BYTES


def test_waiting_requests_count_in_the_queue(memory: StateMemory) -> None:
    with fake_device(streams=1, capacity=2) as device:
        held = Held(device, memory)
        jobs = [held.submit(start()), held.submit(more()), held.submit(more())]
        with pytest.raises(QueueFull):
            held.submit(more())
        for job in jobs:
            held.inner.finish(job)
        assert device.admission.in_flight == 0


# -- order --


def test_requests_of_one_sequence_run_one_at_a_time_in_order(held: Held) -> None:
    jobs = [held.submit(start(), 1.0), *(held.submit(more(), 1.0) for _ in range(5))]
    for job in jobs:
        assert held.inner.started == [job]
        held.inner.finish(job)
    assert [doubled(job) for job in jobs] == [2, 4, 6, 8, 10, 12]
    assert held.outcomes.jobs == jobs


def test_a_request_that_is_cancelled_while_it_waits_leaves_at_once_and_the_order_stays(
    held: Held,
) -> None:
    jobs = [held.submit(start(), 1.0), *(held.submit(more(), 10.0**n) for n in range(1, 4))]
    jobs[2].token.cancel(Cancelled("enough"))
    assert jobs[2].outcome is Outcome.CANCELLED
    for job in (jobs[0], jobs[1], jobs[3]):
        held.inner.finish(job)
    assert doubled(jobs[3]) == 2 * (1 + 10 + 1000)


def test_a_deadline_that_passes_while_a_request_waits_ends_it(held: Held) -> None:
    first = held.submit(start())
    second = held.submit(more(), deadline=time.monotonic() + 0.01)
    held.outcomes.wait(1)
    assert second.outcome is Outcome.EXPIRED
    held.inner.finish(first)
    assert held.run(more()) == 4


def test_ten_thousand_waiting_requests_that_fail_at_once_end_without_recursion(
    memory: StateMemory,
) -> None:
    with fake_device(capacity=20_000) as device:
        held = Held(device, memory)
        first = held.submit(start())
        for _ in range(10_000):
            held.submit(more())

        def fail(job: Job) -> None:
            raise Unavailable("the device is shutting down")

        held.inner._start = fail  # type: ignore[method-assign]
        held.inner.finish(first)
        assert held.outcomes.count() == {Outcome.COMPLETED: 1, Outcome.FAILED: 10_000}
        assert device.admission.in_flight == 0


def test_a_request_that_has_waited_leaves_nothing_behind_that_refers_to_it(held: Held) -> None:
    gc.disable()
    try:
        first, second, third = held.submit(start()), held.submit(more()), held.submit(more())
        waited = weakref.ref(second.inputs["x"]), weakref.ref(third.inputs["x"])
        third.token.cancel(Cancelled("enough"))
        held.inner.finish(first)
        held.inner.finish(second)
        held.outcomes.jobs.clear()
        del first, second, third
        assert [reference() for reference in waited] == [None, None]
    finally:
        gc.enable()


# -- on streams --


def test_sequences_run_beside_each_other(memory: StateMemory) -> None:
    with fake_device(streams=2) as device:
        gate, outcomes = Gate(), Outcomes()
        network = stateful(SumNetwork(device.executor, gate), device.place, memory=memory)
        for identifier in "ab":
            network.submit(outcomes.job(number(1), sequence=start(identifier)))
            network.submit(outcomes.job(number(1), sequence=more(identifier)))
        gate.await_arrivals(2)
        gate.open()
        assert [job.outcome for job in outcomes.wait(4)] == [Outcome.COMPLETED] * 4
        assert gate.most_inside == 2


def test_callers_on_many_threads_get_what_each_sequence_alone_would(memory: StateMemory) -> None:
    with fake_device(streams=3) as device:
        network = stateful(SumNetwork(device.executor), device.place, memory=memory)

        def call(identifier: str, inline: bool) -> None:
            outcomes = Outcomes()
            jobs = [
                outcomes.job(
                    number(value), sequence=Sequence(identifier, value == 1), may_run_inline=inline
                )
                for value in range(1, 101)
            ]
            for job in jobs:
                network.submit(job)
            outcomes.wait(100)
            assert [doubled(job) for job in jobs] == [n * (n + 1) for n in range(1, 101)]
            assert outcomes.jobs == jobs  # each was told before the next one began

        run_together(
            *(lambda name=f"s{k}", inline=bool(k % 2): call(name, inline) for k in range(6))
        )
        assert network.get_metric("OPEN_SEQUENCES") == 6
        assert device.admission.in_flight == 0
        network.close()
        assert memory.taken == 0


# -- what it says of itself --


def test_it_answers_for_the_network_behind_it(held: Held) -> None:
    network = held.network
    metrics = network.get_metric("SUPPORTED_METRICS")
    assert isinstance(metrics, list)
    assert {"OPEN_SEQUENCES", "NETWORK_NAME", "EXECUTION_DEVICES"} <= set(metrics)
    assert network.config.get_parameter("STATES") == "total=next"
    assert network.config.get_parameter("SEQUENCE_IDLE_TIMEOUT") == 60.0
    assert [layer.op_type for layer in network.layers()] == ["Add", "Constant", "Mul"]
    assert network.notes == ()


def test_set_config_changes_the_bounds_and_the_devices_keys(held: Held) -> None:
    held.network.set_config({"EXECUTION_TIMEOUT": "5", "SEQUENCE_CAPACITY": "7"})
    assert held.network.config.get_parameter("EXECUTION_TIMEOUT") == 5.0
    assert held.inner.config.get_parameter("EXECUTION_TIMEOUT") == 5.0
    assert held.network.config.get_parameter("SEQUENCE_CAPACITY") == 7


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"STATES": "a=b", "EXECUTION_TIMEOUT": "5"}, InvalidArgument),
        ({"SEQUENCE_CAPACITY": "7", "EXECUTION_TIMEOUT": "-5"}, InvalidArgument),
        ({"SEQUENCE_CAPACITY": "7", "NO_SUCH": "5"}, NotFound),
    ],
)
def test_set_config_changes_all_or_nothing(
    held: Held, changes: dict[str, str], error: type[HeadraceError]
) -> None:
    before = held.network.config
    with pytest.raises(error):
        held.network.set_config(changes)
    assert held.network.config == before
    assert held.inner.config.get_parameter("EXECUTION_TIMEOUT") == 600.0


def test_sequences_are_counted(device: FakeDevice, memory: StateMemory) -> None:
    held = Held(device, memory, SEQUENCE_CAPACITY="3")

    def counted() -> dict[tuple[str, ...], object]:
        series = held.counters.series.snapshot()
        return {(each.family.name, *each.labels): each.value for each in series}

    held.run(start("a"))
    held.run(start("a"))
    held.run(start("b", end=True))
    held.run(start("c"))
    name = "network_sequences_"
    assert counted()[f"{name}open",] == 2
    assert counted()[f"{name}state_bytes",] == 2 * S_BYTES
    assert counted()[f"{name}started_total",] == 4
    ends = {key[1]: value for key, value in counted().items() if key[0] == f"{name}ended_total"}
    assert ends == {"ended": 1, "restarted": 1, "expired": 0, "unloaded": 0}
    held.network.close()
    assert counted()[f"{name}ended_total", "unloaded"] == 2
    assert (f"{name}open",) not in counted()


def test_a_network_in_front_of_another_is_one_network(held: Held) -> None:
    assert isinstance(held.network, SequenceNetwork)
    assert held.network.place is held.inner.place
