"""Infer and InferStream: the hot path.

Everything here runs on the event loop's thread. A request to a tiny network on an idle device is
computed on this thread. Any other request goes to a stream of its device, and its completion comes
back through the sink.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, Sequence
from headrace.server.access.identity import sharer
from headrace.server.access.networks import Networks
from headrace.server.logs import CURRENT_REQUEST
from headrace.server.request_log import JOB
from headrace.server.services.aside import aside, texts
from headrace.server.services.completion_sink import (
    CompletionSink,
    deadline_after,
    ended,
    wake,
)
from headrace.server.services.convert import layer_profiles
from headrace.server.services.shared_tensors import (
    SharedMemoryService,
    fetch_inputs,
    put_now,
    put_outputs,
    tensors,
)
from headrace.server.services.streams.turns import Turn
from headrace.server.shared_memory.handed import HandedRegion
from headrace.server.shared_memory.lease import Lease
from headrace.server.tracing.context import CURRENT_SPAN
from headrace.server.transport.call import Reply
from headrace.server.transport.statuses import ended_code
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import encode_values
from headrace.wire.layouts import MAX_ID_LENGTH, Inputs
from headrace.wire.message import (
    Attachments,
    parse_infer_request,
    serialize,
    serialize_parts,
)
from headrace.wire.placed import Placed
from headrace.wire.reply import Place, encode_small_reply
from headrace.wire.request import Decoded, InRegion, Request, RequestLayouts, decode_request
from headrace.wire.shared_memory import names_regions


class Inference:
    """Turns messages into jobs and finished jobs into messages."""

    def __init__(
        self, networks: Networks, sink: CompletionSink, shared_memory: SharedMemoryService
    ) -> None:
        self.networks = networks
        self.sink = sink
        self._ids = itertools.count(1)
        self.shared_memory = shared_memory
        self.layouts = RequestLayouts()
        self._wake = sink.wake

    async def infer(self, data: bytes, context: Any) -> Reply:
        """Handles the unary call. Takes and returns serialised messages.

        Raises:
            CodecError: the message breaks the protocol.
            Also raises as `NetworkRegistry.acquire` and `ExecutableNetwork.submit`, and the job's
                error.
        """
        known = self.layouts.read(data)
        if known is None:
            message, attachments = parse_infer_request(data)
            identifier = message.id or f"r{next(self._ids)}"
            CURRENT_REQUEST.set(identifier[:MAX_ID_LENGTH])
            if names_regions(message):
                self.layouts.learn_in_region(data, message)
                result = await self.infer_in_regions(identifier, message, attachments, context)
                return serialize(*result)
            decode = partial(decode_request, message, attachments)
            request, inputs = await aside(decode, strings_in(message.inputs))
            self.layouts.learn(data, request, inputs)
        elif isinstance(known, InRegion):
            return await self._infer_in_region(known, context)
        else:
            request, inputs = known
            identifier = request.id or f"r{next(self._ids)}"
            CURRENT_REQUEST.set(identifier)
        job = self.start(request, inputs, context.time_remaining(), self._wake)
        JOB.set(job)
        if job.outcome is None or job.error is not None:
            await ended(job, partial(_has_expired, context))
        small = encode_small(identifier, job)
        if small is not None:
            return small
        if all(map(_is_own, job.outputs.values())):
            return serialize_parts(*build_reply(identifier, job))
        return await aside(lambda: serialize(*build_reply(identifier, job)), strings_of(job))

    async def _infer_in_region(self, known: InRegion, context: Any) -> bytes:
        """The same as `infer_in_regions` for a request like an earlier one, with fewer steps."""
        request, placed = known
        identifier = request.id or f"r{next(self._ids)}"
        CURRENT_REQUEST.set(identifier)
        taken = self.shared_memory.take(placed, await self.shared_memory.caller(context))
        if taken is None:
            message = known.message()
            return serialize(*await self.infer_in_regions(identifier, message, (), context))
        lease, region = taken

        def deliver(job: Job) -> None:
            lease.job = job
            lease.close()
            wake(job)

        lease.hold()  # for the run, which does not end at once if the caller leaves
        with lease:
            done = partial(self.sink.put, deliver)
            try:
                where, remaining = (placed, region), context.time_remaining()
                job = self.start(request, {}, remaining, done, region=where)
            except BaseException:
                lease.close()
                raise
            JOB.set(job)
            await ended(job, partial(_has_expired, context))
            reply = finish_now(identifier, lease, placed, job)
            if reply is None:
                return serialize(*await finish(identifier, lease, placed.message, job))
            return reply

    async def infer_in_regions(
        self,
        identifier: str,
        message: pb.InferRequest,
        attachments: Attachments,
        context: Any,
        token: CancelToken | None = None,
        turn: Turn | None = None,
    ) -> tuple[pb.InferReply, list[Any]]:
        """Computes a request with tensors in shared memory, or with many texts.

        Returns the reply and its attachments.

        The regions stay open until this call ends, and until all copies that it has begun have
        ended.

        Args:
            token: cancels the request, at any time from its beginning.
            turn: that of a sequence's request on a stream.
        """
        with await self.shared_memory.lease(context) as lease:
            attachments = await fetch_inputs(lease, message, attachments)
            decode = partial(decode_request, message, attachments)
            request, inputs = await aside(decode, strings_in(message.inputs))
            if turn is not None:
                await turn.comes()
            job = self.start(request, inputs, context.time_remaining(), self._wake, token)
            JOB.set(job)
            if turn is not None:
                turn.over()
            await ended(job, partial(_has_expired, context))
            return await finish(identifier, lease, message, job)

    def decode(self, message: pb.InferRequest, attachments: Attachments) -> Decoded:
        """Decodes a stream's request, and remembers its layout for the next request like it.

        Raises:
            CodecError: as `decode_request`.
        """
        decoded = decode_request(message, attachments)
        if len(attachments) == len(message.attachments):  # those of large ones were taken out
            self.layouts.learn(message.SerializeToString(), *decoded)
        return decoded

    def start(
        self,
        request: Request,
        inputs: Inputs,
        remaining: float | None,
        done: Callable[[Job], None],
        token: CancelToken | None = None,
        region: tuple[Placed, HandedRegion] | None = None,
    ) -> Job:
        """Submits a request.

        Args:
            remaining: seconds until the call's own deadline.
            done, token: the same as in `Job`.
            region: where the tensors are, instead of in `inputs`.
        """
        name, identifier, outputs, priority, profile, timeout, version, session, *_ = request
        sequence = "" if session is None else session.id
        entry = self.networks.acquire(name, version, sequence)
        values: Any = inputs
        room = None
        if region is not None:
            assert entry.executable is not None
            try:
                values, room = tensors(*region, entry.executable)
            except BaseException:
                self.networks.release(entry)
                raise
        endless = remaining is None and not timeout
        job = Job(
            values,
            done,
            output_names=outputs,
            deadline=None if endless else deadline_after(timeout, remaining),
            priority=priority,
            token=token,
            profile=profile,
            may_run_inline=True,
            trace=identifier,
            sequence=None if session is None else Sequence(*session)._replace(owner=sharer()),
            span=CURRENT_SPAN.get(),
        )
        job.room = room
        self.networks.submit(entry, job)
        return job


def _is_own(value: Any) -> bool:
    """Whether the memory of an output belongs to it alone, so that it may be sent from there.

    ONNX Runtime gives an array a capsule that owns its memory. A view of a shared segment is not
    sent from where it lies: a slow reader would keep the segment.
    """
    if type(value) is not np.ndarray or value.dtype.kind == "O":
        return False
    return value.flags.owndata or type(value.base).__name__ == "PyCapsule"


def strings_in(values: Iterable[pb.Value]) -> int:
    """The number of strings in a request's values, which have to be decoded one by one."""
    return sum(
        strings_in(each.sequence.elements)
        if each.HasField("sequence")
        else len(each.tensor.strings)
        for each in values
    )


def strings_of(job: Job) -> int:
    """The number of strings in a completed job's reply."""
    return texts(job.outputs.values())


def _has_expired(context: Any) -> bool:
    return ended_code(context) == "DEADLINE_EXCEEDED"


def finish_now(identifier: str, lease: Lease, placed: Placed, job: Job) -> bytes | None:
    """Does the same as `finish`, without waiting. None if it cannot: `finish` then has to."""
    reply = encode_small(identifier, job, placed.places)
    return reply if reply is not None and put_now(lease, placed, job) else None


async def finish(
    identifier: str, lease: Lease, message: pb.InferRequest, job: Job
) -> tuple[pb.InferReply, list[Any]]:
    """The reply of a completed job with tensors in shared memory, and its attachments.

    Raises:
        As `put_outputs`.
    """
    reply = _reply(identifier, job)
    return reply, await put_outputs(lease, message, job, reply)


def encode_small(
    identifier: str, job: Job, places: Mapping[str, Place] | None = None
) -> bytes | None:
    """The serialised reply of a completed job, or None if it needs a protobuf message.

    Args:
        places: those of outputs in shared memory.
    """
    if job.layers:
        return None
    times = job.queue_seconds, job.execution_seconds, job.inference_seconds
    outputs: Any = job.outputs
    facts = times, job.generation, job.version, job.in_flight
    return encode_small_reply(identifier, job.output_names, outputs, *facts, places)


def build_reply(identifier: str, job: Job) -> tuple[pb.InferReply, list[Any]]:
    """The reply of a completed job, and its attachments."""
    reply = _reply(identifier, job)
    parts: list[Any] = []
    outputs: Any = {name: job.outputs[name] for name in job.output_names}
    encode_values(outputs, reply.outputs, parts)
    return reply, parts


def _reply(identifier: str, job: Job) -> pb.InferReply:
    """A reply without its outputs."""
    reply = pb.InferReply(id=identifier, generation=job.generation, version=job.version)
    reply.in_flight = job.in_flight
    timings = reply.timings
    timings.queue_seconds = job.queue_seconds
    timings.execution_seconds = job.execution_seconds
    timings.inference_seconds = job.inference_seconds
    if job.layers:
        reply.performance_counts.extend(layer_profiles(job.layers))
    return reply
