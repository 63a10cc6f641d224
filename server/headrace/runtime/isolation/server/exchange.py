"""Sends a request to a worker and receives its answer, on the thread that runs the request."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from headrace.runtime.execution.job import Job
from headrace.runtime.isolation.server.process import WorkerProcess
from headrace.runtime.isolation.wire.channel import Disconnected, Message, close_all
from headrace.runtime.isolation.wire.descriptions import profile_from_json
from headrace.runtime.isolation.wire.failures import error_from_json
from headrace.runtime.isolation.wire.forms import Form, Forms, key_of
from headrace.runtime.isolation.wire.shared_memory import Segment
from headrace.runtime.isolation.wire.values import GIVEN_IS_NEW, OFFERED_IS_NEW, Asked, Told

_NOTHING: Final = Told(0.0, 0, 0)


@dataclass(slots=True)
class Request:
    """A request in the worker's form.

    Attributes:
        number: for cancelling it.
        spare: the number of a segment that the worker may make for the outputs.
        data: the packed message.
        given: the shared memory that holds large inputs.
        offered: shared memory for the outputs.
        forgotten: numbers of segments that the message has the worker unmap.
    """

    number: int
    spare: int
    data: bytes = b""
    given: Segment | None = None
    offered: Segment | None = None
    forgotten: list[int] = field(default_factory=list)

    def descriptors(self) -> list[int]:
        """The descriptors to send, which are those of segments that the worker does not know."""
        segments = (each for each in (self.given, self.offered) if each is not None)
        return [each.descriptor for each in segments if each.descriptor is not None]

    def ended(self) -> None:
        """Closes the descriptors, because the worker has answered or ended."""
        for each in (self.given, self.offered):
            if each is not None:
                each.known()


@dataclass(slots=True)
class Exchange:
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
        """Runs the job and fills its outputs.

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
                    lane.gather(request.data)
                    lane.flush(request.descriptors())
                    reply = lane.receive()
                except Disconnected as error:
                    raise worker.broken() from error
                finally:
                    job.token.detach(cancel)
        except BaseException:
            request.ended()
            raise
        try:
            self.receive(job, reply, request)
        except Disconnected as error:
            worker.kill("it sent an unknown message")
            raise worker.broken() from error

    def request(self, job: Job) -> Request:
        """Makes a request of a job, for which it copies large inputs into shared memory.

        Raises:
            InvalidArgument: as `encode`.
            Internal: the message is too large.
            ResourceExhausted: the system has no memory for it.
        """
        pool = self.worker.pool
        request = Request(self.worker.number(), pool.number())
        try:
            if self.expected:
                request.offered = pool.take(self.expected)
            self._write(request, job)
        except BaseException:
            self.take_back(request)
            raise
        return request

    def take_back(self, request: Request) -> None:
        """Takes back the memory of a request that was not sent, as if it had not been made."""
        pool = self.worker.pool
        pool.forget(request.forgotten)
        for each in (request.given, request.offered):
            if each is not None:
                pool.give(each)

    def _write(self, request: Request, job: Job) -> None:
        forgotten = request.forgotten = self.worker.pool.forgotten()
        key = None if forgotten or job.profile else key_of(job.inputs, job.output_names)
        header = {
            "network": self.number,
            "outputs": job.output_names,
            "forget": forgotten,
            "profile": job.profile,
        }
        writer = self._forms.writer(key, job.inputs, "inputs", header)
        memory = None
        if writer.segment_bytes:
            request.given = self.worker.pool.take(writer.segment_bytes)
            memory = request.given.array
        count = len(request.descriptors())
        request.data = writer.message(self._facts(request, job), job.inputs, memory, count)

    def _facts(self, request: Request, job: Job) -> bytes:
        given, offered, new = request.given, request.offered, 0
        if given is not None and given.descriptor is not None:
            new |= GIVEN_IS_NEW
        if offered is not None and offered.descriptor is not None:
            new |= OFFERED_IS_NEW
        return Asked(
            request.number,
            given.number if given is not None else 0,
            offered.number if offered is not None else 0,
            request.spare,
            job.priority,
            new,
        ).pack()

    def receive(self, job: Job, reply: Message, request: Request) -> float:
        """Fills the job's outputs from the answer.

        Returns:
            How many seconds the worker took for the run.

        Raises:
            Disconnected: the answer makes no sense.
            Any error that the worker raised.
        """
        pool, header, offered = self.worker.pool, reply.header, request.offered
        self.worker.useful = True
        request.ended()
        if request.given is not None:
            pool.give(request.given)
        failed = "error" in header
        told, body = (_NOTHING, reply.body) if failed else Told.take(reply.body)
        segment = offered if offered is not None and offered.number == told.segment else None
        if offered is not None and segment is None:
            pool.give(offered)
        made = told.segment != 0 and segment is None
        if len(reply.descriptors) != made or (made and told.segment != request.spare):
            close_all(reply.descriptors)
            raise Disconnected("an answer names unknown shared memory")
        if made:
            segment = Segment.attach(request.spare, reply.descriptors[0])
        if segment is not None:
            self.expected = min(max(told.taken, 0), segment.size)
        elif not failed:
            self.expected = 0
        memory = pool.lend(segment) if segment is not None else None
        if failed:
            raise error_from_json(header["error"])
        job.outputs = Form.within(header, "outputs").read(body, memory)
        if "layers" in header:
            job.layers = [profile_from_json(each) for each in header["layers"]]
        return max(0.0, told.seconds)
