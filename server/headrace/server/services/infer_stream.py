"""InferStream: messages with several requests or results, which the caller's ids match."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from headrace.runtime.errors import Cancelled, InvalidArgument
from headrace.server.services.inference import INFER, decode, encode, encode_small, strings_in
from headrace.server.services.streams.in_flight import Cancel
from headrace.server.services.streams.inference_stream import InferenceStream, InferenceStreams
from headrace.server.services.streams.request_stream import RequestStream
from headrace.server.services.streams.result_sizes import SMALL, ExpectedSize
from headrace.server.serving.call import InferCall, InferResult
from headrace.server.serving.layouts import CallLayouts
from headrace.server.serving.offload import HEAVY_ELEMENTS, offload
from headrace.server.serving.serving import Serving
from headrace.server.serving.turns import Turn
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


class InferStreams(InferenceStreams):
    """The open InferStreams of one server. Belongs to the event loop's thread.

    Args:
        serving, layouts, boundary, max_in_flight: the same as in `InferenceStreams`.
        max_stream_bytes: the memory of `RequestStreams`.
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
        super().__init__(serving, layouts, boundary, max_in_flight, memory)
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


class _Stream(InferenceStream):
    method: ClassVar[str] = "InferStream"
    unary: ClassVar[str] = INFER
    results_a_message: ClassVar[int] = 64

    def __init__(self, owner: InferStreams, context: Any) -> None:
        super().__init__(owner, context)
        self._limits = owner.limits
        self._notice = Notice()
        self._may_hold_many_texts = False

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
        elsewhere = self._serving.elsewhere
        for start, end in fields.payloads:
            call = layouts.read(bytes(data[start:end])) if end - start < SMALL_BYTES else None
            if call is None or (elsewhere and self._find_elsewhere(call.network, "")):
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
            return self._expected_of(request)
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
            return self._begin_call(request, key)
        message, name = request.message, str(key)
        sequence = message.session.id
        if network := self._find_elsewhere(message.network, sequence):
            return self._pass_on(network, partial(serialize, *request), name, key, sequence)
        if self._may_hold_many_texts and strings_in(message.inputs) > HEAVY_ELEMENTS:
            if sequence:
                self._order.begin(key, (message.network, sequence))
            return self._in_turn(partial(self._run_heavy, request), name, key, sequence)
        return self._begin_call(self._decoded(request), key)

    def _decoded(self, request: StreamRequest) -> InferCall:
        message, attachments = request
        call = decode(message, attachments)
        # Those of large ones were taken out, and each has another trace.
        if len(attachments) == len(message.attachments) and not message.traceparent:
            self._layouts.learn(message.SerializeToString(), call)
        return call

    async def _run_heavy(self, request: StreamRequest, turn: Turn | None) -> Any:
        """Computes a request with many texts."""
        decoding = partial(decode, *request)
        return await self._run(await offload(decoding, strings_in(request.message.inputs)), turn)

    def _passed_back(self, name: str, reply: bytes) -> EncodedResult:
        message, parts = parse_infer_reply(reply)
        return EncodedResult(name, message.SerializeToString(), parts)

    def _encoded(self, result: InferResult) -> EncodedResult:
        name = result.call.id
        small = encode_small(name, result)
        if small is not None:
            return EncodedResult(name, small)
        reply, parts = encode(name, result)
        return EncodedResult(name, reply.SerializeToString(), parts)

    def _success(
        self, _name: str, outcome: InferResult | EncodedResult
    ) -> tuple[EncodedResult, int]:
        result = outcome if isinstance(outcome, EncodedResult) else self._encoded(outcome)
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
        encoded = [result for result in results if result is not notice]
        return serialize_infer_stream_reply(encoded, limits, notice.messages_read)


def _told_shapes(message: pb.InferRequest) -> dict[str, Sequence[int]]:
    return {value.name: value.tensor.shape for value in message.inputs}
