"""Runs a loaded network for the runtime itself: to try it out and to measure its time.

These runs count as parts and not as requests, so limits and counters of requests ignore them. The
loading thread waits for them. It belongs to no device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, Ticket
from headrace.runtime.network.values import Value

TICKET = Ticket("BATCH")


class _Together:
    """Jobs that were started together. Each job releases the semaphore `_left` when it ends."""

    def __init__(self, network: ExecutableNetwork, token: CancelToken) -> None:
        self._network = network
        self._token = token.child()
        self._left = threading.Semaphore(0)
        self.jobs: list[Job] = []

    def start(self, inputs: Mapping[str, Value]) -> None:
        names = tuple(port.name for port in self._network.outputs)
        job = Job(
            inputs,
            lambda _: self._left.release(),
            output_names=names,
            token=self._token,
            ticket=TICKET,
        )
        self.jobs.append(job)
        self._network.submit(job)

    def wait(self) -> None:
        for _ in self.jobs:
            self._left.acquire()
        self._token.close()
        for job in self.jobs:
            if job.error is not None:
                raise job.error


def run(
    network: ExecutableNetwork, inputs: Mapping[str, Value], token: CancelToken
) -> dict[str, Value]:
    """Runs the network once and returns its outputs. Raises what the run raises."""
    together = _Together(network, token)
    together.start(inputs)
    together.wait()
    return together.jobs[0].outputs


def seconds(
    network: ExecutableNetwork, requests: Sequence[Mapping[str, Value]], token: CancelToken
) -> float:
    """The time that the requests take if all are submitted at once. Raises what one of them
    raises."""
    together = _Together(network, token)
    start = time.perf_counter()
    for inputs in requests:
        together.start(inputs)
    together.wait()
    return time.perf_counter() - start
