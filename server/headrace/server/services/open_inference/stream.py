"""ModelStreamInfer: one request or response a message. Responses come as requests finish."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import HeadraceError
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.trace import status_of
from headrace.server.services.open_inference.messages import (
    decode,
    encode,
    is_heavy,
    on_stream,
    parse,
    parse_offloaded,
)
from headrace.server.services.streams.in_flight import Tasks
from headrace.server.services.streams.request_stream import RequestStream, Streams
from headrace.server.services.streams.result_sizes import SMALL, ExpectedSize, shapes_of
from headrace.server.serving.call import InferCall
from headrace.server.serving.layouts import CallLayouts
from headrace.server.serving.offload import offload, texts
from headrace.server.serving.serving import Serving
from headrace.server.serving.turns import Turn, Turns
from headrace.server.transport.boundary import Boundary
from headrace.server.transport.shares import Shares
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


class ModelStreams(Streams):
    """The open streams of one server. Belongs to the event loop's thread.

    Args:
        layouts: read requests that are like earlier ones.
        max_in_flight, memory: the same as in `Streams`.
    """

    def __init__(
        self,
        serving: Serving,
        layouts: CallLayouts,
        boundary: Boundary,
        max_in_flight: int,
        memory: Shares,
    ) -> None:
        super().__init__(boundary, max_in_flight, memory, serving.networks)
        self.serving = serving
        self.layouts = layouts

    def _stream(self, context: Any) -> RequestStream:
        return _Stream(self, context)


class _Stream(RequestStream):
    method: ClassVar[str] = "ModelStreamInfer"
    results_a_message: ClassVar[int] = 1

    def __init__(self, owner: ModelStreams, context: Any) -> None:
        super().__init__(owner, context)
        self._serving, self._layouts = owner.serving, owner.layouts
        self._keys = itertools.count()  # ids may be empty, and may repeat
        self._tasks: Tasks[bytes] = Tasks()
        self._turns = Turns()
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
        call = request.call
        if call is None or any(each.region is not None for each in call.wanted.values()):
            return SMALL
        shapes = partial(shapes_of, call.inputs)
        return self._sizes.expected(call.network, call.version, call.outputs, shapes)

    def _begin(self, request: Incoming, key: Hashable) -> Callable[[HeadraceError], object]:
        call = request.call
        if call is None:
            assert request.error is not None
            raise request.error
        ended = partial(self._ended, key, request.id)
        sequence, turn = call.sequence_id, None
        network = self._serving.find_elsewhere(call.network, self._context, sequence)
        waits = bool(network) or call.uses_regions or self._turns.waits(sequence)
        if sequence and waits:
            turn = self._turns.take(sequence)
        if network:
            work = self._pass_on(network, request.data, sequence, turn)
        else:
            work = self._infer(call, turn)
        return self._tasks.begin(work, ended, turn)

    async def _infer(self, call: InferCall, turn: Turn | None) -> bytes:
        result = await self._serving.run(call, self._context, turn)
        write = partial(encode, result, _IS_FINAL)
        return on_stream(await offload(write, texts(result.outputs.values())))

    async def _pass_on(self, network: str, data: bytes, sequence: str, turn: Turn | None) -> bytes:
        if turn is not None:
            await turn.comes()
        elsewhere = self._serving.elsewhere
        assert elsewhere is not None
        reply = await elsewhere.model_infer(network, data, self._context, sequence)
        return on_stream(reply + _FINAL_FIELDS)

    def _success(self, _name: str, outcome: bytes) -> tuple[bytes, int]:
        return outcome, len(outcome)

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
