"""Any interleaving of starts, requests, ends, cancels, errors and pauses, against a plain model."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.runtime.errors import Cancelled, FailedPrecondition, ResourceExhausted, Unavailable
from headrace.runtime.execution.job import Job, Outcome, Sequence
from headrace.runtime.sequences import network as sequences
from headrace.runtime.sequences.memory import StateMemory
from tests.support.fake_device import FakeDevice, Outcomes, fake_device
from tests.support.manual_clock import ManualClock
from tests.support.stateful import HeldNetwork, number, stateful

IDLE_SECONDS, CAPACITY, STEPS = 10.0, 4, 400
IDS = "abcdef"
STATE_BYTES = 8


@dataclass(eq=False)
class Line:
    """What the model knows of a sequence: its sum, its requests in order, the last one's end."""

    total: float = 0.0
    requests: list[Job] = field(default_factory=list)
    ending: Job | None = None
    idle_since: float = 0.0


class Model:
    """A network of sums that does one thing after the other, beside the real one."""

    def __init__(self, device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock(1000.0)
        monkeypatch.setattr(sequences, "time", SimpleNamespace(monotonic=self.clock))
        self.inner, self.memory, self.outcomes = HeldNetwork(), StateMemory(2**20), Outcomes()
        bounds = {"SEQUENCE_CAPACITY": str(CAPACITY), "SEQUENCE_IDLE_TIMEOUT": str(IDLE_SECONDS)}
        self.network = stateful(self.inner, device.place, bounds, self.memory)
        # Nothing expires but where the model says so: the timer's clock is another one.
        self.network._alarm.close()
        self.open: dict[str, Line] = {}
        self.lines: list[Line] = []
        self.values: dict[Job, float] = {}

    # -- what happens --

    def request(self, identifier: str, value: float, *, start: bool, end: bool) -> None:
        only_ends = end and not start and not value
        job = self.outcomes.job(
            {} if only_ends else number(value), sequence=Sequence(identifier, start, end)
        )
        self.values[job] = value
        line = self.open.get(identifier)
        refusal: type[Exception] | None = None
        if start:
            if line is None and len(self.open) == CAPACITY:
                refusal = ResourceExhausted
            else:
                line = self.open[identifier] = Line()
                self.lines.append(line)
        elif line is None or line.ending is not None:
            refusal = FailedPrecondition
        self.network.submit(job)
        if refusal is not None:
            assert isinstance(job.error, refusal)
            return
        assert line is not None
        line.requests.append(job)
        if end:
            line.ending = job
        if line.requests == [job]:
            self._begins(line)

    def finish(self, job: Job) -> None:
        line = self._line_of(job)
        self.inner.finish(job)
        line.total += self.values[job]
        assert job.outcome is Outcome.COMPLETED
        assert list(job.outputs) == ["doubled"]
        np.testing.assert_array_equal(job.outputs["doubled"], [[2 * line.total] * 2])
        self._ended(line, job)

    def fail(self, job: Job, error: Exception) -> None:
        line = self._line_of(job)
        self.inner.fail(job, error)
        assert job.error is error
        self._ended(line, job)

    def cancel_waiting(self, job: Job) -> None:
        line = self._line_of(job)
        job.token.cancel(Cancelled("enough"))
        assert job.outcome is Outcome.CANCELLED
        line.requests.remove(job)
        if line.ending is job:
            line.ending = None

    def expire(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.network._expire()
        for identifier, line in list(self.open.items()):
            if not line.requests and line.idle_since + IDLE_SECONDS <= self.clock.now:
                del self.open[identifier]

    # -- what must hold --

    def check(self) -> None:
        fronts = [line.requests[0] for line in self.lines if line.requests]
        assert set(self.inner.started) == set(fronts)
        assert self.network.get_metric("OPEN_SEQUENCES") == len(self.open)
        live = {*self.open.values(), *(line for line in self.lines if line.requests)}
        assert self.memory.taken == self.network._table.bytes == STATE_BYTES * len(live)

    @property
    def waiting(self) -> list[Job]:
        return [job for line in self.lines for job in line.requests[1:]]

    def _line_of(self, job: Job) -> Line:
        (line,) = (line for line in self.lines if job in line.requests)
        return line

    def _begins(self, line: Line) -> None:
        """The first request of a line has its turn: with the line's sum, or it only ends it."""
        job = line.requests[0]
        if job.inputs:
            assert job in self.inner.started
            np.testing.assert_array_equal(job.inputs["total"], [[line.total] * 2])
        else:
            assert job.outcome is Outcome.COMPLETED
            self._ended(line, job)

    def _ended(self, line: Line, job: Job) -> None:
        assert line.requests.pop(0) is job
        if line.ending is job:
            line.ending = None
            if job.outcome is Outcome.COMPLETED:
                self.open = {name: each for name, each in self.open.items() if each is not line}
        line.idle_since = self.clock.now
        if line.requests:
            self._begins(line)


@pytest.mark.parametrize("seed", range(20))
def test_any_interleaving_does_what_one_thing_after_the_other_would(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random(seed)
    with fake_device() as device:
        model = Model(device, monkeypatch)
        for _ in range(STEPS):
            what = choose.random()
            running = model.inner.started
            if what < 0.5:
                value = float(choose.randint(0, 100))
                start, end = choose.random() < 0.3, choose.random() < 0.15
                value = value if start or not end or choose.random() < 0.5 else 0.0
                model.request(choose.choice(IDS), value, start=start, end=end)
            elif what < 0.8 and running:
                model.finish(choose.choice(running))
            elif what < 0.87 and running:
                error = choose.choice([Unavailable("down"), Cancelled("enough")])
                model.fail(choose.choice(running), error)
            elif what < 0.95 and model.waiting:
                model.cancel_waiting(choose.choice(model.waiting))
            else:
                model.expire(choose.choice([1.0, IDLE_SECONDS / 2, IDLE_SECONDS]))
            model.check()
        while model.inner.started:
            model.finish(model.inner.started[0])
            model.check()
        model.network.close()
        assert model.memory.taken == 0
        assert device.admission.in_flight == 0
