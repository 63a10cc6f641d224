"""Keeps a device busy for a while, so that tests can observe its queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.fair_queue import Entry
from headrace.runtime.execution.stream import ExecutionStream, Task

PATIENCE_SECONDS = 60.0


class _Block:
    """A task that runs until the gate opens."""

    priority = 10

    def __init__(self, gate: threading.Event) -> None:
        self.entry: Entry[Task] | None = None
        self._gate = gate
        self.running = threading.Event()

    def run(self, stream: int) -> None:
        self.running.set()
        self._gate.wait()

    def dispatch(self, stream: ExecutionStream) -> bool:
        return False

    def fail(self, error: BaseException) -> None:
        raise error


@contextmanager
def occupied(network: ExecutableNetwork) -> Iterator[Callable[[], None]]:
    """Takes every stream of the network's device until the context ends, or the function that it
    yields is called. Skips the test on a device that has no streams of its own."""
    executor = network.executor
    if executor is None:
        pytest.skip("the device runs on the streams of others")
    gate = threading.Event()
    share = executor.share(executor.streams)
    try:
        for _ in range(executor.streams):
            block = _Block(gate)
            share.submit(block)
            assert block.running.wait(PATIENCE_SECONDS), "a stream is not free"
        yield gate.set
    finally:
        gate.set()


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Waits for something that the device does not report."""
    clock = threading.Event()
    for _ in range(int(PATIENCE_SECONDS * 1000)):
        if condition():
            return
        clock.wait(0.001)
    raise AssertionError(f"{what} did not happen within {PATIENCE_SECONDS:g} seconds")
