"""Turns jobs into requests to a worker, and its answers into the jobs' outputs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from headrace.ipc.link import Disconnected, Message, packed
from headrace.ipc.segments import Segment
from headrace.runtime.execution.job import Job
from headrace.runtime.isolation.server.process import WorkerProcess
from headrace.runtime.isolation.wire.descriptions import profile_from_json
from headrace.runtime.isolation.wire.failures import error_from_json
from headrace.runtime.isolation.wire.forms import Forms, ValueReader, key_of
from headrace.runtime.isolation.wire.values import (
    GIVEN_IS_NEW,
    OFFERED_IS_NEW,
    REQUEST,
    AnswerFacts,
)

_NOTHING: Final = AnswerFacts(0.0, 0, 0)


class WorkerRequest:
    """A job in the worker's form.

    Attributes:
        number: for cancelling it, and for a segment that the worker may make for the outputs.
        data: the packed message.
        descriptors: of segments that the worker does not know, which go with the message.
        given: the shared memory that holds large inputs.
        offered: shared memory for the outputs.
        forgotten: numbers of segments that the message has the worker unmap.
    """

    __slots__ = ("data", "descriptors", "forgotten", "given", "job", "number", "offered")

    def __init__(self, number: int, job: Job) -> None:
        self.number = number
        self.job = job
        self.data = b""
        self.descriptors: list[int] = []
        self.given: Segment | None = None
        self.offered: Segment | None = None
        self.forgotten: Sequence[int] = ()

    def ended(self) -> None:
        """Closes the descriptors, because the worker has answered or ended."""
        if self.descriptors:
            for segment in (self.given, self.offered):
                if segment is not None:
                    segment.known()


@dataclass(slots=True)
class NetworkExchange:
    """Requests to one loaded network of one worker. Thread-safe: `expected` is a hint.

    Large inputs are copied into shared memory, where the worker reads them. Large outputs are views
    of shared memory, which is reused when the last view has gone. The worker stops using an input
    when it answers or ends, so a segment is lent for one exchange.

    Args:
        worker: the worker that has the network.
        number: the network's number in that worker.

    Attributes:
        expected: bytes of shared memory that the next answer will probably take: as many as the
            last one. An earlier, very large answer does not make all later ones reserve as much.
    """

    worker: WorkerProcess
    number: int
    expected: int = 0
    _forms: Forms = field(default_factory=Forms)

    def __call__(self, job: Job) -> None:
        """Runs the job and fills its outputs. Waits for the worker's answer.

        Raises:
            Unavailable: the worker ended.
            Any error that the worker raised.
        """
        worker, request = self.worker, self.request(job)
        cancel = partial(worker.cancel, request.number)
        try:
            with worker.lanes.lane() as lane:
                job.token.attach(cancel)
                try:
                    lane.send(request.data, request.descriptors)
                    reply = lane.receive()
                except Disconnected as error:
                    raise worker.broken() from error
                finally:
                    job.token.detach(cancel)
        except BaseException:
            request.ended()
            raise
        try:
            self.receive(reply, request)
        except Disconnected as error:
            worker.kill("it sent an unknown message")
            raise worker.broken() from error

    def request(self, job: Job) -> WorkerRequest:
        """Makes a request of a job, for which it copies large inputs into shared memory.

        Raises:
            InvalidArgument: as `encode`.
            TooLong: the message is too long.
            OSError: the system has no memory for it.
        """
        worker, inputs, names = self.worker, job.inputs, job.output_names
        pool, given, offered, new = worker.pool, None, None, 0
        request = WorkerRequest(next(worker.numbers), job)
        try:
            key = key_of(inputs, names, job.profile)
            writer = self._forms.known.get(key) if key is not None else None
            if writer is None:
                header = {"network": self.number, "outputs": names, "profile": job.profile}
                writer = self._forms.writer(key, inputs, "inputs", header)
            if writer.segment_bytes:
                given = request.given = pool.take(writer.segment_bytes)
                if given.descriptor is not None:
                    new = GIVEN_IS_NEW
                    request.descriptors.append(given.descriptor)
            if self.expected:
                offered = request.offered = pool.take(self.expected)
                if offered.descriptor is not None:
                    new |= OFFERED_IS_NEW
                    request.descriptors.append(offered.descriptor)
            facts = REQUEST.pack(
                request.number,
                0 if given is None else given.number,
                0 if offered is None else offered.number,
                job.priority,
                new,
            )
            memory = None if given is None else given.array
            request.data = writer.message(facts, inputs, memory, len(request.descriptors))
            forgotten = request.forgotten = pool.forgotten()
            if forgotten:
                request.data = packed({"forget": forgotten}) + request.data
        except BaseException:
            self.take_back(request)
            raise
        return request

    def take_back(self, request: WorkerRequest) -> None:
        """Takes back the memory of a request that was not sent, as if it had not been made."""
        pool = self.worker.pool
        pool.forget(request.forgotten)
        for segment in (request.given, request.offered):
            if segment is not None:
                pool.give(segment)

    def receive(self, reply: Message, request: WorkerRequest) -> float:
        """Fills the job's outputs from the answer.

        Returns:
            How many seconds the worker took for the run.

        Raises:
            Disconnected: the answer makes no sense.
            Any error that the worker raised.
        """
        pool, header, offered, job = self.worker.pool, reply.header, request.offered, request.job
        self.worker.useful = True
        request.ended()
        if request.given is not None:
            pool.give(request.given)
        failed = "error" in header
        facts, body = (_NOTHING, reply.body) if failed else AnswerFacts.take(reply.body)
        segment = offered if offered is not None and offered.number == facts.segment else None
        if offered is not None and segment is None:
            pool.give(offered)
        made = facts.segment != 0 and segment is None
        if len(reply.descriptors) != made or (made and facts.segment != request.number):
            for descriptor in reply.descriptors:
                os.close(descriptor)
            raise Disconnected("an answer names unknown shared memory")
        if made:
            segment = Segment.attach(request.number, reply.descriptors[0])
        if segment is not None:
            self.expected = min(max(facts.taken, 0), segment.size)
        elif not failed:
            self.expected = 0
        memory = pool.lend(segment) if segment is not None else None
        if failed:
            raise error_from_json(header["error"])
        job.outputs = ValueReader.within(header, "outputs").read(body, memory)
        if "layers" in header:
            job.layers = [profile_from_json(layer) for layer in header["layers"]]
        return max(0.0, facts.seconds)
