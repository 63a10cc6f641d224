"""The worker's end of a lane: no answer waits for the runs behind it."""

from __future__ import annotations

import threading
from queue import Queue
from typing import Any

import numpy as np

from headrace.runtime.execution.job import Job
from headrace.runtime.isolation.wire.channel import Message, packed
from headrace.runtime.isolation.wire.lane import Lane, lanes
from headrace.runtime.isolation.wire.shared_memory import SegmentTable
from headrace.runtime.isolation.wire.values import Numbers, encode
from headrace.runtime.isolation.worker.cancellations import Cancellations
from headrace.runtime.isolation.worker.lane import WorkerLane

_SECONDS = 60.0


class OneByOne:
    """A worker's device with one network. A run ends when its gate is open."""

    def __init__(self, gates: list[threading.Event]) -> None:
        self._gates = iter(gates)

    def network(self, _number: int) -> OneByOne:
        return self

    def submit(self, job: Job) -> None:
        assert next(self._gates).wait(_SECONDS)
        job.outputs = dict(job.inputs)
        job.complete()


def request(number: int) -> bytes:
    inputs = encode({"x": np.array([number], np.float32)})
    header = {
        "network": 1,
        "inputs": inputs.description,
        "outputs": ["x"],
        "new": [],
        "forget": [],
        "profile": False,
    }
    return packed(header, [Numbers(number, 0, 0, number, 0).pack(), *inputs.body], 0)


def test_an_answer_does_not_wait_for_a_long_run_that_came_with_it() -> None:
    gates = [threading.Event() for _ in range(3)]
    ours, theirs = lanes()
    device: Any = OneByOne(gates)
    lane = WorkerLane(Lane(theirs), device, SegmentTable(), Cancellations())
    serving = threading.Thread(target=lane.serve, daemon=True)
    serving.start()
    answers: Queue[Message] = Queue()

    def receive() -> None:
        for _ in gates:
            answers.put(ours.receive())

    threading.Thread(target=receive, daemon=True).start()
    for number in range(len(gates)):
        ours.gather(request(number))
    ours.flush()
    for gate in gates:
        assert answers.empty()
        gate.set()
        assert "outputs" in answers.get(timeout=_SECONDS).header
    ours.shutdown()
    serving.join(_SECONDS)
    assert not serving.is_alive()
    ours.close()
