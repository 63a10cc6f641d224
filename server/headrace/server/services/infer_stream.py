"""One InferStream: many requests in flight, results in the order in which they finish.

The stream's own task reads; while there are results another one writes them, all that are ready as
one message, so that what finishes during a write shares the next one. A full stream is not read
from, so that the caller feels it (flow control), and a request that fails ends itself alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import grpc

from headrace.runtime.errors import (
    Cancelled,
    HeadraceError,
    InvalidArgument,
    ResourceExhausted,
    Stopped,
    Unavailable,
)
from headrace.runtime.execution.job import Job
from headrace.runtime.system.allocator import release_memory
from headrace.server.services.inference import Inference, build_reply, cancel, encode_small
from headrace.server.transport.boundary import Boundary, describe, ended_code
from headrace.server.transport.shares import Memory, Shares
from headrace.wire.codec import CodecError
from headrace.wire.errors import to_status
from headrace.wire.request import Decoded
from headrace.wire.stream import (
    EncodedResult,
    StreamRequest,
    parse_infer_stream_request,
    serialize_infer_stream_reply,
)

_log = logging.getLogger(__name__)

_METHOD = "InferStream"
_RESULTS_A_MESSAGE = 64
_BYTES_A_MESSAGE = 1 << 20
_WORTH_RELEASING_BYTES = 64 << 20
_RELEASE_SECONDS = 1.0
_OF_WHAT_IS_LEFT = 1 / 8
_COPIES = 2  # gRPC copies what it writes


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
            stream.forget_results()
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
        self._in_flight: dict[str, Job | None] = {}
        self._results: deque[tuple[EncodedResult, int]] = deque()  # and the bytes that each holds
        self._memory = Memory(owner.memory, context.peer())
        self._reserved: dict[str, int] = {}  # bytes, for the requests in flight and their results
        self._largest_bytes = 0  # of a result so far
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
                for job in list(self._in_flight.values()):
                    if job is not None:
                        cancel(job, expired=expired)
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

    def forget_results(self) -> None:
        """Drops what nobody will read."""
        self._results.clear()
        self._memory.free_all()

    def close_when_idle(self) -> None:
        """Ends the stream once nothing is in flight on it; new requests are refused meanwhile."""
        self._closing = True
        self._end_if_idle()

    def cancel_all(self, error: HeadraceError) -> None:
        """Cancels everything in flight."""
        for job in list(self._in_flight.values()):
            if job is not None:
                job.token.cancel(error)

    async def _read(self) -> None:
        while True:
            data = await self._context.read()
            if data is grpc.aio.EOF:
                return
            requests, cancelled = self._requests(data)
            for identifier in cancelled:
                job = self._in_flight.get(identifier)
                if job is not None:
                    job.token.cancel(Cancelled("the caller cancelled the request"))
            for request in requests:
                size = len(data) // len(requests) + self._largest_bytes
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
        waiting = len(self._in_flight) + len(self._results)
        return waiting < self._owner.max_in_flight and self._memory.use(size)

    def _start(self, request: StreamRequest | Decoded, reserved: int | None) -> None:
        said = request.request if isinstance(request, Decoded) else request.message
        identifier = said.id
        if reserved is None:
            self._fail(identifier, _no_room("the request"))
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
            inference, remaining = self._owner.inference, self._context.time_remaining()
            done = partial(inference.sink.put, deliver)
            decoded = request if isinstance(request, Decoded) else inference.decode(*request)
            job = inference.start(*decoded, remaining, done)
        except (HeadraceError, CodecError) as error:
            self._forget(identifier)
            self._fail(identifier, error)
            return
        if identifier in self._in_flight:
            self._in_flight[identifier] = job

    def _forget(self, identifier: str) -> None:
        self._in_flight.pop(identifier, None)
        self._memory.free(self._reserved.pop(identifier, 0))

    def _deliver(self, identifier: str, job: Job) -> None:
        self._forget(identifier)
        if self.closed.is_set():
            return  # the caller is gone, and this the outcome of its cancelled request
        seconds = job.queue_seconds + job.execution_seconds
        try:
            if job.error is not None:
                raise job.take_error()
            self._hold(encode_result(identifier, job))
        except Exception as error:  # noqa: BLE001 - any error is this request's result
            self._fail(identifier, error, seconds)
        else:
            self._owner.boundary.log_ended(_METHOD, "OK", seconds, identifier)
        self._changed.set()
        if not self._reading:
            self._write()

    def _hold(self, result: EncodedResult) -> None:
        size = len(result.reply or b"") + sum(map(_bytes, result.attachments))
        size *= _COPIES
        self._largest_bytes = max(self._largest_bytes, size)
        if not self._memory.use(size):
            raise _no_room("the result")
        self._results.append((result, size))

    def _fail(self, identifier: str, error: BaseException, seconds: float = 0.0) -> None:
        details = describe(error, where=_METHOD, request=identifier)
        self._results.append((EncodedResult(identifier, error=to_status(details)), 0))
        code, said = details.code.name, details.message
        self._owner.boundary.log_ended(_METHOD, code, seconds, identifier, said)

    def _write(self) -> None:
        """Sees to it that what is ready gets written."""
        if self._results and not self._writing:
            self._writing = True
            self._writer = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._results:
                batch, size = self._take()
                message = serialize_infer_stream_reply(batch)
                del batch
                self._changed.set()
                try:
                    await self._context.write(message)
                except Exception as error:  # noqa: BLE001 - gRPC's own class is internal to it
                    # The caller went away; gRPC cancels the stream's task for that as well.
                    _log.debug("the caller of a stream has gone: %s", error)
                    self.forget_results()
                else:
                    self._memory.free(size)
        finally:
            self._writing = False
            self._changed.set()
            self._end_if_idle()

    def _take(self) -> tuple[list[EncodedResult], int]:
        """Results for one message, and the bytes that they hold."""
        batch: list[EncodedResult] = []
        held = 0
        while self._results and len(batch) < _RESULTS_A_MESSAGE and held < _BYTES_A_MESSAGE:
            result, size = self._results.popleft()
            held += size
            batch.append(result)
        return batch, held

    async def _settle(self) -> None:
        """Waits for everything in flight and writes what comes of it."""
        while self._is_busy():
            self._write()
            await self._wait_for_change()

    def _is_busy(self) -> bool:
        return bool(self._in_flight or self._results or self._writing)

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


def _bytes(part: Any) -> int:
    return memoryview(part).nbytes


def _no_room(what: str) -> ResourceExhausted:
    return ResourceExhausted(
        f"there is no room for {what} beside what this and other connections have in flight or "
        "have not read (--max-stream-bytes); read results while you send requests, or send smaller "
        "ones"
    )
