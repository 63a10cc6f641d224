"""An answer is read as it should be, or it makes no sense."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.ipc.link import Disconnected, Message
from headrace.ipc.pool import SegmentPool
from headrace.ipc.segments import Segment
from headrace.runtime.execution.job import Job
from headrace.runtime.isolation.server.exchange import NetworkExchange, WorkerRequest
from headrace.runtime.isolation.wire.values import ANSWER


@pytest.mark.parametrize(
    ("header", "segment"),
    [({"outputs": {}}, 0), ({"error": {}}, 0), ({"outputs": {}}, 7)],
    ids=["outputs", "error", "another segment"],
)
def test_descriptors_that_no_answer_has_are_closed(header: dict[str, Any], segment: int) -> None:
    worker: Any = SimpleNamespace(pool=SegmentPool(itertools.count(1)))
    read, write = os.pipe()
    os.set_blocking(read, False)
    try:
        reply = Message(header, memoryview(ANSWER.pack(0.0, segment, 1)), (write,))
        with pytest.raises(Disconnected):
            NetworkExchange(worker, 1).receive(reply, WorkerRequest(8, Job({}, lambda _: None)))
        assert os.read(read, 1) == b""  # nobody can write any more
    finally:
        os.close(read)


def test_an_answer_without_its_facts_makes_no_sense() -> None:
    worker: Any = SimpleNamespace(pool=SegmentPool(itertools.count(1)))
    reply = Message({"outputs": {}}, memoryview(bytes(8)), ())
    with pytest.raises(Disconnected, match="no facts"):
        NetworkExchange(worker, 1).receive(reply, WorkerRequest(8, Job({}, lambda _: None)))


def test_a_request_that_is_taken_back_leaves_nothing_behind() -> None:
    numbers = itertools.count(1)
    pool = SegmentPool(numbers)
    worker: Any = SimpleNamespace(pool=pool, numbers=numbers)
    exchange = NetworkExchange(worker, 1, expected=200_000)
    job = Job({"x": np.ones(100_000, np.float32)}, lambda _: None, output_names=("y",))
    pool.forget([70, 71])
    first = exchange.request(job)
    assert len(first.descriptors) == 2
    assert pool.forgotten() == []
    assert pool.idle() == 0
    exchange.take_back(first)
    assert pool.idle() == sum(each.size for each in (first.given, first.offered) if each)
    second = exchange.request(job)
    assert second.descriptors == first.descriptors  # the worker still has to get them
    assert second.forgotten == [70, 71]
    exchange.take_back(second)
    pool.close()
    for each in first.descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(each)
    assert isinstance(first.given, Segment)
