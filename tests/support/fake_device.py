"""A device of nothing but a function, a network of one layer, and their collected outcomes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.config.standard_keys import STANDARD_KEYS
from headrace.runtime.device.executable_network import ExecutableNetwork, Place
from headrace.runtime.execution.admission import Admission
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.execution.timer import Timer
from headrace.runtime.metrics.counters import Counters
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Array, Value
from tests.support.patience import PATIENCE_SECONDS


def identity_network() -> Network:
    """``y = Identity(x)``, float32[n, 2]."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", 2]))
    node = ir.node("Identity", [x], name="copy")
    (y,) = node.outputs
    y.name, y.type, y.shape = "y", x.type, x.shape
    graph = ir.Graph([x], [y], nodes=[node], opset_imports={"": 20}, name="identity")
    return Network(ir.Model(graph, ir_version=10))


def rows(count: int = 1) -> Array:
    return np.zeros((count, 2), np.float32)


class FakeNetwork(ExecutableNetwork):
    """Runs `infer` on the device's streams; by default the output is the input."""

    inline_safe = True

    def __init__(
        self,
        executor: StreamsExecutor,
        infer: Callable[[Job], object] | None = None,
        *,
        streams: int = 1024,
        config: dict[str, str] | None = None,
    ) -> None:
        schema = ConfigSchema(*STANDARD_KEYS)
        super().__init__(
            identity_network(), schema.resolve(config or {}), executor, streams=streams
        )
        self._compute = infer
        self.closed = 0

    def _infer(self, job: Job) -> None:
        if self._compute is not None:
            self._compute(job)
        job.outputs["y"] = job.inputs["x"]

    def _close(self) -> None:
        self.closed += 1


class FakeDevice:
    """Streams, a timer, an admission and counters, and the networks made on them."""

    def __init__(self, streams: int = 1, capacity: int = 1024) -> None:
        self.executor = StreamsExecutor("FAKE", streams)
        self.timer = Timer()
        self.counters = Counters()
        self.admission = Admission("FAKE", capacity, lambda: self.executor.streams)
        self.place = Place("FAKE", self.admission, self.counters.device("FAKE"), self.timer)

    def network(
        self,
        infer: Callable[[Job], object] | None = None,
        *,
        name: str = "net",
        streams: int = 1024,
        config: dict[str, str] | None = None,
    ) -> FakeNetwork:
        network = FakeNetwork(self.executor, infer, streams=streams, config=config)
        network.open(self.place)
        network.count_as(name, self.counters.network(name, "FAKE"))
        return network

    def stop(self) -> None:
        self.executor.stop(PATIENCE_SECONDS)
        self.timer.stop()


@contextmanager
def fake_device(streams: int = 1, capacity: int = 1024) -> Iterator[FakeDevice]:
    device = FakeDevice(streams, capacity)
    try:
        yield device
    finally:
        device.stop()


class Outcomes:
    """Makes jobs and collects what became of them. Thread-safe; `_changed` guards the list."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.jobs: list[Job] = []

    def job(self, inputs: dict[str, Value] | None = None, **conditions: Any) -> Job:
        return Job({"x": rows()} if inputs is None else inputs, self._done, **conditions)

    def _done(self, job: Job) -> None:
        with self._changed:
            self.jobs.append(job)
            self._changed.notify_all()

    def wait(self, count: int = 1) -> list[Job]:
        """The first `count` jobs that ended, in that order."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.jobs) >= count, PATIENCE_SECONDS), (
                f"{len(self.jobs)} of {count} jobs have an outcome"
            )
            return list(self.jobs)

    def count(self) -> Counter[Outcome | None]:
        with self._changed:
            return Counter(job.outcome for job in self.jobs)
