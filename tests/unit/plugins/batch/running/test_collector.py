"""Requests on their way into batches and out of them: each has its outcome, whatever others do."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from headrace.plugins.batch.executable_network import BatchNetwork, Found
from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.config.standard_keys import STANDARD_KEYS
from headrace.runtime.errors import Cancelled, InvalidArgument, Unavailable
from headrace.runtime.execution.executor_manager import ExecutorManager
from headrace.runtime.execution.job import Job, LayerProfile, Outcome
from headrace.runtime.execution.trace import Span, Trace
from headrace.runtime.metrics import families
from headrace.runtime.metrics.histogram import HistogramSnapshot
from headrace.runtime.virtual.entries import told_of
from headrace.testing.counted import number
from headrace.testing.occupied import eventually
from tests.support.fake_device import FakeDevice, Outcomes, fake_device, identity_network
from tests.support.gate import Gate
from tests.support.interleaving import frequent_switches
from tests.support.patience import DEADLINES, PATIENCE_SECONDS

BAD = 666.0


class Bench:
    """A batched network on a device, with a gate in front of every run."""

    def __init__(
        self,
        device: FakeDevice,
        infer: Callable[[Job], object] | None = None,
        *,
        size: int = 4,
        slots: int = 1,
        timeout: int = 100_000,
        padded_to: int = 0,
        **config: str,
    ) -> None:
        self.device = device
        self.gate = Gate()
        self.runs: list[Job] = []
        self.rows: list[int] = []
        self._infer = infer
        inner = device.network(self._run, name="inner", streams=slots, config=config)
        settings = ConfigSchema(*STANDARD_KEYS).resolve({"AUTO_BATCH_TIMEOUT": str(timeout)})
        network, executors = identity_network(), ExecutorManager()
        found = Found(told_of(network), {}, [], padded_to, [])
        self.network = BatchNetwork(network, settings, inner, size, found, executors)
        self.network.open(device.place)
        self.network.count_as("net", device.counters.network("net", "BATCH:FAKE"))
        self.outcomes = Outcomes()

    def _run(self, job: Job) -> None:
        self.runs.append(job)
        self.rows.append(len(np.asarray(job.inputs["x"])))
        self.gate()
        x = np.asarray(job.inputs["x"])
        if (x == BAD).any():
            raise InvalidArgument("a value is bad")
        if self._infer is not None:
            self._infer(job)

    def submit(self, *values: float, **conditions: object) -> list[Job]:
        """A request of one row for each value."""
        jobs = []
        for value in values:
            job = self.outcomes.job({"x": np.full((1, 2), value, np.float32)}, **conditions)
            self.network.submit(job)
            jobs.append(job)
        return jobs

    def occupy(self) -> Job:
        """Has a request run, which the gate holds."""
        (job,) = self.submit(0.0)
        self.gate.await_arrivals()
        return job

    def hold_the_next(self) -> None:
        """Lets what runs end, and holds what runs then."""
        gate, self.gate = self.gate, Gate()
        gate.open()
        self.gate.await_arrivals()

    def batch_sizes(self) -> tuple[int, float]:
        """Runs counted, and their rows."""
        (found,) = (
            each.value
            for each in self.device.counters.snapshot()
            if each.family == families.NETWORK_BATCH_SIZE and each.labels[0] == "net"
        )
        assert isinstance(found, HistogramSnapshot)
        return found.count, found.sum


@contextmanager
def bench(streams: int = 1, **options: object) -> Iterator[Bench]:
    with fake_device(streams) as device:
        made = Bench(device, **options)  # type: ignore[arg-type]
        yield made
        made.gate.open()
        made.outcomes.wait(len(made.outcomes.jobs))
        made.network.close()


def value(job: Job) -> float:
    return float(np.asarray(job.outputs["y"])[0, 0])


def test_a_request_alone_runs_at_once_on_the_memory_that_it_brought() -> None:
    with bench() as b:
        b.gate.open()
        (job,) = b.submit(1.0)
        b.outcomes.wait()
        assert job.outputs["y"] is job.inputs["x"]
        assert b.rows == [1]


def test_what_comes_during_a_run_runs_together_and_each_gets_its_own() -> None:
    with bench() as b:
        b.occupy()
        jobs = b.submit(1.0, 2.0, 3.0)
        b.gate.open()
        b.outcomes.wait(4)
        assert b.rows == [1, 3]
        assert [value(job) for job in jobs] == [1.0, 2.0, 3.0]
        assert b.batch_sizes() == (2, 4.0)


def test_outputs_are_views_of_the_batch() -> None:
    with bench() as b:
        b.occupy()
        one, other = b.submit(1.0, 2.0)
        b.gate.open()
        b.outcomes.wait(3)
        assert np.asarray(one.outputs["y"]).base is np.asarray(other.outputs["y"]).base


def test_the_bench_counts_requests_once_and_batches_as_parts() -> None:
    with bench() as b:
        b.occupy()
        b.submit(1.0, 2.0, 3.0)
        b.gate.open()
        b.outcomes.wait(4)
        counted = b.device.counters.device("FAKE").snapshot()
        assert number(counted, families.DEVICE_REQUESTS, "FAKE", "request", "completed") == 4
        assert number(counted, families.DEVICE_REQUESTS, "FAKE", "part", "completed") == 2
        assert b.device.admission.in_flight == 0


def test_a_bad_value_fails_its_own_request_and_no_other() -> None:
    with bench() as b:
        b.occupy()
        good, bad, fine = b.submit(1.0, BAD, 3.0)
        b.gate.open()
        b.outcomes.wait(4)
        assert bad.outcome is Outcome.FAILED
        assert isinstance(bad.error, InvalidArgument)
        assert (value(good), value(fine)) == (1.0, 3.0)
        assert b.rows == [1, 3, 1, 1, 1]


def test_a_cancelled_request_that_waits_is_answered_while_the_device_is_busy() -> None:
    with bench() as b:
        b.occupy()
        stays, goes = b.submit(1.0, 2.0)
        goes.token.cancel(Cancelled("gone"))
        assert goes.outcome is Outcome.CANCELLED
        b.gate.open()
        b.outcomes.wait(3)
        assert b.rows == [1, 1]
        assert value(stays) == 1.0


def test_a_cancelled_member_of_a_running_batch_is_answered_and_the_batch_runs_on() -> None:
    with bench() as b:
        b.occupy()
        stays, goes = b.submit(1.0, 2.0)
        b.hold_the_next()
        goes.token.cancel(Cancelled("gone"))
        assert goes.outcome is Outcome.CANCELLED
        assert stays.outcome is None
        assert not b.runs[-1].token.cancelled
        b.gate.open()
        b.outcomes.wait(3)
        assert value(stays) == 1.0


def test_a_batch_that_everybody_has_left_is_cancelled() -> None:
    with bench() as b:
        b.occupy()
        jobs = b.submit(1.0, 2.0)
        b.hold_the_next()
        for job in jobs:
            job.token.cancel(Cancelled("gone"))
        assert b.runs[-1].token.cancelled
        b.gate.open()
        b.outcomes.wait(3)


def test_one_that_runs_alone_ends_with_its_run_whose_token_it_takes_along() -> None:
    with bench() as b:
        job = b.occupy()
        job.token.cancel(Cancelled("gone"))
        assert b.runs[-1].token.cancelled
        assert job.outcome is None
        b.gate.open()
        b.outcomes.wait()
        assert job.outcome is Outcome.CANCELLED


def test_a_deadline_in_a_running_batch_is_that_members_alone() -> None:
    with bench() as b:
        b.occupy()
        stays, late = b.submit(1.0), b.submit(2.0, deadline=time.monotonic() + 0.05)
        b.hold_the_next()
        outcomes = {job.outcome for job in b.outcomes.wait(2)}
        assert outcomes == {Outcome.COMPLETED, Outcome.EXPIRED}
        b.gate.open()
        b.outcomes.wait(3)
        assert stays[0].outcome is Outcome.COMPLETED
        assert late[0].outcome is Outcome.EXPIRED


def test_whoever_has_waited_for_the_timeout_is_handed_to_the_device() -> None:
    with bench(streams=2, slots=1, timeout=20) as b:
        b.occupy()
        b.submit(1.0)
        b.device.executor.set_limit(b.network.inner._share.flow, 2)  # type: ignore[union-attr]
        b.gate.await_arrivals(2)
        assert b.rows == [1, 1]
        b.gate.open()
        b.outcomes.wait(2)


def test_a_near_deadline_hands_it_to_the_device_long_before_the_timeout() -> None:
    with bench(streams=2, slots=1) as b:
        b.device.executor.set_limit(b.network.inner._share.flow, 2)  # type: ignore[union-attr]
        b.occupy()
        for seconds in DEADLINES:  # until it is handed over before its deadline
            (job,) = b.submit(1.0, deadline=time.monotonic() + seconds)
            eventually(lambda: job.outcome is not None or len(b.rows) == 2, "a hand-over")  # noqa: B023
            if job.outcome is None:
                break
        assert b.rows == [1, 1]


def test_the_timeout_can_change_while_requests_wait() -> None:
    with bench(streams=2, slots=1) as b:
        b.device.executor.set_limit(b.network.inner._share.flow, 2)  # type: ignore[union-attr]
        b.occupy()
        b.submit(1.0, 2.0)
        b.network.set_config({"AUTO_BATCH_TIMEOUT": "0"})
        b.gate.await_arrivals(2)
        assert b.rows == [1, 2]
        b.gate.open()
        b.outcomes.wait(3)


def test_rows_are_padded_where_the_device_wants_a_fixed_number() -> None:
    with bench(padded_to=4) as b:
        b.occupy()
        jobs = b.submit(1.0, 2.0, 3.0)
        b.gate.open()
        b.outcomes.wait(4)
        assert b.rows == [4, 4]
        assert [np.asarray(job.outputs["y"]).tolist() for job in jobs] == [
            [[1.0, 1.0]],
            [[2.0, 2.0]],
            [[3.0, 3.0]],
        ]
        assert b.batch_sizes() == (2, 4.0)


def test_a_run_that_takes_too_long_is_its_requests_fault_and_not_its_mates() -> None:
    ended = threading.Event()

    def slow(job: Job) -> None:
        if (np.asarray(job.inputs["x"]) == 9.0).any():
            job.token.attach(ended.set)
            assert ended.wait(PATIENCE_SECONDS)
            ended.clear()
            assert job.token.error is not None
            raise job.token.error

    with bench(infer=slow, EXECUTION_TIMEOUT="0.5") as b:
        b.gate.open()
        b.submit(0.0)
        b.outcomes.wait()
        b.gate = Gate()
        b.occupy()
        fine, endless = b.submit(1.0, 9.0)
        b.gate.open()
        b.outcomes.wait(4)
        assert endless.outcome is Outcome.EXPIRED
        assert fine.outcome is Outcome.COMPLETED


def test_priority_of_a_batch_is_that_of_its_first_member() -> None:
    with bench() as b:
        b.occupy()
        b.submit(1.0)
        b.submit(2.0, priority=7)
        b.gate.open()
        b.outcomes.wait(3)
        assert b.runs[-1].priority == 7


def test_whoever_asks_gets_the_profile_of_its_batch() -> None:
    def infer(job: Job) -> None:
        if job.profile:
            job.layers = [LayerProfile("copy", "Identity", "FAKE", "", 0.1, ("copy",))]

    with bench(infer=infer) as b:
        b.occupy()
        (plain,) = b.submit(1.0)
        (asks,) = b.submit(2.0, profile=True)
        b.gate.open()
        b.outcomes.wait(3)
        assert [layer.layer for layer in asks.layers] == ["copy"]
        assert plain.layers == []


def test_an_output_that_cannot_be_parted_is_tried_once_more_alone() -> None:
    def infer(job: Job) -> None:
        x = np.asarray(job.inputs["x"])
        job.inputs = {"x": x[:1]}  # what the fake device gives back

    with bench(infer=infer) as b:
        b.occupy()
        one, other = b.submit(1.0, 2.0)
        b.gate.open()
        b.outcomes.wait(3)
        assert (value(one), value(other)) == (1.0, 2.0)


def test_everybody_is_told_when_the_device_is_gone_however_many_wait() -> None:
    with fake_device() as device:
        b = Bench(device)
        b.occupy()
        b.submit(*range(1, 900))
        device.executor.stop(0.0)  # while all of them wait
        b.gate.open()
        device.executor.stop(PATIENCE_SECONDS)
        jobs = b.outcomes.wait(900)
        gone = [job for job in jobs if job.outcome is Outcome.FAILED]
        assert gone
        assert all(isinstance(job.error, Unavailable) for job in gone)
        b.network.close()


def test_a_request_that_was_cancelled_before_it_came_is_answered() -> None:
    with bench() as b:
        b.gate.open()
        job = b.outcomes.job()
        job.token.cancel(Cancelled("gone"))
        b.network.submit(job)
        b.outcomes.wait()
        assert job.outcome is Outcome.CANCELLED


@pytest.mark.parametrize("seed", range(6))
def test_under_a_storm_every_request_has_one_outcome_and_the_right_result(seed: int) -> None:
    chance = random.Random(seed)
    with frequent_switches(), bench(streams=2, slots=2, timeout=1) as b:
        b.gate.open()
        sent: list[tuple[float, Job]] = []
        answers: list[Job] = []

        def send(values: list[float]) -> None:
            for each in values:
                job = Job(
                    {"x": np.full((chance.choice((1, 1, 2)), 2), each, np.float32)},
                    answers.append,
                    deadline=time.monotonic() + chance.choice((10.0, 10.0, 0.003)),
                )
                sent.append((each, job))
                b.network.submit(job)
                if chance.random() < 0.2:
                    job.token.cancel(Cancelled("gone"))

        values = [BAD if chance.random() < 0.05 else float(i) for i in range(120)]
        threads = [threading.Thread(target=send, args=(values[i::3],)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        (last,) = b.submit(5.0)
        b.outcomes.wait()
        assert last.outcome is Outcome.COMPLETED
        end = time.monotonic() + PATIENCE_SECONDS
        while len(answers) < len(sent) and time.monotonic() < end:
            ended = len(b.outcomes.jobs)  # taken before, for the next one may end at once
            b.submit(5.0)
            b.outcomes.wait(ended + 1)
        assert len(answers) == len(set(map(id, answers))) == len(sent)
        for each, job in sent:
            if job.outcome is Outcome.COMPLETED:
                assert (np.asarray(job.outputs["y"]) == each).all()
                assert each != BAD
            elif job.outcome is Outcome.FAILED:
                assert each == BAD
        assert b.device.admission.in_flight == 0


# ---- traces ----


def test_a_batch_is_one_span_and_links_lead_from_it_to_its_members_and_back() -> None:
    ended: list[Span] = []
    requests = [Span(Trace(number, ended.extend), f"r{number}", 0, 1.0) for number in (1, 2)]
    with bench() as b:
        b.occupy()
        b.submit(1.0, span=requests[0])
        b.submit(2.0)  # not traced
        b.submit(3.0, span=requests[1])
        b.gate.open()
        b.outcomes.wait(4)
    for request in requests:
        request.finish(9e9)
        request.trace.end()
    (batch,) = (span for span in ended if span.name == "batch FAKE")
    assert (batch.trace, batch.parent) == (requests[0].trace, requests[0].id)
    assert batch.links == requests
    assert [request.links for request in requests] == [[batch], [batch]]
    assert batch.facts["headrace.batch_size"] == 3
    assert batch.facts["headrace.batch_requests"] == 3
    waits = [(span.trace, span.parent) for span in ended if span.name == "queue BATCH"]
    assert waits == [(request.trace, request.id) for request in requests]
    parts = {span.name for span in ended if span.parent == batch.id}
    assert parts == {"queue FAKE", "execute FAKE"}


def test_a_batch_that_ends_after_its_first_member_has_left_is_traced_too() -> None:
    ended: list[Span] = []
    request = Span(Trace(1, ended.extend), "r1", 0, 1.0)
    with bench() as b:
        b.occupy()
        (leaver,) = b.submit(1.0, span=request)
        b.submit(2.0)
        b.hold_the_next()
        leaver.token.cancel(Cancelled("the caller left"))
        b.outcomes.wait(2)
        assert leaver.outcome is Outcome.CANCELLED
        request.finish(9e9)
        request.trace.end()
        assert "batch FAKE" not in {span.name for span in ended}
        b.gate.open()
        b.outcomes.wait(3)
    assert "batch FAKE" in {span.name for span in ended}
