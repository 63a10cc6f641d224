"""InferStream: messages with several requests or results, which the caller's ids match."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from headrace.runtime.errors import Cancelled, InvalidArgument
from headrace.runtime.execution.job import Job
from headrace.server.services.inference import decode, encode, encode_small, strings_in
from headrace.server.services.streams.in_flight import Cancel, Tasks
from headrace.server.services.streams.request_stream import RequestStream, Streams
from headrace.server.services.streams.result_sizes import SMALL, ExpectedSize, shapes_of
from headrace.server.serving.call import InferCall, InferResult
from headrace.server.serving.layouts import CallLayouts
from headrace.server.serving.offload import HEAVY_ELEMENTS, offload, texts
from headrace.server.serving.regions import are_written, write_outputs
from headrace.server.serving.serving import Serving, TensorPlaces
from headrace.server.serving.turns import Turn, Turns
from headrace.server.shared_memory.lease import Lease
from headrace.server.shared_memory.users import Caller
from headrace.server.tracing.tracing import Headers
from headrace.server.transport.boundary import Boundary
from headrace.server.transport.shares import Shares
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import framing
from headrace.wire.errors import ErrorDetails, to_status
from headrace.wire.message import SMALL_BYTES, parse_infer_reply, serialize
from headrace.wire.stream import (
    EncodedResult,
    StreamLimits,
    StreamRequest,
    parse_infer_stream_request,
    serialize_infer_stream_reply,
)

_REQUESTS: Final = 1  # of InferStreamRequest
_OF_WHAT_IS_LEFT: Final = 1 / 8
"""The part of the streams' free memory that a connection may hold."""


class InferStreams(Streams):
    """The open InferStreams of one server. Belongs to the event loop's thread.

    Args:
        layouts: read requests that are like earlier ones.
        max_in_flight, max_stream_bytes: the limit and the memory of `Streams`.
        max_message_bytes: the largest message that the server receives; 0 for no limit.
    """

    def __init__(
        self,
        serving: Serving,
        layouts: CallLayouts,
        boundary: Boundary,
        max_in_flight: int,
        max_stream_bytes: int,
        max_message_bytes: int = 0,
    ) -> None:
        memory = Shares(max_stream_bytes, _OF_WHAT_IS_LEFT)
        super().__init__(boundary, max_in_flight, memory, serving.networks)
        self.serving = serving
        self.layouts = layouts
        self.limits = StreamLimits(max_in_flight, max_message_bytes)

    def _stream(self, context: Any) -> RequestStream:
        return _Stream(self, context)


class Notice:
    """What a stream tells besides results. It waits among them, at most once.

    Attributes:
        wanted: whether the client has asked for the limits.
        limits: those that are to be told.
        waits: whether it is among the results.
    """

    __slots__ = ("limits", "messages_read", "waits", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self.limits: StreamLimits | None = None
        self.messages_read = 0
        self.waits = False


class _Stream(RequestStream):
    method: ClassVar[str] = "InferStream"
    results_a_message: ClassVar[int] = 64

    def __init__(self, owner: InferStreams, context: Any) -> None:
        super().__init__(owner, context)
        self._serving = owner.serving
        self._limits = owner.limits
        self._notice = Notice()
        self._layouts = owner.layouts
        self._may_hold_many_texts = False
        self._owner_of_regions: Caller | None = None  # asked by the first request that needs it
        self._tasks: Tasks[EncodedResult] = Tasks()
        self._turns = Turns()

    def _requests(self, data: bytes) -> list[InferCall] | list[StreamRequest]:
        """The requests in a message. They are decoded already if all are like earlier ones."""
        notice = self._notice
        notice.messages_read += 1
        requests = self._known(data) or self._parsed(data)
        if notice.wanted and not notice.waits:
            notice.waits = True
            self._results.put(notice)
        return requests

    def _known(self, data: bytes) -> list[InferCall] | None:
        layouts = self._layouts
        if not len(layouts) or self._turns:
            return None
        fields = framing.split(data, 0, len(data), _REQUESTS)
        if fields is None or fields.rest:
            return None
        calls: list[InferCall] = []
        for start, end in fields.payloads:
            call = layouts.read(bytes(data[start:end])) if end - start < SMALL_BYTES else None
            if call is None or self._serving.find_elsewhere(call.network, self._context):
                return None  # one that is passed on goes as it came
            calls.append(call)
        return calls

    def _parsed(self, data: bytes) -> list[StreamRequest]:
        self._may_hold_many_texts = len(data) >= SMALL_BYTES
        message = parse_infer_stream_request(data)
        for identifier in message.cancel:
            if identifier in self._in_flight:  # a message may name thousands that are not
                self._in_flight.cancel(identifier, Cancelled("the caller cancelled the request"))
        if message.asks_limits:
            self._notice.wanted = True
            self._notice.limits = self._limits
        return message.requests

    def _name(self, request: InferCall | StreamRequest) -> str:
        if isinstance(request, InferCall):
            return request.id
        identifier: str = request.message.id
        return identifier

    def _key(self, name: str) -> Hashable:
        if not name or name in self._in_flight:
            problem = "is in flight on this stream already" if name else "is empty"
            raise InvalidArgument(f"{problem}; every request on a stream has its own", field="id")
        return name

    def _expected(self, request: InferCall | StreamRequest) -> ExpectedSize:
        if isinstance(request, InferCall):
            if request.wanted:
                return SMALL
            names, shapes = request.outputs, partial(shapes_of, request.inputs)
            return self._sizes.expected(request.network, request.version, names, shapes)
        said = request.message
        if said.output_regions:
            return SMALL
        names, told = tuple(said.outputs), partial(_told_shapes, said)
        return self._sizes.expected(said.network, said.version, names, told)

    def _trace(self, request: InferCall | StreamRequest) -> Headers | None:
        if isinstance(request, InferCall) or not request.message.traceparent:
            return None
        said = request.message
        return ("traceparent", said.traceparent), ("tracestate", said.tracestate)

    def _begin(self, request: InferCall | StreamRequest, key: Hashable) -> Cancel:
        if isinstance(request, InferCall):
            return self._start_now(request)
        message, name = request.message, str(key)
        sequence, turn = message.session.id, None
        network = self._serving.find_elsewhere(message.network, self._context, sequence)
        is_heavy = self._may_hold_many_texts and strings_in(message.inputs) > HEAVY_ELEMENTS
        call = None if network or is_heavy else self._decoded(request)
        if call is not None:
            waits = bool(sequence) and (call.uses_regions or self._turns.waits(sequence))
            if not waits:
                return self._start_now(call)
        if sequence:
            turn = self._turns.take(sequence)
        if network:
            work = self._pass_on(network, request, sequence, turn)
        elif call is None:
            work = self._run_heavy(request, turn)
        else:
            work = self._run(call, turn)
        return self._tasks.begin(work, partial(self._ended, name, name), turn)

    def _decoded(self, request: StreamRequest) -> InferCall:
        message, attachments = request
        call = decode(message, attachments)
        # Those of large ones were taken out, and each has another trace.
        if len(attachments) == len(message.attachments) and not message.traceparent:
            self._layouts.learn(message.SerializeToString(), call)
        return call

    def _start_now(self, call: InferCall) -> Cancel:
        """Starts a request that waits for no other one."""
        if call.uses_regions:
            return self._start_in_regions(call)
        serving, remaining = self._serving, self._context.time_remaining()
        done = partial(serving.sink.put, partial(self._deliver, call, None))
        return serving.start(call, remaining, done).token.cancel

    def _start_in_regions(self, call: InferCall) -> Cancel:
        serving, caller, place = self._serving, self._owner_of_regions, None
        if caller is not None:
            place = serving.place(call, caller)
            if place.room is not None:
                with place.lease as lease:
                    done = partial(self._deliver, call, lease)
                    remaining = self._context.time_remaining()
                    return serving.start_in_place(call, place, remaining, done).token.cancel
        return self._tasks.begin(
            self._run(call, None, place), partial(self._ended, call.id, call.id)
        )

    def _deliver(self, call: InferCall, lease: Lease | None, job: Job) -> None:
        """Takes the outcome of a request without a task.

        Args:
            lease: the regions of one that ran in its client's memory.
        """
        name, seconds = call.id, job.queue_seconds + job.execution_seconds
        if job.error is not None:
            self._ended(name, name, None, job.take_error(), seconds, job)
            return
        result = InferResult(call, job, job.outputs)
        is_there = lease is None or are_written(result)
        if is_there and texts(job.outputs.values()) <= HEAVY_ELEMENTS:
            self._ended(name, name, result, None, seconds, job)
            return
        if lease is not None:
            lease.hold()

        def ended(
            outcome: EncodedResult | None, error: BaseException | None, _: float, __: Job | None
        ) -> None:
            self._ended(name, name, outcome, error, seconds, job)

        self._tasks.begin(self._finish(result, lease), ended)

    async def _finish(self, result: InferResult, lease: Lease | None) -> EncodedResult:
        """The result of a request whose outputs take long to write or to encode."""
        if lease is not None:
            with lease:
                await write_outputs(result, lease)
        strings = texts(result.outputs.values())
        return await offload(partial(encoded, result.call.id, result), strings)

    async def _run_heavy(self, request: StreamRequest, turn: Turn | None) -> EncodedResult:
        """Computes a request with many texts."""
        decoding = partial(decode, *request)
        return await self._run(await offload(decoding, strings_in(request.message.inputs)), turn)

    async def _run(
        self, call: InferCall, turn: Turn | None, place: TensorPlaces | None = None
    ) -> EncodedResult:
        """Computes a request that may have to wait: for a copy, or for its turn."""
        if call.uses_regions and self._owner_of_regions is None:
            self._owner_of_regions = await self._serving.caller(self._context)
        result = await self._serving.run(call, self._context, turn, place)
        return await offload(partial(encoded, call.id, result), texts(result.outputs.values()))

    async def _pass_on(
        self, network: str, request: StreamRequest, sequence: str, turn: Turn | None
    ) -> EncodedResult:
        if turn is not None:
            await turn.comes()
        elsewhere = self._serving.elsewhere
        assert elsewhere is not None
        data = serialize(*request)
        reply, parts = parse_infer_reply(
            await elsewhere.infer(network, data, self._context, sequence)
        )
        return EncodedResult(request.message.id, reply.SerializeToString(), parts)

    def _success(
        self, name: str, outcome: InferResult | EncodedResult
    ) -> tuple[EncodedResult, int]:
        result = outcome if isinstance(outcome, EncodedResult) else encoded(name, outcome)
        size = len(result.reply or b"")
        for part in result.attachments:
            size += memoryview(part).nbytes
        return result, size

    def _failure(self, name: str, details: ErrorDetails) -> EncodedResult:
        return EncodedResult(name, error=to_status(details))

    def _message(self, results: Sequence[Any]) -> bytes:
        notice = self._notice
        if notice not in results:
            return serialize_infer_stream_reply(results)
        limits, notice.limits, notice.waits = notice.limits, None, False
        encoded = [each for each in results if each is not notice]
        return serialize_infer_stream_reply(encoded, limits, notice.messages_read)


def encoded(name: str, result: InferResult) -> EncodedResult:
    """A result as it lies in a message."""
    small = encode_small(name, result)
    if small is not None:
        return EncodedResult(name, small)
    reply, parts = encode(name, result)
    return EncodedResult(name, reply.SerializeToString(), parts)


def _told_shapes(message: pb.InferRequest) -> dict[str, Sequence[int]]:
    return {value.name: value.tensor.shape for value in message.inputs}
