"""The worker's end of a lane: when answers go, and where they lie."""

from __future__ import annotations

import itertools
import threading
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np

from headrace.ipc.link import Link, Message, links, packed
from headrace.ipc.pool import SegmentPool
from headrace.ipc.segments import SegmentTable
from headrace.runtime.execution.job import Job
from headrace.runtime.isolation.server.exchange import NetworkExchange
from headrace.runtime.isolation.server.lanes import Lanes
from headrace.runtime.isolation.wire.values import REQUEST, encode
from headrace.runtime.isolation.worker.cancellations import Cancellations
from headrace.runtime.isolation.worker.lane import WorkerLane
from tests.support.patience import PATIENCE_SECONDS


class OneByOne:
    """A worker's device with one network. A run ends when its gate is open."""

    def __init__(self, gates: list[threading.Event]) -> None:
        self._gates = iter(gates)

    def network(self, _number: int) -> OneByOne:
        return self

    def submit(self, job: Job) -> None:
        assert next(self._gates).wait(PATIENCE_SECONDS)
        job.outputs = dict(job.inputs)
        job.complete()


def request(number: int) -> bytes:
    inputs = encode({"x": np.array([number], np.float32)})
    header = {
        "network": 1,
        "inputs": inputs.description,
        "outputs": ["x"],
        "profile": False,
    }
    return packed(header, [REQUEST.pack(number, 0, 0, 0, 0), *inputs.body])


def test_an_answer_does_not_wait_for_a_long_run_that_came_with_it() -> None:
    gates = [threading.Event() for _ in range(3)]
    ours, theirs = links()
    device: Any = OneByOne(gates)
    lane = WorkerLane(Link(theirs), device, SegmentTable(), Cancellations())
    serving = threading.Thread(target=lane.serve, daemon=True)
    serving.start()
    answers: Queue[Message] = Queue()

    def receive() -> None:
        for _ in gates:
            answers.put(ours.receive())

    threading.Thread(target=receive, daemon=True).start()
    for number in range(len(gates)):
        ours.gather(request(number))
    ours.send()
    for gate in gates:
        assert answers.empty()
        gate.set()
        assert "outputs" in answers.get(timeout=PATIENCE_SECONDS).header
    ours.shutdown()
    serving.join(PATIENCE_SECONDS)
    assert not serving.is_alive()
    ours.close()


class IntoRoom:
    """A worker's device with one network, which answers with its inputs and one more. It computes
    into as much of its room as has the right shape, and counts how often."""

    def __init__(self) -> None:
        self.used = 0

    def network(self, _number: int) -> IntoRoom:
        return self

    def submit(self, job: Job) -> None:
        for name, value in job.inputs.items():
            assert isinstance(value, np.ndarray)
            room = (job.room or {}).get(name)
            if room is None or room.shape != value.shape or room.dtype != value.dtype:
                room = np.empty(value.shape, value.dtype)
            else:
                self.used += 1
            np.add(value, np.ones((), value.dtype), out=room)
            job.outputs[name] = room
        job.complete()


def exchange_with(device: Any) -> tuple[NetworkExchange, Lanes]:
    segments = SegmentTable()

    def connect() -> Link:
        ours, theirs = links()
        lane = WorkerLane(Link(theirs), device, segments, Cancellations())
        threading.Thread(target=lane.serve, daemon=True).start()
        return ours

    numbers, connections = itertools.count(1), Lanes(connect)
    worker: Any = SimpleNamespace(
        pool=SegmentPool(numbers),
        numbers=numbers,
        lanes=connections,
        cancel=lambda _: None,
        useful=False,
    )
    return NetworkExchange(worker, 1), connections


def test_a_device_may_compute_where_the_answer_goes() -> None:
    """Also if the answer has another form than the one before, and its places overlap."""
    device = IntoRoom()
    exchange, connections = exchange_with(device)
    random = np.random.default_rng(7)
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
    sizes = random.choice([3, 20_000, 30_000, 70_000], (40, 3)).tolist()
    for x, y, z in [*[(20_000, 30_000, 70_000)] * 5, *sizes]:
        inputs: dict[str, Any] = {
            "x": random.integers(0, 99, x).astype(np.float32),
            "y": random.integers(0, 99, y).astype(np.uint8),
            "z": random.integers(0, 99, (z, 1)).astype(np.int16),
        }
        job = Job(inputs, lambda _: None, output_names=("x", "y", "z"))
        exchange(job)
        kept = [*kept[-3:], (inputs, dict(job.outputs))]
        for given, outputs in kept:
            for name, value in given.items():
                np.testing.assert_array_equal(outputs[name], value + np.ones((), value.dtype))
    assert device.used > 20
    connections.close()
