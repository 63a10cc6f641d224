"""A network that sums what it is given, and a device that ends its runs when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.config.standard_keys import STANDARD_KEYS
from headrace.runtime.device.executable_network import ExecutableNetwork, Place
from headrace.runtime.execution.job import Job, Sequence
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Value
from headrace.runtime.sequences.keys import SCHEMA, STATES
from headrace.runtime.sequences.memory import StateMemory
from headrace.runtime.sequences.network import SequenceNetwork
from headrace.runtime.sequences.states import States
from headrace.testing.case import network_of, parse

SUM = parse(
    """sum (float[n,2] x, float[n,2] total) => (float[n,2] doubled, float[n,2] next) {
        next = Add(x, total)
        two = Constant<value_float = 2.0>()
        doubled = Mul(next, two)
    }"""
)
SUM_STATES = "total=next"

TALLY = parse(
    """tally (float[n,m] x, float[1] total) => (float[1] y, float[1] next) {
        all = ReduceSum<keepdims = 0>(x)
        one = Constant<value_ints = [1]>()
        row = Reshape(all, one)
        next = Add(total, row)
        y = Identity(next)
    }"""
)
"""Sums inputs of any size: y is the sum of all elements so far."""


def sum_network() -> Network:
    return network_of(SUM)


def number(value: float, rows: int = 1) -> dict[str, Value]:
    """The input that adds `value` to the sum."""
    return {"x": np.full((rows, 2), value, np.float32)}


def start(identifier: str = "s", *, end: bool = False) -> Sequence:
    return Sequence(identifier, start=True, end=end)


def more(identifier: str = "s", *, end: bool = False) -> Sequence:
    return Sequence(identifier, end=end)


class SumNetwork(ExecutableNetwork):
    """Sums on a device's streams; `before` is called in each run."""

    inline_safe = True

    def __init__(
        self, executor: StreamsExecutor, before: Callable[[], object] = lambda: None
    ) -> None:
        config = ConfigSchema(*STANDARD_KEYS).resolve()
        super().__init__(sum_network(), config, executor, streams=1024)
        self._before = before

    def _infer(self, job: Job) -> None:
        self._before()
        answer(job)


class HeldNetwork(ExecutableNetwork):
    """Starts jobs, and ends each when it is told to. Has no streams."""

    def __init__(self) -> None:
        super().__init__(sum_network(), ConfigSchema(*STANDARD_KEYS).resolve())
        self.started: list[Job] = []
        self.closed = 0

    def _start(self, job: Job) -> None:
        self.started.append(job)

    def _close(self) -> None:
        self.closed += 1

    def finish(self, job: Job) -> None:
        """Ends a job as the network would."""
        self.started.remove(job)
        answer(job)
        job.complete()

    def fail(self, job: Job, error: Exception) -> None:
        self.started.remove(job)
        job.fail(error)


def answer(job: Job) -> None:
    """Computes the network."""
    x, total = job.inputs["x"], job.inputs["total"]
    assert isinstance(x, np.ndarray)
    assert isinstance(total, np.ndarray)
    outputs = {"next": x + total, "doubled": (x + total) * np.float32(2)}
    job.outputs = {name: outputs[name] for name in job.output_names}


def stateful(
    inner: ExecutableNetwork,
    place: Place,
    config: Mapping[str, str] | None = None,
    memory: StateMemory | None = None,
    counters: NetworkCounters | None = None,
) -> SequenceNetwork:
    """A network called ``net`` that keeps states, before another one, which is opened."""
    inner.open(place)
    own = SCHEMA.resolve({"STATES": SUM_STATES, **(config or {})})
    states = States(own[STATES], inner.inputs, inner.outputs)
    network = SequenceNetwork(inner, own, states, memory or StateMemory(2**20))
    network.count_as("net", counters or NetworkCounters("net", place.device))
    return network
