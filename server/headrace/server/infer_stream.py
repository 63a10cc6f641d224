"""One InferStream: many requests in flight, results in the order in which they finish.

The stream's own task reads; while there are results another one writes them, all that are ready as
one message, so that what finishes during a write shares the next one. A full stream is not read
from, so that the caller feels it (flow control), and a request that fails ends itself alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import Any

import grpc

from headrace.runtime.allocator import release_memory
from headrace.runtime.errors import (
    Cancelled,
    HeadraceError,
    InvalidArgument,
    ResourceExhausted,
    Stopped,
    Unavailable,
)
from headrace.runtime.job import Job
from headrace.server.boundary import Boundary, describe, ended_code
from headrace.server.inference import Inference, build_reply, cancel, encode_small
from headrace.server.shares import Shares
from headrace.wire.codec import CodecError
from headrace.wire.errors import to_status
from headrace.wire.request import decode_request
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
_STEP_BYTES = 1 << 16
_OF_WHAT_IS_LEFT = 1 / 8


class InferStreams:
    """The open streams of one server. Belongs to the event loop's thread.

    Args:
        max_in_flight: requests of one stream at once, those whose results are unwritten included.
        max_unread_bytes: of results that all streams hold until their callers have read them. A
            connection gets a ninth of it at most, and a result for which there is no room is an
            error instead.
    """

    def __init__(
        self, inference: Inference, boundary: Boundary, max_in_flight: int, max_unread_bytes: int
    ) -> None:
        self.inference = inference
        self.boundary = boundary
        self.max_in_flight = max_in_flight
        self.unread = Shares(max_unread_bytes, _OF_WHAT_IS_LEFT)
        self._open: set[_Stream] = set()
        self._peak_bytes = 0  # unread, since memory was last given back

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

    def hold(self, peer: str, size: int) -> bool:
        """Whether there is room for so many bytes more of results that the peer has not read."""
        if not self.unread.take(peer, size):
            return False
        self._peak_bytes = max(self._peak_bytes, self.unread.taken)
        return True

    def _give_memory_back(self) -> None:
        """Has the C library return what was held, a moment later: gRPC still has some of it."""
        if self._peak_bytes - self.unread.taken >= _WORTH_RELEASING_BYTES:
            self._peak_bytes = self.unread.taken
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
        self._peer = context.peer()
        self._in_flight: dict[str, Job | None] = {}
        self._results: deque[tuple[EncodedResult, int]] = deque()  # and the bytes that each holds
        self._unread_bytes = 0  # of results, what is being written included
        self._held_bytes = 0  # of the room for all streams
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
        self._unread_bytes = 0
        if self._held_bytes:
            self._owner.unread.give_back(self._peer, self._held_bytes)
            self._held_bytes = 0

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
            requests, cancelled = parse_infer_stream_request(data)
            for identifier in cancelled:
                job = self._in_flight.get(identifier)
                if job is not None:
                    job.token.cancel(Cancelled("the caller cancelled the request"))
            for request in requests:
                while self._is_full():
                    self._write()
                    await self._wait_for_change()
                self._reading = True
                try:
                    self._start(request)
                finally:
                    self._reading = False
            self._write()

    def _is_full(self) -> bool:
        """Whether the next request has to wait: for a result of one in flight, or for the caller to
        read what there is. What is in flight is taken to become as large as the largest so far."""
        waiting = len(self._in_flight) + len(self._results)
        if waiting >= self._owner.max_in_flight:
            return True
        expected = self._unread_bytes + len(self._in_flight) * self._largest_bytes
        return bool(waiting or self._writing) and expected > self._owner.unread.allowance

    def _start(self, request: StreamRequest) -> None:
        identifier = request.message.id
        if not identifier or identifier in self._in_flight:
            problem = "is in flight on this stream already" if identifier else "is empty"
            self._fail(
                identifier,
                InvalidArgument(f"{problem}; every request on a stream has its own", field="id"),
            )
            return
        self._in_flight[identifier] = None

        def deliver(job: Job) -> None:
            self._deliver(identifier, job)

        try:
            self._owner.boundary.refuse_if_draining()
            inference, remaining = self._owner.inference, self._context.time_remaining()
            done = partial(inference.sink.put, deliver)
            job = inference.start(*decode_request(*request), remaining, done)
        except (HeadraceError, CodecError) as error:
            self._in_flight.pop(identifier, None)
            self._fail(identifier, error)
            return
        if identifier in self._in_flight:
            self._in_flight[identifier] = job

    def _deliver(self, identifier: str, job: Job) -> None:
        self._in_flight.pop(identifier, None)
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
        """Keeps a result until the caller has read it. A stream takes its part of the room for all
        in steps, so that a tiny result costs no book-keeping."""
        size = len(result.reply or b"") + sum(
            memoryview(part).nbytes for part in result.attachments
        )
        lacking = self._unread_bytes + size - self._held_bytes
        if lacking > 0:
            step = max(lacking, _STEP_BYTES)
            if not self._owner.hold(self._peer, step):
                raise ResourceExhausted(
                    f"there is no room for {size} bytes beside the results that callers have not "
                    "read (--max-unread-bytes); read results while you send requests, or have "
                    "fewer in flight"
                )
            self._held_bytes += step
        self._unread_bytes += size
        self._largest_bytes = max(self._largest_bytes, size)
        self._results.append((result, size))

    def _give_back(self, size: int) -> None:
        self._unread_bytes -= size
        spare = self._held_bytes - self._unread_bytes
        if spare > _STEP_BYTES:
            self._owner.unread.give_back(self._peer, spare - _STEP_BYTES)
            self._held_bytes -= spare - _STEP_BYTES

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
                    _log.debug("a reply found no caller any more: %s", error)
                    self.forget_results()
                else:
                    if not self.closed.is_set():  # else all has been given back
                        self._give_back(size)
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
        while self._in_flight or self._results or self._writing:
            self._write()
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _end_if_idle(self) -> None:
        idle = not self._in_flight and not self._results and not self._writing
        if self._closing and idle and self._task is not None and not self.closed.is_set():
            self._task.cancel()


def encode_result(identifier: str, job: Job) -> EncodedResult:
    """The result of a completed job."""
    small = encode_small(identifier, job)
    if small is not None:
        return EncodedResult(identifier, small)
    reply, parts = build_reply(identifier, job)
    return EncodedResult(identifier, reply.SerializeToString(), parts)
