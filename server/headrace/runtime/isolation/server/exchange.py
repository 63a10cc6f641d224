"""Sends a request to a worker and receives its answer, on the thread that runs the request."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.runtime.execution.job import Job
from headrace.runtime.isolation.server.process import WorkerProcess
from headrace.runtime.isolation.wire.channel import Disconnected, Message, expect
from headrace.runtime.isolation.wire.descriptions import profile_from_json
from headrace.runtime.isolation.wire.failures import error_from_json
from headrace.runtime.isolation.wire.shared_memory import Segment
from headrace.runtime.isolation.wire.values import Numbers, decode, encode


@dataclass(slots=True)
class Exchange:
    """Requests to one loaded network of one worker. Thread-safe: `_expected` is a hint.

    Large inputs are copied into shared memory, where the worker reads them. Large outputs are views
    of shared memory, which is reused when the last view has gone. The worker stops using an input
    when it answers or ends, so a segment is lent for one exchange.

    Args:
        worker: the worker that has the network.
        number: the network's number in that worker.

    Attributes:
        _expected: bytes of shared memory that the last answer took. Only the last answer counts,
            so one very large answer does not make all later ones reserve as much.
    """

    worker: WorkerProcess
    number: int
    _expected: int = 0

    def __call__(self, job: Job) -> None:
        """Runs the job and fills its outputs.

        Raises:
            Unavailable: the worker ended.
            Any error that the worker raised.
        """
        worker = self.worker
        pool = worker.pool
        encoded = encode(job.inputs)
        given = pool.take(encoded.segment_bytes) if encoded.segment_bytes else None
        offered: Segment | None = None
        try:
            offered = pool.take(self._expected) if self._expected else None
            if given is not None:
                encoded.place(given.array)
            new = [each for each in (given, offered) if each is not None and each.descriptor]
            request, spare = worker.number(), pool.number()
            header = {
                "network": self.number,
                "inputs": encoded.description,
                "outputs": job.output_names,
                "new": [each.number for each in new],
                "forget": pool.forgotten(),
                "profile": job.profile,
                "trace": job.trace,
            }
            numbers = Numbers(
                request,
                given.number if given is not None else 0,
                offered.number if offered is not None else 0,
                spare,
                job.priority,
                job.deadline if job.deadline is not None else math.inf,
            )
            descriptors = [each.descriptor for each in new if each.descriptor is not None]
            body = [numbers.pack(), *encoded.body]
            reply = self._send(job, request, header, body, descriptors)
        except BaseException:
            for each in (given, offered):
                if each is not None:
                    each.known()
            raise
        worker.useful = True
        for each in (given, offered):
            if each is not None:
                each.known()
        if given is not None:
            pool.give(given)
        try:
            self._receive(job, reply, offered, spare)
        except Disconnected as error:
            worker.kill("it sent an unknown message")
            raise worker.broken() from error

    def _send(
        self,
        job: Job,
        request: int,
        header: Mapping[str, Any],
        body: list[bytes],
        descriptors: list[int],
    ) -> Message:
        cancel = partial(self.worker.cancel, request)
        with self.worker.lane() as lane:
            job.token.attach(cancel)
            try:
                lane.send(dict(header), body, descriptors)
                return lane.receive()
            except Disconnected as error:
                raise self.worker.broken() from error
            finally:
                job.token.detach(cancel)

    def _receive(self, job: Job, reply: Message, offered: Segment | None, spare: int) -> None:
        pool, header = self.worker.pool, reply.header
        used = header.get("segment")
        segment = offered if offered is not None and offered.number == used else None
        if offered is not None and segment is None:
            pool.give(offered)
        if used is not None and segment is None:
            if used != spare or len(reply.descriptors) != 1:
                for descriptor in reply.descriptors:
                    os.close(descriptor)
                raise Disconnected("an answer names unknown shared memory")
            segment = Segment.attach(spare, reply.descriptors[0])
        if segment is not None:
            self._expected = min(max(expect(header, "taken", int), 0), segment.size)
        elif "error" not in header:
            self._expected = 0
        memory = pool.lend(segment) if segment is not None else None
        if "error" in header:
            raise error_from_json(header["error"])
        outputs = header.get("outputs")
        if not isinstance(outputs, dict):
            raise Disconnected("an answer has no outputs")
        job.outputs = decode(outputs, reply.body, memory, writable=True)
        job.layers = [profile_from_json(each) for each in header.get("layers", ())]
