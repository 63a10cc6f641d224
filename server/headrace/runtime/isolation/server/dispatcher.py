"""Sends requests to a worker without a thread that waits for the answer.

The thread that submits a request sends it, and the thread that reads all answers settles it. In a
server that thread is the event loop, so a request takes one wake-up of the worker and one of the
loop. While the streams are busy, requests to a quick network gather in the queue. Then several go
to the worker at once, and their answers come back at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from headrace.ipc.link import Disconnected, Message, TooLong
from headrace.runtime.errors import HeadraceError
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.stages import OnAnswer
from headrace.runtime.isolation.server.exchange import NetworkExchange, WorkerRequest
from headrace.runtime.isolation.server.host import WorkerHost
from headrace.runtime.isolation.server.worker_network import WorkerNetwork

_JOB_BYTES: Final = 2**20
"""Inputs of more bytes are copied, and memory for more bytes of outputs is reserved, on a stream's
thread, because that might hold up the thread that submits the job."""
_MOST_OTHERS: Final = 7
_TOGETHER_SECONDS: Final = 2e-3
"""So long may a job wait for the others that it was sent with."""
_SMOOTHING: Final = 1 / 8


class WorkerDispatcher:
    """The `Dispatcher` of one network. `_mean_seconds` needs no lock: only the thread that reads
    answers changes it.

    Args:
        is_brief: whether the network's messages are brief beside their arrays. Other ones are
            written and read on a stream's thread, because that might take long.
    """

    def __init__(
        self,
        host: WorkerHost,
        network: WorkerNetwork,
        *,
        is_brief: bool = True,
    ) -> None:
        self.host = host
        self.network = network
        self._is_brief = is_brief
        self._mean_seconds = 0.0  # of a run in the worker; 0 if not known

    def fits(self, job: Job) -> bool:
        """A job fits if its inputs are plain and not very large. A profile may be long."""
        if not self._is_brief:
            return False
        size = 0
        for value in job.inputs.values():
            if value is None:
                continue
            if not isinstance(value, np.ndarray) or value.dtype.kind in "OSU":
                return False
            size += value.nbytes
        return size <= _JOB_BYTES and not job.profile

    def most_others(self) -> int:
        mean, exchange = self._mean_seconds, self.network.loaded
        if not mean or exchange is None or exchange.expected > _JOB_BYTES:
            return 0  # it cannot be dispatched
        return min(_MOST_OTHERS, int(_TOGETHER_SECONDS / mean))

    def dispatch(self, jobs: Sequence[Job], on_answer: OnAnswer) -> bool:
        exchange = self.network.loaded
        if exchange is None or exchange.expected > _JOB_BYTES:
            return False
        worker, work = exchange.worker, self.network.running
        if worker.watched is None or worker.ended.is_set():
            return False
        cancels: list[tuple[WorkerRequest, partial[None]]] = []
        takes: list[partial[None]] = []
        data = b""
        descriptors: list[int] = []
        try:
            for job in jobs:
                request = exchange.request(job)
                cancel = partial(worker.cancel, request.number)
                cancels.append((request, cancel))
                worker.under_way.append(work)
                job.token.attach(cancel)
                takes.append(partial(self._take, exchange, request, cancel, on_answer))
                data = data + request.data if data else request.data
                descriptors += request.descriptors
            if worker.watched.ask(data, takes, descriptors):
                return True
        except (HeadraceError, OSError, MemoryError, TooLong):
            pass  # a stream's thread sends the job then, and fails it
        for request, cancel in cancels:
            exchange.take_back(request)
            request.job.token.detach(cancel)
            worker.under_way.remove(work)
        return False

    def _take(
        self,
        exchange: NetworkExchange,
        request: WorkerRequest,
        cancel: partial[None],
        on_answer: OnAnswer,
        reply: Message | None,
    ) -> None:
        job, worker, work = request.job, exchange.worker, self.network.running
        error: BaseException | None = None
        if reply is None:
            request.ended()
            lost = worker.broken()
            error = self.host.lost(work, worker.end, lost)
        else:
            try:
                seconds = exchange.receive(reply, request)
            except Disconnected:
                worker.kill("it sent an unknown message")
                raise
            except Exception as raised:  # noqa: BLE001 - whatever it is, it fails the job
                error = raised
            else:
                job.inferred = time.monotonic()
                # A worker may tell anything.
                seconds = min(seconds, job.inferred - job.queued)
                mean = self._mean_seconds
                self._mean_seconds = mean + _SMOOTHING * (seconds - mean) if mean else seconds
                job.prepared = job.inferred - seconds
                job.started = min(job.started, job.prepared)
        job.token.detach(cancel)
        worker.under_way.remove(work)
        on_answer(error)
