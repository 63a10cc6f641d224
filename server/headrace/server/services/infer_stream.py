"""InferStream: messages with several requests or results, which the caller's ids match."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from headrace.runtime.errors import Cancelled, InvalidArgument
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.server.elsewhere import Elsewhere
from headrace.server.request_log import JOB
from headrace.server.services.aside import HEAVY_ELEMENTS, aside
from headrace.server.services.inference import (
    Inference,
    finish_now,
    strings_in,
    strings_of,
)
from headrace.server.services.streams.encoded import finished, result_from, result_of, size_of
from headrace.server.services.streams.in_flight import Cancel, Tasks
from headrace.server.services.streams.notice import Notice
from headrace.server.services.streams.request_stream import RequestStream, Streams
from headrace.server.services.streams.result_sizes import SMALL, Expected, shapes_of
from headrace.server.services.streams.turns import Turn, Turns
from headrace.server.shared_memory.users import Caller
from headrace.server.tracing.tracing import Headers
from headrace.server.transport.boundary import Boundary
from headrace.server.transport.shares import Shares
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import ErrorDetails, to_status
from headrace.wire.message import parse_infer_reply, serialize
from headrace.wire.request import Decoded, InRegion, Request
from headrace.wire.shared_memory import names_regions
from headrace.wire.stream import (
    EncodedResult,
    StreamLimits,
    StreamRequest,
    parse_infer_stream_request,
    serialize_infer_stream_reply,
)

_OF_WHAT_IS_LEFT: Final = 1 / 8
"""The part of the streams' free memory that a connection may hold."""


class InferStreams(Streams):
    """The open InferStreams of one server. Belongs to the event loop's thread.

    Args:
        max_in_flight, max_stream_bytes: the limit and the memory of `Streams`.
        max_message_bytes: the largest message that the server receives; 0 for no limit.
        elsewhere: takes the requests to networks that other servers have.
    """

    def __init__(
        self,
        inference: Inference,
        boundary: Boundary,
        max_in_flight: int,
        max_stream_bytes: int,
        max_message_bytes: int = 0,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        memory = Shares(max_stream_bytes, _OF_WHAT_IS_LEFT)
        super().__init__(boundary, max_in_flight, memory, inference.networks)
        self.inference = inference
        self.elsewhere = elsewhere
        self.limits = StreamLimits(max_in_flight, max_message_bytes)

    def _stream(self, context: Any) -> RequestStream:
        return _Stream(self, context)


class _Stream(RequestStream):
    method: ClassVar[str] = "InferStream"
    results_a_message: ClassVar[int] = 64

    def __init__(self, owner: InferStreams, context: Any) -> None:
        super().__init__(owner, context)
        self._inference = owner.inference
        self._elsewhere = owner.elsewhere
        self._limits = owner.limits
        self._notice = Notice()
        self._running: set[asyncio.Task[None]] = set()  # asyncio would lose them
        self._passed_on: Tasks[EncodedResult] = Tasks()
        self._turns = Turns()
        self._client = Caller(None, self._peer, identity=self._caller.name)

    def _requests(self, data: bytes) -> list[Any]:
        """The requests in a message. They are decoded already if all are like earlier ones."""
        notice = self._notice
        notice.messages_read += 1
        known = None if self._turns else self._inference.layouts.read_stream(data)
        if known and self._elsewhere and any(self._find(each.request) for each in known):
            known = None  # they are passed on as they came
        requests = self._parsed(data) if known is None else known
        if notice.wanted and not notice.waits:
            notice.waits = True
            self._results.put(notice)
        return requests

    def _parsed(self, data: bytes) -> list[StreamRequest]:
        message = parse_infer_stream_request(data)
        for identifier in message.cancel:
            self._in_flight.cancel(identifier, Cancelled("the caller cancelled the request"))
        if message.asks_limits:
            self._notice.wanted = True
            self._notice.limits = self._limits
        messages = [each.message for each in message.requests]
        self._inference.layouts.learn_stream(data, messages)
        return message.requests

    def _name(self, request: StreamRequest | Decoded | InRegion) -> str:
        said = request.message if isinstance(request, StreamRequest) else request.request
        identifier: str = said.id
        return identifier

    def _key(self, name: str) -> Hashable:
        if not name or name in self._in_flight:
            problem = "is in flight on this stream already" if name else "is empty"
            raise InvalidArgument(f"{problem}; every request on a stream has its own", field="id")
        return name

    def _expected(self, request: StreamRequest | Decoded | InRegion) -> Expected:
        if isinstance(request, Decoded):
            said, shapes = request.request, partial(shapes_of, request.inputs)
            return self._sizes.expected(said.network, said.version, said.outputs, shapes)
        if isinstance(request, InRegion) or request.message.output_regions:
            return SMALL
        told, values = request.message, partial(_told_shapes, request.message)
        return self._sizes.expected(told.network, told.version, told.outputs, values)

    def _trace(self, request: StreamRequest | Decoded | InRegion) -> Headers | None:
        said = request.message if isinstance(request, StreamRequest) else request.request
        if not said.traceparent:
            return None
        return ("traceparent", said.traceparent), ("tracestate", said.tracestate)

    def _begin(self, request: StreamRequest | Decoded | InRegion, key: Hashable) -> Cancel:
        if isinstance(request, StreamRequest) and self._elsewhere is not None:
            network = self._find(request.message)
            if network:
                return self._begin_elsewhere(self._elsewhere, network, request, str(key))

        def deliver(job: Job) -> None:
            error = job.take_error() if job.error is not None else None
            if error is None and (strings := strings_of(job)) > HEAVY_ELEMENTS:
                encode = partial(result_of, str(key), job)
                self._keep(self._finish(str(key), job, aside(encode, strings)))
                return
            seconds = job.queue_seconds + job.execution_seconds
            self._ended(key, str(key), job, error, seconds, job)

        inference = self._inference
        if isinstance(request, InRegion):
            return self._begin_in_region(request, key)
        if isinstance(request, StreamRequest):
            sequence = request.message.session.id
            many = strings_in(request.message.inputs) > HEAVY_ELEMENTS
            if many or names_regions(request.message) or self._turns.waits(sequence):
                return self._begin_aside(request, str(key))
            request = inference.decode(*request)
        remaining, done = self._context.time_remaining(), partial(inference.sink.put, deliver)
        return inference.start(*request, remaining, done).token.cancel

    def _begin_in_region(self, known: InRegion, key: Hashable) -> Cancel:
        """Starts a request like an earlier one. Its copies run on the event loop."""
        inference, name, placed = self._inference, str(key), known.placed
        taken = inference.shared_memory.take(placed, self._client)
        if taken is None:
            return self._begin_aside(StreamRequest(known.message()), name)
        lease, region = taken

        def deliver(job: Job) -> None:
            lease.job = job
            error, reply = job.take_error() if job.error is not None else None, None
            if error is None:
                try:
                    reply = finish_now(name, lease, placed, job)
                except Exception as raised:  # noqa: BLE001 - any error is this request's result
                    error = raised
                else:
                    if reply is None:
                        rest = finished(name, lease, placed.message, job)
                        self._keep(self._finish(name, job, rest))
                        return
            lease.close()
            outcome = EncodedResult(name, reply)
            self._ended(key, name, outcome, error, job.queue_seconds + job.execution_seconds, job)

        done = partial(inference.sink.put, deliver)
        try:
            where, remaining = (placed, region), self._context.time_remaining()
            job = inference.start(known.request, {}, remaining, done, region=where)
        except BaseException:
            lease.close()
            raise
        return job.token.cancel

    async def _finish(self, name: str, job: Job, reply: Awaitable[EncodedResult]) -> None:
        """Ends a request whose reply needs more than a copy on the event loop."""
        outcome: EncodedResult | None = None
        error: BaseException | None = None
        try:
            outcome = await reply
        except Exception as raised:  # noqa: BLE001 - any error is this request's result
            error = raised
        self._ended(name, name, outcome, error, job.queue_seconds + job.execution_seconds, job)

    def _begin_aside(self, request: StreamRequest, name: str) -> Cancel:
        """Starts a request that has to wait: for a copy, for a decoding or for its turn."""
        token = CancelToken()  # made first, so that a cancel during the reading of inputs works
        sequence = request.message.session.id
        turn = self._turns.take(sequence) if sequence else None
        self._keep(self._infer_aside(request, name, token, turn))
        return token.cancel

    def _keep(self, run: Coroutine[Any, Any, None]) -> None:
        """Runs it in a task of its own."""
        task = asyncio.get_running_loop().create_task(run)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _infer_aside(
        self, request: StreamRequest, name: str, token: CancelToken, turn: Turn | None
    ) -> None:
        started = time.monotonic()
        outcome: EncodedResult | None = None
        error: BaseException | None = None
        try:
            outcome = result_from(
                name,
                *await self._inference.infer_in_regions(name, *request, self._context, token, turn),
            )
        except Exception as raised:  # noqa: BLE001 - any error is this request's result
            error = raised
        finally:
            if turn is not None:
                turn.over()
        self._ended(name, name, outcome, error, time.monotonic() - started, JOB.get())

    def _find(self, said: Request | pb.InferRequest) -> str:
        """The full name of the request's network, if another server has it."""
        if self._elsewhere is None:
            return ""
        names = self._inference.networks.names(said.network)
        return self._elsewhere.find(names, self._context, said.session.id if said.session else "")

    def _begin_elsewhere(
        self, elsewhere: Elsewhere, network: str, request: StreamRequest, name: str
    ) -> Cancel:
        sequence = request.message.session.id
        turn = self._turns.take(sequence) if sequence else None

        async def infer() -> EncodedResult:
            if turn is not None:
                await turn.comes()
            data = serialize(*request)
            reply = await elsewhere.infer(network, data, self._context, sequence)
            return result_from(name, *parse_infer_reply(reply))

        return self._passed_on.begin(infer(), partial(self._ended, name, name), turn)

    def _success(self, name: str, outcome: Job | EncodedResult) -> tuple[EncodedResult, int]:
        if isinstance(outcome, EncodedResult):
            return outcome, size_of(outcome)
        result = result_of(name, outcome)
        return result, size_of(result)

    def _failure(self, name: str, details: ErrorDetails) -> EncodedResult:
        return EncodedResult(name, error=to_status(details))

    def _message(self, results: Sequence[Any]) -> bytes:
        notice = self._notice
        if notice not in results:
            return serialize_infer_stream_reply(results)
        limits, notice.limits, notice.waits = notice.limits, None, False
        encoded = [each for each in results if each is not notice]
        return serialize_infer_stream_reply(encoded, limits, notice.messages_read)


def _told_shapes(message: pb.InferRequest) -> dict[str, Sequence[int]]:
    return {value.name: value.tensor.shape for value in message.inputs}
