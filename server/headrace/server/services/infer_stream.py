"""One InferStream: many requests in flight, results in the order in which they finish.

The stream's own task reads; while there are results another one writes them, all that are ready as
one message, so that what finishes during a write shares the next one. A full stream is not read
from, so that the caller feels it (flow control), and a request that fails ends itself alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import grpc

from headrace.runtime.errors import (
    Cancelled,
    HeadraceError,
    InvalidArgument,
    Stopped,
    Unavailable,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.system.allocator import release_memory
from headrace.server.services.inference import Inference, build_reply, cancel, encode_small
from headrace.server.services.stream_results import Results, no_room
from headrace.server.transport.boundary import Boundary, describe, ended_code
from headrace.server.transport.shares import Memory, Shares
from headrace.wire.codec import CodecError
from headrace.wire.errors import to_status
from headrace.wire.request import Decoded
from headrace.wire.shared_memory import names_regions
from headrace.wire.stream import (
    EncodedResult,
    StreamRequest,
    parse_infer_stream_request,
    serialize_infer_stream_reply,
)

_log = logging.getLogger(__name__)

_METHOD = "InferStream"
_WORTH_RELEASING_BYTES = 64 << 20
_RELEASE_SECONDS = 1.0
_OF_WHAT_IS_LEFT = 1 / 8


class InferStreams:
    """The open streams of one server. Belongs to the event loop's thread.

    Args:
        max_in_flight: requests of one stream at once, those whose results are unwritten included.
        max_stream_bytes: of requests in flight and of results that their callers have not read yet,
            for all streams. A connection gets a ninth of it at most. A stream that has its share is
            not read from; a request or result for which there is no room is refused.
    """

    def __init__(
        self, inference: Inference, boundary: Boundary, max_in_flight: int, max_stream_bytes: int
    ) -> None:
        self.inference = inference
        self.boundary = boundary
        self.max_in_flight = max_in_flight
        self.memory = Shares(max_stream_bytes, _OF_WHAT_IS_LEFT)
        self._open: set[_Stream] = set()

    async def serve(self, context: Any) -> None:
        """Handles one call from its first message to its last reply."""
        stream = _Stream(self, context)
        self._open.add(stream)
        try:
            await stream.run()
        finally:
            self._open.discard(stream)
            stream.results.forget()
            self._give_memory_back()

    def _give_memory_back(self) -> None:
        """Has the C library return what was held, a moment later: gRPC still has some of it."""
        if self.memory.peak - self.memory.taken >= _WORTH_RELEASING_BYTES:
            self.memory.peak = self.memory.taken
            loop = asyncio.get_running_loop()
            loop.call_later(_RELEASE_SECONDS, loop.run_in_executor, None, release_memory)

    async def drain(self) -> None:
        """Waits until every request in flight has been answered, then ends the streams.

        Cancelled, it cancels the requests, whose answers then end the streams.
        """
        streams = list(self._open)
        for stream in streams:
            stream.close_when_idle()
        try:
            await asyncio.gather(*(stream.closed.wait() for stream in streams))
        except asyncio.CancelledError:
            for stream in streams:
                stream.cancel_all(Stopped("the server shut down and its grace period is over"))
            raise


class _Stream:
    def __init__(self, owner: InferStreams, context: Any) -> None:
        self._owner = owner
        self._context = context
        self._in_flight: dict[str, CancelToken | None] = {}
        self._in_regions: set[asyncio.Task[None]] = (
            set()
        )  # requests in flight, which asyncio forgets
        self._memory = Memory(owner.memory, context.peer())
        self.results = Results(self._memory)
        self._reserved: dict[str, int] = {}  # bytes, for the requests in flight and their results
        self._reading = False  # a message's requests are being started; results wait for the last
        self._writing = False
        self._changed = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[Any] | None = None
        self._writer: asyncio.Task[None] | None = None
        self.closed = asyncio.Event()

    async def run(self) -> None:
        self._task = asyncio.current_task()
        try:
            await self._read()
            self._task = None  # the caller has ended the stream, which needs no closing any more
            await self._settle()
        except asyncio.CancelledError:
            if not self._closing:
                expired = ended_code(self._context) == "DEADLINE_EXCEEDED"
                for token in list(self._in_flight.values()):
                    if token is not None:
                        cancel(token, expired=expired)
                raise
            if self._task is not None:
                self._task.uncancel()
            await self._settle()
            raise Unavailable("the server is shutting down; use another one") from None
        except Exception:
            self.closed.set()  # what comes from now on is not written any more
            self.cancel_all(Cancelled("the caller's stream has ended by an error"))
            self._in_flight.clear()
            await self._settle()  # for gRPC takes no status beside a message
            raise
        finally:
            self.closed.set()

    def close_when_idle(self) -> None:
        """Ends the stream once nothing is in flight on it; new requests are refused meanwhile."""
        self._closing = True
        self._end_if_idle()

    def cancel_all(self, error: HeadraceError) -> None:
        """Cancels everything in flight."""
        for token in list(self._in_flight.values()):
            if token is not None:
                token.cancel(error)

    async def _read(self) -> None:
        while True:
            data = await self._context.read()
            if data is grpc.aio.EOF:
                return
            requests, cancelled = self._requests(data)
            for identifier in cancelled:
                token = self._in_flight.get(identifier)
                if token is not None:
                    token.cancel(Cancelled("the caller cancelled the request"))
            for request in requests:
                size = len(data) // len(requests) + self.results.largest_bytes
                while not (room := self._has_room(size)) and self._is_busy():
                    self._write()
                    await self._wait_for_change()
                self._reading = True
                try:
                    self._start(request, size if room else None)
                finally:
                    self._reading = False
            self._write()

    def _requests(self, data: bytes) -> tuple[Sequence[StreamRequest | Decoded], Sequence[str]]:
        """The requests in a message, decoded already if all are like earlier ones, and the ids to
        cancel."""
        known = self._owner.inference.layouts.read_stream(data)
        return parse_infer_stream_request(data) if known is None else (known, ())

    def _has_room(self, size: int) -> bool:
        """Whether a request of so many bytes, its result included, may start, and then has them."""
        waiting = len(self._in_flight) + len(self.results)
        return waiting < self._owner.max_in_flight and self._memory.use(size)

    def _start(self, request: StreamRequest | Decoded, reserved: int | None) -> None:
        said = request.request if isinstance(request, Decoded) else request.message
        identifier = said.id
        if reserved is None:
            self._fail(identifier, no_room("the request"))
            return
        if not identifier or identifier in self._in_flight:
            self._memory.free(reserved)
            problem = "is in flight on this stream already" if identifier else "is empty"
            self._fail(
                identifier,
                InvalidArgument(f"{problem}; every request on a stream has its own", field="id"),
            )
            return
        self._reserved[identifier] = reserved
        self._in_flight[identifier] = None

        def deliver(job: Job) -> None:
            self._deliver(identifier, job)

        try:
            self._owner.boundary.refuse_if_draining()
            if isinstance(request, StreamRequest) and names_regions(request.message):
                self._start_in_regions(identifier, request)
                return
            inference, remaining = self._owner.inference, self._context.time_remaining()
            done = partial(inference.sink.put, deliver)
            decoded = request if isinstance(request, Decoded) else inference.decode(*request)
            job = inference.start(*decoded, remaining, done)
        except (HeadraceError, CodecError) as error:
            self._forget(identifier)
            self._fail(identifier, error)
            return
        if identifier in self._in_flight:
            self._in_flight[identifier] = job.token

    def _start_in_regions(self, identifier: str, request: StreamRequest) -> None:
        token = self._in_flight[identifier] = CancelToken()
        run = self._infer_in_regions(identifier, request, token)
        task = asyncio.get_running_loop().create_task(run)
        self._in_regions.add(task)
        task.add_done_callback(self._in_regions.discard)

    async def _infer_in_regions(
        self, identifier: str, request: StreamRequest, token: CancelToken
    ) -> None:
        started = time.monotonic()
        inference = self._owner.inference
        try:
            reply, parts = await inference.infer_in_regions(
                identifier, *request, self._context, token
            )
            result = EncodedResult(identifier, reply.SerializeToString(), parts)
        except Exception as error:  # noqa: BLE001 - any error is this request's result
            self._answer(identifier, error, time.monotonic() - started)
        else:
            self._answer(identifier, result, time.monotonic() - started)

    def _forget(self, identifier: str) -> None:
        self._in_flight.pop(identifier, None)
        self._memory.free(self._reserved.pop(identifier, 0))

    def _deliver(self, identifier: str, job: Job) -> None:
        if self.closed.is_set():
            self._forget(identifier)
            return  # the caller is gone, and this the outcome of its cancelled request
        result: EncodedResult | BaseException
        try:
            result = job.take_error() if job.error is not None else encode_result(identifier, job)
        except Exception as error:  # noqa: BLE001 - any error is this request's result
            result = error
        self._answer(identifier, result, job.queue_seconds + job.execution_seconds)

    def _answer(
        self, identifier: str, result: EncodedResult | BaseException, seconds: float
    ) -> None:
        """Ends a request with a result or an error."""
        self._forget(identifier)
        if self.closed.is_set():
            return
        try:
            if isinstance(result, BaseException):
                raise result
            self.results.add(result)
        except Exception as error:  # noqa: BLE001 - any error is this request's result
            self._fail(identifier, error, seconds)
        else:
            self._owner.boundary.log_ended(_METHOD, "OK", seconds, identifier)
        self._changed.set()
        if not self._reading:
            self._write()

    def _fail(self, identifier: str, error: BaseException, seconds: float = 0.0) -> None:
        details = describe(error, where=_METHOD, request=identifier)
        self.results.add_error(EncodedResult(identifier, error=to_status(details)))
        code, said = details.code.name, details.message
        self._owner.boundary.log_ended(_METHOD, code, seconds, identifier, said)

    def _write(self) -> None:
        """Sees to it that what is ready gets written."""
        if self.results and not self._writing:
            self._writing = True
            self._writer = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self.results:
                batch, size = self.results.take()
                message = serialize_infer_stream_reply(batch)
                del batch
                self._changed.set()
                try:
                    await self._context.write(message)
                except Exception as error:  # noqa: BLE001 - gRPC's own class is internal to it
                    # The caller went away; gRPC cancels the stream's task for that as well.
                    _log.debug("the caller of a stream has gone: %s", error)
                    self.results.forget()
                else:
                    self._memory.free(size)
        finally:
            self._writing = False
            self._changed.set()
            self._end_if_idle()

    async def _settle(self) -> None:
        """Waits for everything in flight and writes what comes of it."""
        while self._is_busy():
            self._write()
            await self._wait_for_change()

    def _is_busy(self) -> bool:
        return bool(self._in_flight or self.results or self._writing)

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _end_if_idle(self) -> None:
        if (
            self._closing
            and not self._is_busy()
            and self._task is not None
            and not self.closed.is_set()
        ):
            self._task.cancel()


def encode_result(identifier: str, job: Job) -> EncodedResult:
    """The result of a completed job."""
    small = encode_small(identifier, job)
    if small is not None:
        return EncodedResult(identifier, small)
    reply, parts = build_reply(identifier, job)
    return EncodedResult(identifier, reply.SerializeToString(), parts)
