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

from headrace.runtime.errors import HeadraceError
from headrace.runtime.execution.execution_timeout import Patience
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.pipeline import Landed
from headrace.runtime.isolation.server.exchange import Exchange
from headrace.runtime.isolation.server.host import WorkerHost
from headrace.runtime.isolation.server.worker_network import WorkerNetwork
from headrace.runtime.isolation.wire.channel import Disconnected, Message

_JOB_BYTES: Final = 2**20
"""Inputs of more bytes are copied, and memory for more bytes of outputs is reserved, on a stream's
thread, because that might hold up the thread that submits the job."""
_COMPANY: Final = 7
_TOGETHER_SECONDS: Final = 2e-3
"""So long may a job wait for the others that it departed with."""
_SMOOTHING: Final = 1 / 8


class WorkerDeparture:
    """The `Departure` of one network. `_mean_seconds` needs no lock: only the thread that reads
    answers changes it.

    Args:
        is_brief: whether the network's messages are brief beside their arrays. Other ones are
            written and read on a stream's thread, because that might take long.
    """

    def __init__(
        self,
        host: WorkerHost,
        network: WorkerNetwork,
        patience: Patience | None = None,
        *,
        is_brief: bool = True,
    ) -> None:
        self.host = host
        self.network = network
        self.patience = patience
        self._is_brief = is_brief
        self._mean_seconds = 0.0  # of a run in the worker; 0 if not known

    def fits(self, job: Job) -> bool:
        """As `Departure.fits`. A job fits if its inputs are plain and not very large. A profile may
        be long."""
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

    def company(self) -> int:
        """As `Departure.company`."""
        mean, exchange = self._mean_seconds, self.network.loaded
        if not mean or exchange is None or exchange.expected > _JOB_BYTES:
            return 0  # it cannot depart
        return min(_COMPANY, int(_TOGETHER_SECONDS / mean))

    def depart(self, jobs: Sequence[Job], landed: Landed) -> bool:
        """As `Departure.depart`."""
        exchange = self.network.loaded
        if exchange is None or exchange.expected > _JOB_BYTES:
            return False
        worker = exchange.worker
        if worker.watched is None or worker.ended.is_set():
            return False
        journeys: list[_Journey] = []
        try:
            journeys.extend(_Journey(self, exchange, job, landed) for job in jobs)
            messages = [journey.request.data for journey in journeys]
            descriptors = [each for journey in journeys for each in journey.request.descriptors()]
            takes = [journey.take for journey in journeys]
            if worker.watched.ask(messages, takes, descriptors):
                return True
        except (HeadraceError, OSError, MemoryError):
            pass  # a stream's thread sends the job then, and fails it
        for journey in journeys:
            journey.stay()
        return False

    def took(self, seconds: float) -> None:
        """Records how long the worker took for a run."""
        mean = self._mean_seconds
        self._mean_seconds = mean + _SMOOTHING * (seconds - mean) if mean else seconds


class _Journey:
    """One job on its way to the worker and back, from when it is made.

    Attributes:
        request: in the worker's form.

    Raises:
        InvalidArgument, Internal, ResourceExhausted: as `Exchange.request`.
    """

    __slots__ = ("_cancel", "_departure", "_exchange", "_job", "_landed", "request")

    def __init__(
        self,
        departure: WorkerDeparture,
        exchange: Exchange,
        job: Job,
        landed: Landed,
    ) -> None:
        self.request = exchange.request(job)
        self._departure = departure
        self._exchange = exchange
        self._job = job
        self._landed = landed
        self._cancel = partial(exchange.worker.cancel, self.request.number)
        exchange.worker.under_way.append(departure.network.running)
        job.token.attach(self._cancel)

    def stay(self) -> None:
        """Undoes what making it did, because the request was not sent."""
        self._exchange.take_back(self.request)
        self._end()

    def _end(self) -> None:
        self._job.token.detach(self._cancel)
        self._exchange.worker.under_way.remove(self._departure.network.running)

    def take(self, reply: Message | None) -> None:
        """As `Take`."""
        job, worker = self._job, self._exchange.worker
        error: BaseException | None = None
        if reply is None:
            self.request.ended()
            lost, work = worker.broken(), self._departure.network.running
            error = self._departure.host.lost(work, worker.end, lost)
        else:
            try:
                seconds = self._exchange.receive(job, reply, self.request)
            except Disconnected:
                worker.kill("it sent an unknown message")
                raise
            except Exception as raised:  # noqa: BLE001 - whatever it is, it fails the job
                error = raised
            else:
                job.inferred = time.monotonic()
                seconds = min(seconds, job.inferred - job.queued)  # a worker may tell anything
                self._departure.took(seconds)
                job.prepared = job.inferred - seconds
                job.started = min(job.started, job.prepared)
        self._end()
        self._landed(error)
