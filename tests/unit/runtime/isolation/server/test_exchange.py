"""An answer is read as it should be, or it makes no sense."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.runtime.execution.job import Job
from headrace.runtime.isolation.server.exchange import Exchange
from headrace.runtime.isolation.wire.channel import Disconnected, Message
from headrace.runtime.isolation.wire.shared_memory import SegmentPool


@pytest.mark.parametrize(
    "header",
    [{"outputs": {}}, {"error": {}}, {"outputs": {}, "segment": 7, "taken": 1}],
    ids=["outputs", "error", "another segment"],
)
def test_descriptors_that_no_answer_has_are_closed(header: dict[str, Any]) -> None:
    worker: Any = SimpleNamespace(pool=SegmentPool())
    read, write = os.pipe()
    os.set_blocking(read, False)
    try:
        reply = Message(header, memoryview(bytes(16)), (write,))
        with pytest.raises(Disconnected):
            Exchange(worker, 1).receive(Job({}, lambda _: None), reply, None, 8)
        assert os.read(read, 1) == b""  # nobody can write any more
    finally:
        os.close(read)
