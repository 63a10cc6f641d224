"""A network that keeps replies: which requests run, and what becomes of those that wait for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.config.standard_keys import STANDARD_KEYS
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    RanTooLong,
)
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Value
from headrace.runtime.responses.keys import SCHEMA, split
from headrace.runtime.responses.memory import ResponseMemory
from headrace.runtime.responses.network import (
    INLINE_BYTES,
    CachingNetwork,
    load_with_responses,
)
from headrace.testing.case import network_of
from tests.support.fake_device import FakeDevice, Outcomes, fake_device
from tests.support.stateful import HeldNetwork, SumNetwork, stateful

LARGE_ROWS = INLINE_BYTES // 16 + 1
"""More rows than are looked up on the thread that submits them."""


def inputs_of(value: float, rows: int = 1) -> dict[str, Value]:
    return {name: np.full((rows, 2), value, np.float32) for name in ("x", "total")}


class HeldMemory(ResponseMemory):
    """Does what is left for later when the test says so."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.left: list[Callable[[], object]] = []

    def later(self, work: Callable[[], object]) -> None:
        self.left.append(work)

    def catch_up(self) -> None:
        left, self.left = self.left, []
        for work in left:
            work()


class Cached:
    """A network with a response cache, on a device that ends requests when it is told to."""

    def __init__(self, device: FakeDevice, memory: ResponseMemory, **config: str) -> None:
        self.inner = HeldNetwork()
        self.inner.open(device.place)
        own = SCHEMA.resolve({"RESPONSE_CACHE": "YES", **config})
        self.network = CachingNetwork(self.inner, own, memory)
        self.counters = NetworkCounters("net", "FAKE")
        self.network.count_as("net", self.counters)
        self.outcomes = Outcomes()

    def submit(self, value: float = 1.0, *, rows: int = 1, **conditions: Any) -> Job:
        job = self.outcomes.job(inputs_of(value, rows), **conditions)
        self.network.submit(job)
        return job

    @property
    def running(self) -> list[Job]:
        return self.inner.started

    def finish(self, job: Job) -> None:
        self.inner.finish(job)

    def count(self, what: str) -> float:
        name = f"network_response_cache_{what}"
        (found,) = (each for each in self.counters.snapshot() if each.family.name == name)
        assert isinstance(found.value, float | int)
        return found.value


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with fake_device() as device:
        yield device


@pytest.fixture
def memory() -> Iterator[HeldMemory]:
    memory = HeldMemory(2**30)
    yield memory
    memory.stop()


@pytest.fixture
def cached(device: FakeDevice, memory: HeldMemory) -> Cached:
    return Cached(device, memory)


def doubled(job: Job) -> float:
    assert job.error is None, job.error
    value = job.outputs["doubled"]
    assert isinstance(value, np.ndarray)
    return float(value[0, 0])


# -- what is the same --


def test_a_request_with_the_same_inputs_gets_the_kept_reply(cached: Cached) -> None:
    first = cached.submit(1)
    cached.finish(first)
    second = cached.submit(1)
    assert second.outcome is Outcome.COMPLETED
    assert cached.running == []
    assert doubled(second) == doubled(first) == 4.0
    assert list(second.outputs) == list(first.outputs) == ["doubled", "next"]
    assert second.started == 0.0


@pytest.mark.parametrize(
    "other",
    [{"value": 2}, {"rows": 2}, {"output_names": ("doubled",)}, {"owner": "eve"}],
    ids=lambda each: next(iter(each)),
)
def test_a_request_that_differs_runs(cached: Cached, other: dict[str, Any]) -> None:
    cached.finish(cached.submit(1))
    job = cached.submit(**other)
    assert cached.running == [job]


def test_wrong_inputs_are_refused_and_not_looked_up(cached: Cached) -> None:
    with pytest.raises(InvalidArgument, match="no input 'z'"):
        cached.network.submit(cached.outcomes.job({"z": np.zeros(1)}))


def test_a_kept_reply_cannot_be_changed(cached: Cached) -> None:
    first = cached.submit(1)
    cached.finish(first)
    changed = first.outputs["doubled"]
    assert isinstance(changed, np.ndarray)
    changed[:] = 7
    second = cached.submit(1)
    assert doubled(second) == 4.0
    kept = second.outputs["doubled"]
    assert isinstance(kept, np.ndarray)
    assert not kept.flags.writeable
    second.outputs.clear()
    assert doubled(cached.submit(1)) == 4.0


def test_a_failed_request_leaves_no_reply(cached: Cached) -> None:
    cached.inner.fail(cached.submit(1), FailedPrecondition("no"))
    assert cached.running == [cached.submit(1)]


def test_a_request_that_asks_for_performance_counts_runs(cached: Cached) -> None:
    cached.finish(cached.submit(1))
    job = cached.submit(1, profile=True)
    assert cached.running == [job]
    assert cached.count("skipped_total") == 1


# -- in flight --


def test_of_requests_in_flight_with_the_same_inputs_one_runs(cached: Cached) -> None:
    jobs = [cached.submit(1) for _ in range(3)]
    other = cached.submit(2)
    assert cached.running == [jobs[0], other]
    assert cached.outcomes.jobs == []
    cached.finish(jobs[0])
    assert [doubled(job) for job in jobs] == [4.0] * 3
    assert other.outcome is None
    assert sorted(map(id, cached.outcomes.jobs)) == sorted(map(id, jobs))


def test_if_the_first_is_cancelled_the_next_one_runs(cached: Cached) -> None:
    first, second, third = (cached.submit(1) for _ in range(3))
    first.token.cancel(Cancelled("left"))
    cached.inner.fail(first, Cancelled("left"))
    assert first.outcome is Outcome.CANCELLED
    assert cached.running == [second]
    assert second.outcome is third.outcome is None
    cached.finish(second)
    assert doubled(second) == doubled(third) == 4.0


def test_if_the_deadline_of_the_first_passes_the_next_one_runs(cached: Cached) -> None:
    first, second = cached.submit(1), cached.submit(1)
    first.token.cancel(DeadlineExceeded("late"))
    cached.inner.fail(first, DeadlineExceeded("late"))
    assert first.outcome is Outcome.EXPIRED
    cached.finish(second)
    assert doubled(second) == 4.0


def test_a_request_that_waits_ends_when_it_is_cancelled(cached: Cached) -> None:
    first, second, third = (cached.submit(1) for _ in range(3))
    second.token.cancel(Cancelled("left"))
    assert second.outcome is Outcome.CANCELLED
    third.token.cancel(DeadlineExceeded("late"))
    assert third.outcome is Outcome.EXPIRED
    cached.finish(first)
    assert doubled(first) == 4.0
    assert len(cached.outcomes.jobs) == 3


def test_if_all_leave_nothing_is_kept_and_the_next_one_runs(cached: Cached) -> None:
    first, second = cached.submit(1), cached.submit(1)
    for job in (second, first):
        job.token.cancel(Cancelled("left"))
    cached.inner.fail(first, Cancelled("left"))
    assert cached.running == [cached.submit(1)]


@pytest.mark.parametrize("cancelled", [False, True])
def test_if_the_first_fails_all_fail(cached: Cached, cancelled: bool) -> None:
    first, second = cached.submit(1), cached.submit(1)
    error: HeadraceError = FailedPrecondition("no")
    if cancelled:
        error = RanTooLong("no")
        first.token.cancel(error)
    cached.inner.fail(first, error)
    assert second.error is error
    assert cached.running == []


def test_a_more_urgent_request_does_not_wait_for_one_that_is_less_so(cached: Cached) -> None:
    slow = cached.submit(1, priority=0)
    waits = cached.submit(1, priority=0)
    urgent = cached.submit(1, priority=5)
    later = cached.submit(1, priority=3)
    assert cached.running == [slow, urgent]
    cached.finish(urgent)
    assert doubled(later) == 4.0
    assert waits.outcome is None
    cached.finish(slow)
    assert doubled(waits) == 4.0
    assert cached.submit(1).outcome is Outcome.COMPLETED


def test_a_request_whose_token_is_cancelled_already_ends(cached: Cached) -> None:
    first, second = cached.submit(1), cached.outcomes.job(inputs_of(1))
    second.token.cancel(Cancelled("left"))
    cached.network.submit(second)
    assert second.outcome is Outcome.CANCELLED
    cached.finish(first)


def test_a_long_row_of_requests_that_leave_needs_no_stack(device: FakeDevice) -> None:
    class LeavingNetwork(HeldNetwork):
        """Each request leaves as soon as it runs, but the first."""

        def _start(self, job: Job) -> None:
            self.started.append(job)
            if len(self.started) > 1:
                job.token.cancel(Cancelled("left"))
                job.fail(Cancelled("left"))

    memory = ResponseMemory(2**20)
    inner = LeavingNetwork()
    inner.open(device.place)
    network = CachingNetwork(inner, SCHEMA.resolve({"RESPONSE_CACHE": "YES"}), memory)
    outcomes = Outcomes()
    jobs = [outcomes.job(inputs_of(1)) for _ in range(1000)]
    for job in jobs:
        network.submit(job)
    jobs[0].token.cancel(Cancelled("left"))
    jobs[0].fail(Cancelled("left"))
    assert [job.outcome for job in jobs] == [Outcome.CANCELLED] * 1000
    memory.stop()


# -- large inputs --


def test_large_inputs_are_looked_up_on_another_thread(cached: Cached, memory: HeldMemory) -> None:
    first, second = (cached.submit(1, rows=LARGE_ROWS) for _ in range(2))
    assert cached.running == []
    memory.catch_up()
    assert cached.running == [first]
    cached.finish(first)
    assert doubled(second) == 4.0


def test_a_request_that_is_not_looked_up_yet_ends_when_it_is_cancelled(
    cached: Cached, memory: HeldMemory
) -> None:
    job = cached.submit(1, rows=LARGE_ROWS)
    job.token.cancel(Cancelled("left"))
    assert job.outcome is Outcome.CANCELLED
    memory.catch_up()
    assert cached.running == []


def test_a_large_reply_is_copied_on_another_thread_and_is_in_flight_until_then(
    cached: Cached, memory: HeldMemory
) -> None:
    rows = (1 << 20) // 16 + 1
    first, second = (cached.submit(1, rows=rows) for _ in range(2))
    memory.catch_up()
    cached.finish(first)
    assert first.outcome is Outcome.COMPLETED
    first.drop_values()
    third = cached.submit(1, rows=rows)
    assert (second.outcome, third.outcome) == (None, None)
    memory.catch_up()
    memory.catch_up()
    assert doubled(second) == doubled(third) == 4.0
    assert cached.running == []
    assert memory.taken > 1 << 20


def test_large_inputs_are_looked_up_by_threads_of_the_memory(device: FakeDevice) -> None:
    memory = ResponseMemory(2**30)
    inner = SumNetwork(device.executor)
    inner.open(device.place)
    network = CachingNetwork(inner, SCHEMA.resolve({"RESPONSE_CACHE": "YES"}), memory)
    outcomes = Outcomes()
    for count in (1, 2):
        network.submit(outcomes.job(inputs_of(1, LARGE_ROWS)))
        outcomes.wait(count)
    assert [doubled(job) for job in outcomes.jobs] == [4.0, 4.0]
    assert [job.started > 0 for job in outcomes.jobs] == [True, False]
    memory.stop()


def test_a_memory_without_threads_fails_the_request(device: FakeDevice) -> None:
    memory = ResponseMemory(2**20)
    memory.stop()
    assert Cached(device, memory).submit(1, rows=LARGE_ROWS).outcome is Outcome.FAILED


# -- bounds --


def test_a_reply_that_is_too_large_reaches_those_that_wait(
    device: FakeDevice, memory: HeldMemory
) -> None:
    cached = Cached(device, memory, RESPONSE_CACHE_BYTES="10")
    first, second = cached.submit(1), cached.submit(1)
    cached.finish(first)
    assert doubled(second) == 4.0
    assert cached.running == [cached.submit(1)]
    assert memory.taken == 0


def test_a_reply_that_cannot_be_copied_reaches_those_that_wait(
    cached: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(_: Value) -> Value:
        raise MemoryError

    monkeypatch.setattr("headrace.runtime.responses.network.kept", no_memory)
    first, second = cached.submit(1), cached.submit(1)
    cached.finish(first)
    assert doubled(second) == 4.0
    assert cached.running == [cached.submit(1)]


def test_the_bound_of_a_network_may_change(cached: Cached, memory: HeldMemory) -> None:
    cached.finish(cached.submit(1))
    assert cached.network.config.to_strings()["RESPONSE_CACHE"] == "YES"
    cached.network.set_config({"RESPONSE_CACHE_BYTES": "0"})
    assert memory.taken == 0
    assert cached.count("evicted_total") == 1
    assert cached.running == [cached.submit(1)]


def test_a_close_gives_the_bytes_back(cached: Cached, memory: HeldMemory) -> None:
    cached.finish(cached.submit(1))
    assert memory.taken > 0
    cached.network.close()
    assert memory.taken == 0
    assert cached.inner.closed == 1


def test_a_note_tells_that_the_server_keeps_less(device: FakeDevice) -> None:
    memory = ResponseMemory(1000)
    (note,) = Cached(device, memory).network.notes
    assert "1000 bytes (--max-response-cache-bytes)" in note
    assert Cached(device, memory, RESPONSE_CACHE_BYTES="1000").network.notes == ()
    memory.stop()


# -- what is counted --


def test_requests_are_counted_by_whether_they_ran(cached: Cached, memory: HeldMemory) -> None:
    first = cached.submit(1)
    cached.submit(1)
    cached.finish(first)
    cached.submit(1)
    metric = cached.network.get_metric
    assert (metric("RESPONSE_CACHE_HITS"), metric("RESPONSE_CACHE_MISSES")) == (2, 1)
    assert metric("RESPONSE_CACHE_USED_BYTES") == memory.taken > 0
    assert (cached.count("hits_total"), cached.count("misses_total")) == (2, 1)
    assert (cached.count("skipped_total"), cached.count("evicted_total")) == (0, 0)
    assert cached.count("bytes") == memory.taken


def test_statistics_tell_kept_replies_from_runs(cached: Cached) -> None:
    first = cached.submit(1)
    first.started = first.queued
    cached.finish(first)
    cached.submit(1)
    totals = cached.network.statistics.totals()
    assert totals.outcomes[Outcome.COMPLETED].count == totals.queue.count == 2
    assert (totals.kept.count, totals.not_kept.count) == (1, 1)
    assert totals.stages.inference.count == 1
    assert totals.runs[1].inference.count == 1
    assert totals.rows == 2


def test_a_kept_reply_counts_as_a_request_of_the_device(cached: Cached, device: FakeDevice) -> None:
    cached.finish(cached.submit(1))
    cached.submit(1)
    accepted = [
        each.value
        for each in device.counters.snapshot()
        if each.family.name == "device_accepted_total" and "request" in each.labels
    ]
    assert accepted == [2]
    assert device.admission.in_flight == 0


# -- loads --


class Loaded(ExecutableNetwork):
    """A network that does not run."""

    def __init__(self, network: Network) -> None:
        super().__init__(network, ConfigSchema(*STANDARD_KEYS).resolve())
        self.given: Mapping[str, str] = {}
        self.closed = 0

    def _close(self) -> None:
        self.closed += 1


def load(device: FakeDevice, text: str, config: dict[str, str]) -> tuple[ExecutableNetwork, Loaded]:
    loaded = Loaded(network_of(text))
    loaded.open(device.place)

    def loader(rest: dict[str, str]) -> Loaded:
        loaded.given = rest
        return loaded

    memory = ResponseMemory(1000)
    memory.stop()
    try:
        return load_with_responses(memory, config, loader), loaded
    except HeadraceError:
        assert loaded.closed == 1
        raise


PLAIN = "plain (float[2] x) => (float[2] y) { y = Relu(x) }"
DRAWS = "draws (float[2] x) => (float[2] y) { y = Bernoulli(x) }"


def test_a_network_without_the_key_is_loaded_as_it_is(device: FakeDevice) -> None:
    for config in ({}, {"RESPONSE_CACHE": "NO"}):
        network, loaded = load(device, PLAIN, {**config, "NUM_STREAMS": "2"})
        assert network is loaded
        assert loaded.given == {"NUM_STREAMS": "2"}


def test_a_device_does_not_see_the_keys(device: FakeDevice) -> None:
    network, loaded = load(device, PLAIN, {"RESPONSE_CACHE": "YES", "PERF_COUNT": "NO"})
    assert isinstance(network, CachingNetwork)
    assert network.behind is loaded
    assert loaded.given == {"PERF_COUNT": "NO"}


def test_a_network_that_draws_is_refused(device: FakeDevice) -> None:
    with pytest.raises(InvalidArgument, match=r"random numbers \(y\)") as raised:
        load(device, DRAWS, {"RESPONSE_CACHE": "YES"})
    assert raised.value.field is not None
    assert "RESPONSE_CACHE" in raised.value.field


def test_a_network_that_keeps_states_is_refused(device: FakeDevice) -> None:
    memory = ResponseMemory(1000)
    states = stateful(HeldNetwork(), device.place)
    with pytest.raises(InvalidArgument, match="keeps states"):
        load_with_responses(memory, {"RESPONSE_CACHE": "YES"}, lambda _: states)
    memory.stop()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"RESPONSE_CACHE_BYTES": "10"}, "give RESPONSE_CACHE=YES too"),
        ({"CPU.RESPONSE_CACHE": "YES"}, "belongs to the whole network, not to CPU"),
        ({"RESPONSE_CACHE": "perhaps"}, "RESPONSE_CACHE"),
        ({"RESPONSE_CACHE": "YES", "RESPONSE_CACHE_BYTES": "-1"}, "RESPONSE_CACHE_BYTES"),
    ],
)
def test_wrong_keys_are_refused(config: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        split(config)


# -- beside a network without a cache --


@given(st.data())
def test_whatever_comes_each_request_gets_the_reply_to_its_own_inputs(data: st.DataObject) -> None:
    with fake_device() as device:
        memory = HeldMemory(data.draw(st.sampled_from([0, 1500, 2**20])))
        cached = Cached(device, memory)
        alive: list[Job] = []
        told: dict[int, float] = {}
        for _ in range(data.draw(st.integers(1, 25))):
            action = data.draw(st.sampled_from(["submit", "submit", "finish", "leave", "fail"]))
            if action == "submit":
                value = data.draw(st.integers(0, 2))
                job = cached.submit(
                    value,
                    priority=data.draw(st.integers(0, 1)),
                    owner=data.draw(st.sampled_from(["", "eve"])),
                    output_names=data.draw(st.sampled_from([(), ("doubled",)])),
                )
                told[id(job)] = 4.0 * value
                alive.append(job)
            elif action == "leave" and alive:
                job = data.draw(st.sampled_from(alive))
                job.token.cancel(Cancelled("left"))
                if job in cached.running:
                    cached.inner.fail(job, Cancelled("left"))
                assert job.outcome is Outcome.CANCELLED
            elif cached.running:
                job = data.draw(st.sampled_from(cached.running))
                if action == "finish":
                    cached.finish(job)
                else:
                    cached.inner.fail(job, FailedPrecondition("no"))
            alive = [job for job in alive if job.outcome is None]
            same = [(job.owner, job.output_names, told[id(job)]) for job in cached.running]
            assert len(set(same)) * 2 >= len(same), "only a more urgent request runs beside another"
        while cached.running:
            cached.finish(cached.running[0])
        assert len(cached.outcomes.jobs) == len(set(map(id, cached.outcomes.jobs))) == len(told)
        for job in cached.outcomes.jobs:
            if job.outcome is Outcome.COMPLETED:
                assert doubled(job) == told[id(job)]
                assert set(job.outputs) == set(job.output_names)
        assert device.admission.in_flight == 0
        assert cached.network._flights == {}
        assert memory.taken <= memory.limit
        cached.network.close()
        assert memory.taken == 0
        memory.stop()
