"""ModelStreamInfer: one request or response a message. Responses come as requests finish."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Hashable, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.trace import status_of
from headrace.server.services.open_inference.messages import (
    MODEL_INFER,
    decode,
    encode,
    is_heavy,
    on_stream,
    parse,
    parse_offloaded,
)
from headrace.server.services.streams.in_flight import Cancel
from headrace.server.services.streams.inference_stream import InferenceStream, InferenceStreams
from headrace.server.services.streams.request_stream import RequestStream
from headrace.server.services.streams.result_sizes import SMALL, ExpectedSize
from headrace.server.serving.call import InferCall, InferResult
from headrace.wire.codec import CodecError
from headrace.wire.errors import ErrorDetails

FINAL: Final = "triton_final_response"
"""A parameter of each response on a stream. A request has only one response, its last."""

ERRORS_AS_STATUS: Final = "triton_grpc_error"
"""The metadata key with which a client asks that the first error end its stream, as a status."""

_IS_FINAL: Final = MappingProxyType({FINAL: True})
_FINAL_FIELDS: Final = oip.ModelInferResponse(
    parameters={FINAL: oip.InferParameter(bool_param=True)}
).SerializeToString()


class Incoming(NamedTuple):
    """A request that has been read, or its error."""

    id: str
    data: bytes
    call: InferCall | None
    error: CodecError | None = None


class ModelStreams(InferenceStreams):
    """The open ModelStreamInfers of one server. Belongs to the event loop's thread."""

    def _stream(self, context: Any) -> RequestStream:
        return _Stream(self, context)


class _Stream(InferenceStream):
    method: ClassVar[str] = "ModelStreamInfer"
    unary: ClassVar[str] = MODEL_INFER
    results_a_message: ClassVar[int] = 1

    def __init__(self, owner: ModelStreams, context: Any) -> None:
        super().__init__(owner, context)
        self._keys = itertools.count()  # ids may be empty, and may repeat
        metadata = dict(context.invocation_metadata() or ())
        self._errors_as_status = metadata.get(ERRORS_AS_STATUS) == "true"

    def _requests(self, data: bytes) -> list[Incoming] | Awaitable[list[Incoming]]:
        call = self._layouts.read(data)
        if call is not None:
            return [Incoming(call.id, data, call)]
        if is_heavy(data):
            return self._parsed(data)
        message, raw = parse(data)
        try:
            call = decode(message, raw)
        except CodecError as error:
            return [Incoming(message.id, data, None, error)]
        self._layouts.learn(data, call)
        return [Incoming(message.id, data, call)]

    async def _parsed(self, data: bytes) -> list[Incoming]:
        message, decoding = await parse_offloaded(data)
        try:
            return [Incoming(message.id, data, await decoding)]
        except CodecError as error:
            return [Incoming(message.id, data, None, error)]

    def _name(self, request: Incoming) -> str:
        return request.id

    def _key(self, _name: str) -> Hashable:
        return next(self._keys)

    def _expected(self, request: Incoming) -> ExpectedSize:
        return SMALL if request.call is None else self._expected_of(request.call)

    def _begin(self, request: Incoming, key: Hashable) -> Cancel:
        call = request.call
        if call is None:
            assert request.error is not None
            raise request.error
        sequence = call.sequence_id
        if network := self._find_elsewhere(call.network, sequence):
            return self._pass_on(network, lambda: request.data, request.id, key, sequence)
        return self._begin_call(call, key)

    def _passed_back(self, _name: str, reply: bytes) -> bytes:
        return on_stream(reply + _FINAL_FIELDS)

    def _encoded(self, result: InferResult) -> bytes:
        return on_stream(encode(result, _IS_FINAL))

    def _success(self, _name: str, outcome: InferResult | bytes) -> tuple[bytes, int]:
        result = outcome if isinstance(outcome, bytes) else self._encoded(outcome)
        return result, len(result)

    def _failure(self, name: str, details: ErrorDetails) -> bytes:
        reply = oip.ModelStreamInferResponse(error_message=details.message)
        reply.infer_response.id = name
        reply.infer_response.parameters[FINAL].bool_param = True
        data: bytes = reply.SerializeToString()
        return data

    def _fail(
        self, name: str, error: BaseException, seconds: float = 0.0, job: Job | None = None
    ) -> str:
        if not self._errors_as_status:
            return super()._fail(name, error, seconds, job)
        self.fail_all(error)
        return status_of(error)

    def _message(self, results: Sequence[bytes]) -> bytes:
        (result,) = results
        return result
