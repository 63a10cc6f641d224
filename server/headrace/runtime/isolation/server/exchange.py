"""Sends a request to a worker and receives its answer, on the thread that runs the request."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from headrace.runtime.execution.job import Job
from headrace.runtime.isolation.server.process import WorkerProcess
from headrace.runtime.isolation.wire.channel import (
    Disconnected,
    Message,
    close_all,
    expect,
    packed,
)
from headrace.runtime.isolation.wire.descriptions import profile_from_json
from headrace.runtime.isolation.wire.failures import error_from_json
from headrace.runtime.isolation.wire.forms import Form, Forms, key_of
from headrace.runtime.isolation.wire.shared_memory import Segment
from headrace.runtime.isolation.wire.values import Encoded, Numbers, encode, take_seconds


class Request(NamedTuple):
    """A request in the worker's form.

    Attributes:
        number: for cancelling it.
        spare: the number of a segment that the worker may make for the outputs.
        data: the packed message.
    """

    number: int
    spare: int
    data: bytes


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
    _forms: Forms = field(default_factory=Forms)

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
            numbers = self._numbers(job, given, offered)
            header = {
                **self._header(job, encoded, pool.forgotten()),
                "new": [each.number for each in new],
            }
            descriptors = [each.descriptor for each in new if each.descriptor is not None]
            reply = self._send(job, numbers, header, encoded, descriptors)
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
            self.receive(job, reply, offered, numbers.spare)
        except Disconnected as error:
            worker.kill("it sent an unknown message")
            raise worker.broken() from error

    @property
    def shares_memory(self) -> bool:
        """Whether the next answer will probably come in shared memory."""
        return self._expected > 0

    def small_request(self, job: Job) -> Request:
        """A request for whose inputs no memory is shared.

        Raises:
            InvalidArgument: as `encode`.
            Internal: the message is too large.
        """
        numbers = self._numbers(job)
        facts, forgotten = numbers.pack(), self.worker.pool.forgotten()
        key = None if forgotten or job.profile else key_of(job.inputs, job.output_names)
        data = self._forms.message(key, facts, job.inputs)
        if data is None:
            encoded = encode(job.inputs)
            data = packed(self._header(job, encoded, forgotten), (facts, *encoded.body), 0)
            self._forms.learn(key, facts, encoded, data)
        return Request(numbers.request, numbers.spare, data)

    def _header(self, job: Job, encoded: Encoded, forgotten: list[int]) -> dict[str, Any]:
        return {
            "network": self.number,
            "inputs": encoded.description,
            "outputs": job.output_names,
            "new": (),
            "forget": forgotten,
            "profile": job.profile,
        }

    def _numbers(
        self, job: Job, given: Segment | None = None, offered: Segment | None = None
    ) -> Numbers:
        worker = self.worker
        return Numbers(
            worker.number(),
            given.number if given is not None else 0,
            offered.number if offered is not None else 0,
            worker.pool.number(),
            job.priority,
        )

    def _send(
        self,
        job: Job,
        numbers: Numbers,
        header: dict[str, Any],
        encoded: Encoded,
        descriptors: list[int],
    ) -> Message:
        cancel = partial(self.worker.cancel, numbers.request)
        with self.worker.lanes.lane() as lane:
            job.token.attach(cancel)
            try:
                lane.send(header, (numbers.pack(), *encoded.body), descriptors)
                return lane.receive()
            except Disconnected as error:
                raise self.worker.broken() from error
            finally:
                job.token.detach(cancel)

    def receive(self, job: Job, reply: Message, offered: Segment | None, spare: int) -> float:
        """Fills the job's outputs from the answer.

        Returns:
            How many seconds the worker took for the run.

        Raises:
            Disconnected: the answer makes no sense.
            Any error that the worker raised.
        """
        pool, header = self.worker.pool, reply.header
        used = header.get("segment")
        segment = offered if offered is not None and offered.number == used else None
        if offered is not None and segment is None:
            pool.give(offered)
        made = used is not None and segment is None
        if len(reply.descriptors) != made or (made and used != spare):
            close_all(reply.descriptors)
            raise Disconnected("an answer names unknown shared memory")
        if made:
            segment = Segment.attach(spare, reply.descriptors[0])
        if segment is not None:
            self._expected = min(max(expect(header, "taken", int), 0), segment.size)
        elif "error" not in header:
            self._expected = 0
        memory = pool.lend(segment) if segment is not None else None
        if "error" in header:
            raise error_from_json(header["error"])
        form = Form.within(header, "outputs")
        seconds, body = take_seconds(reply.body)
        job.outputs = form.read(body, memory, writable=True)
        if "layers" in header:
            job.layers = [profile_from_json(each) for each in header["layers"]]
        return seconds
