"""ModelStreamInfer: one request or response a message. Responses come as requests finish."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextvars import copy_context
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import Cancelled, HeadraceError
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.trace import status_of
from headrace.server.request_log import JOB
from headrace.server.services.open_inference.call import InferCall
from headrace.server.services.open_inference.messages import read
from headrace.server.services.request_stream import RequestStream, Streams
from headrace.server.services.turns import Turn, Turns
from headrace.server.transport.boundary import Boundary
from headrace.server.transport.shares import Shares
from headrace.wire.codec import CodecError
from headrace.wire.errors import ErrorDetails

FINAL: Final = "triton_final_response"
"""A parameter of each response on a stream. A request has only one response, its last."""

ERRORS_AS_STATUS: Final = "triton_grpc_error"
"""The metadata key with which a client asks that the first error end its stream, as a status."""

Infer: TypeAlias = Callable[
    [InferCall, Any, dict[str, Any], Turn | None], Coroutine[Any, Any, bytes]
]
"""A function from a call, its context, the response's parameters and the call's turn to a
serialised response."""


class Asked(NamedTuple):
    """A request that has been read, or its error."""

    id: str
    call: InferCall | None
    error: CodecError | None = None


class ModelStreams(Streams):
    """The open streams of one server. Belongs to the event loop's thread.

    Args:
        max_in_flight, memory: the same as in `Streams`.
    """

    def __init__(
        self, infer: Infer, boundary: Boundary, max_in_flight: int, memory: Shares
    ) -> None:
        super().__init__(boundary, max_in_flight, memory)
        self._infer = infer

    def _stream(self, context: Any) -> RequestStream:
        return _Stream(self, context, self._infer)


class _Stream(RequestStream):
    method: ClassVar[str] = "ModelStreamInfer"
    results_a_message: ClassVar[int] = 1

    def __init__(self, owner: Streams, context: Any, infer: Infer) -> None:
        super().__init__(owner, context)
        self._infer = infer
        self._keys = itertools.count()  # ids may be empty, and may repeat
        self._tasks: set[asyncio.Task[bytes]] = set()  # asyncio would lose them
        self._turns = Turns()
        metadata = dict(context.invocation_metadata() or ())
        self._errors_as_status = metadata.get(ERRORS_AS_STATUS) == "true"

    async def _requests(self, data: bytes) -> Sequence[Asked]:
        message, decoding = await read(data)
        try:
            return [Asked(message.id, await decoding)]
        except CodecError as error:
            return [Asked(message.id, None, error)]

    def _name(self, request: Asked) -> str:
        return request.id

    def _key(self, _name: str) -> Hashable:
        return next(self._keys)

    def _begin(self, request: Asked, key: Hashable) -> Callable[[HeadraceError], object]:
        call = request.call
        if call is None:
            assert request.error is not None
            raise request.error
        reasons: list[HeadraceError] = []
        started = time.monotonic()
        turn = None
        if call.sequence is not None and (call.uses_regions or self._turns.waits(call.sequence.id)):
            turn = self._turns.take(call.sequence.id)
        infer = self._infer(call, self._context, {FINAL: True}, turn)
        own = copy_context()
        task = asyncio.get_running_loop().create_task(infer, context=own)
        self._tasks.add(task)

        def ended(_: object) -> None:
            self._tasks.discard(task)
            if turn is not None:
                turn.over()
            error: BaseException | None
            if task.cancelled():
                error = reasons[0] if reasons else Cancelled("the caller cancelled the request")
            else:
                error = task.exception()
            outcome = task.result() if error is None else None
            seconds = time.monotonic() - started
            self._ended(key, request.id, outcome, error, seconds, own.get(JOB))

        def cancel(error: HeadraceError) -> None:
            reasons.append(error)
            task.cancel()

        task.add_done_callback(ended)
        return cancel

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
