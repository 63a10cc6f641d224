"""ModelStreamInfer: one request or response a message. Responses come as requests finish."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import HeadraceError
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.trace import status_of
from headrace.server.access.networks import Networks
from headrace.server.elsewhere import Elsewhere
from headrace.server.services.open_inference.call import InferCall
from headrace.server.services.open_inference.messages import on_stream, read
from headrace.server.services.open_inference.short import CallLayouts
from headrace.server.services.streams.in_flight import Tasks
from headrace.server.services.streams.request_stream import RequestStream, Streams
from headrace.server.services.streams.result_sizes import SMALL, Expected, shapes_of
from headrace.server.services.streams.turns import Turn, Turns
from headrace.server.transport.boundary import Boundary
from headrace.server.transport.shares import Shares
from headrace.wire.codec import CodecError
from headrace.wire.errors import ErrorDetails

FINAL: Final = "triton_final_response"
"""A parameter of each response on a stream. A request has only one response, its last."""

ERRORS_AS_STATUS: Final = "triton_grpc_error"
"""The metadata key with which a client asks that the first error end its stream, as a status."""

_FINAL_FIELDS: Final = oip.ModelInferResponse(
    parameters={FINAL: oip.InferParameter(bool_param=True)}
).SerializeToString()

Infer: TypeAlias = Callable[
    [InferCall, Any, dict[str, Any], Turn | None], Coroutine[Any, Any, bytes]
]
"""A function from a call, its context, the response's parameters and the call's turn to a
serialised response."""


class Asked(NamedTuple):
    """A request that has been read, or its error."""

    id: str
    data: bytes
    call: InferCall | None
    error: CodecError | None = None


class ModelStreams(Streams):
    """The open streams of one server. Belongs to the event loop's thread.

    Args:
        layouts: read requests that are like earlier ones.
        max_in_flight, memory, networks: the same as in `Streams`.
        elsewhere: takes the requests to networks that other servers have.
    """

    def __init__(
        self,
        infer: Infer,
        layouts: CallLayouts,
        boundary: Boundary,
        max_in_flight: int,
        memory: Shares,
        networks: Networks,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        super().__init__(boundary, max_in_flight, memory, networks)
        self.infer = infer
        self.layouts = layouts
        self.elsewhere = elsewhere

    def _stream(self, context: Any) -> RequestStream:
        return _Stream(self, context)


class _Stream(RequestStream):
    method: ClassVar[str] = "ModelStreamInfer"
    results_a_message: ClassVar[int] = 1

    def __init__(self, owner: ModelStreams, context: Any) -> None:
        super().__init__(owner, context)
        self._infer = owner.infer
        self._layouts = owner.layouts
        self._networks, self._elsewhere = owner.networks, owner.elsewhere
        self._keys = itertools.count()  # ids may be empty, and may repeat
        self._tasks: Tasks[bytes] = Tasks()
        self._turns = Turns()
        metadata = dict(context.invocation_metadata() or ())
        self._errors_as_status = metadata.get(ERRORS_AS_STATUS) == "true"

    def _requests(self, data: bytes) -> list[Asked] | Awaitable[list[Asked]]:
        call = self._layouts.read(data)
        return self._parsed(data) if call is None else [Asked(call.id, data, call)]

    async def _parsed(self, data: bytes) -> list[Asked]:
        message, decoding = await read(data)
        try:
            call = await decoding
        except CodecError as error:
            return [Asked(message.id, data, None, error)]
        self._layouts.learn(data, call)
        return [Asked(message.id, data, call)]

    def _name(self, request: Asked) -> str:
        return request.id

    def _key(self, _name: str) -> Hashable:
        return next(self._keys)

    def _expected(self, request: Asked) -> Expected:
        call = request.call
        if call is None or any(each.region is not None for each in call.outputs):
            return SMALL
        outputs = [each.name for each in call.outputs]
        shapes = partial(shapes_of, call.inputs)
        return self._sizes.expected(call.model, call.version, outputs, shapes)

    def _begin(self, request: Asked, key: Hashable) -> Callable[[HeadraceError], object]:
        call = request.call
        if call is None:
            assert request.error is not None
            raise request.error
        ended = partial(self._ended, key, request.id)
        sequence = call.sequence.id if call.sequence is not None else ""
        network = self._find(call.model, sequence)
        if network:
            turn = self._turns.take(sequence) if sequence else None
            work = self._pass_on(network, request.data, sequence, turn)
            return self._tasks.begin(work, ended, turn)
        turn = None
        if call.sequence is not None and (call.uses_regions or self._turns.waits(call.sequence.id)):
            turn = self._turns.take(call.sequence.id)
        infer = self._infer(call, self._context, {FINAL: True}, turn)
        return self._tasks.begin(infer, ended, turn)

    def _find(self, model: str, sequence: str) -> str:
        """The full name of a network that another server has."""
        if not self._elsewhere:
            return ""
        return self._elsewhere.find(self._networks.names(model), self._context, sequence)

    async def _pass_on(self, network: str, data: bytes, sequence: str, turn: Turn | None) -> bytes:
        if turn is not None:
            await turn.comes()
        assert self._elsewhere is not None
        context = self._context
        return on_stream(
            await self._elsewhere.model_infer(network, data, context, sequence) + _FINAL_FIELDS
        )

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
