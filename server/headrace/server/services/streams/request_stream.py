"""Streams of requests: many are in flight, and results come in the order in which they finish.

Requests start, and results are written, in the callback that has read the requests. The stream's
own task waits for its end, or for room. While flow control holds results back, another task writes
them. The server does not read from a full stream, so that flow control slows the caller. A request
that fails does not end the others.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Generator, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar, Final

from headrace.runtime.errors import Cancelled, HeadraceError, ShuttingDown, Stopped
from headrace.runtime.execution.job import Job
from headrace.server.access.gate import recheck, when_ended
from headrace.server.access.identity import CALLER, holder_of
from headrace.server.access.networks import Networks
from headrace.server.request_log import RequestRecord, network_of
from headrace.server.services.streams.in_flight import NOTHING, Cancel, InFlight, Reservation
from headrace.server.services.streams.result_sizes import ExpectedSize, NetworkResults
from headrace.server.services.streams.result_writer import COPIES, ResultWriter, no_room
from headrace.server.serving.completion_sink import left
from headrace.server.tracing.tracing import Headers
from headrace.server.transport.boundary import Boundary
from headrace.server.transport.shares import Shares, StreamMemory, release_soon
from headrace.server.transport.statuses import describe, ended_code
from headrace.wire.errors import ErrorDetails


class _NextTurn:
    """Waits for the loop's next turn."""

    def __await__(self) -> Generator[None, None, None]:
        yield


_NEXT_TURN: Final = _NextTurn()
_new: Final = tuple.__new__  # makes a NamedTuple without a call of Python code

_AT_ONCE: Final = 64
"""How many requests start in one turn of the event loop. A tiny one runs in it, for up to 200 us,
and a message may bring thousands."""


class RequestStreams(ABC):
    """The open streams of one method. Belongs to the event loop's thread.

    Args:
        max_in_flight: the most requests of one stream at once. A request counts until its result
            is written.
        memory: the bytes that all streams together may hold in requests in flight and in results
            that their callers have not read yet. The server does not read from a stream that has
            used up its share. It refuses a request or result that has no room.
        networks: those that requests ask.
    """

    def __init__(
        self, boundary: Boundary, max_in_flight: int, memory: Shares, networks: Networks
    ) -> None:
        self.boundary = boundary
        self.max_in_flight = max_in_flight
        self.memory = memory
        self.networks = networks
        self._open: set[RequestStream] = set()

    @abstractmethod
    def _stream(self, context: Any) -> RequestStream:
        """The stream of a call."""

    async def serve(self, context: Any) -> None:
        """Handles one call from its first message to its last reply."""
        stream = self._stream(context)
        self._open.add(stream)
        try:
            await stream.run()
        finally:
            self._open.discard(stream)
            stream.forget_results()
            release_soon(self.memory)

    async def drain(self) -> None:
        """Waits until every request in flight has been answered, then ends the streams.

        If this call is cancelled, it cancels the requests. Their answers then end the streams.
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


class RequestStream(ABC):
    """One stream. The hooks define requests and results for a protocol.

    A request in flight has a key that is unique on this stream. It also has a name, which its
    caller and the log use.
    """

    method: ClassVar[str]
    results_a_message: ClassVar[int]

    def __init__(self, owner: RequestStreams, context: Any) -> None:
        self._owner = owner
        self._context = context
        self._peer, self._caller = context.peer(), CALLER.get()
        self._memory = StreamMemory(owner.memory, holder_of(self._peer))
        self._in_flight = InFlight(self._memory, owner.boundary.meter(context))
        self._spans = owner.boundary.request_spans(context)
        self._results = ResultWriter(
            context, self._memory, self._message, self.results_a_message, self._wrote
        )
        self._sizes = NetworkResults(owner.networks, owner.memory.capacity)
        self._reading = False  # a message's requests are starting; results wait until all have
        self._waiter: asyncio.Future[None] | None = None  # the task, for room or for results
        self._closing = False
        self._ends = False  # the server ends the stream, because it is closing and idle
        self._fatal: BaseException | None = None
        self._task: asyncio.Task[Any] | None = None
        self.closed = asyncio.Event()

    # -- hooks of the protocol --

    @abstractmethod
    def _requests(self, data: bytes) -> list[Any] | Awaitable[list[Any]]:
        """The requests in a message. Those of one that takes long to read come later."""

    @abstractmethod
    def _name(self, request: Any) -> str:
        """The name that the caller gave a request."""

    @abstractmethod
    def _key(self, name: str) -> Hashable:
        """The key of a request that is about to start.

        Raises:
            InvalidArgument: the request cannot start under its name.
        """

    @abstractmethod
    def _expected(self, request: Any) -> ExpectedSize:
        """What is known of a request's result."""

    def _trace(self, _request: Any) -> Headers | None:
        """The trace context that a request brings itself. None if the stream's own counts."""
        return None

    @abstractmethod
    def _begin(self, request: Any, key: Hashable) -> Cancel:
        """Starts a request and returns a function that cancels it. Its end calls `_ended`."""

    @abstractmethod
    def _success(self, name: str, outcome: Any) -> tuple[Any, int]:
        """The result of a request that has succeeded, and the result's bytes.

        `outcome` is the same as in `_ended`.
        """

    @abstractmethod
    def _failure(self, name: str, details: ErrorDetails) -> Any:
        """The result of a request that has failed."""

    @abstractmethod
    def _message(self, results: Sequence[Any]) -> bytes:
        """The reply with these results, at most `results_a_message` of them."""

    # -- common to all protocols --

    async def run(self) -> None:
        self._task = asyncio.current_task()
        when_ended(self.fail_all)
        try:
            await self._context.deliver(self._take)
            self._task = None  # the caller has ended the stream, so it needs no closing
            await self._settle()
            if self._fatal is not None:
                raise self._fatal
        except asyncio.CancelledError:
            if self._fatal is not None:
                await self._give_up()
                raise self._fatal from None
            if not self._ends:  # the caller has left, perhaps while the server drains
                self.cancel_all(left(expired=ended_code(self._context) == "DEADLINE_EXCEEDED"))
                raise
            if self._task is not None:
                self._task.uncancel()
            await self._settle()
            raise ShuttingDown() from None
        except Exception:
            await self._give_up()
            raise
        finally:
            self.closed.set()

    async def _give_up(self) -> None:
        """Cancels all requests in flight, and writes the results that were ready before."""
        if self._task is not None and self._fatal is not None:
            self._task.uncancel()
        self.closed.set()  # later results are not written
        self.cancel_all(Cancelled("the caller's stream has ended by an error"))
        self._in_flight.abandon()
        await self._settle()

    def fail_all(self, error: BaseException) -> None:
        """Ends the stream with an error, after all finished results are written."""
        if self._fatal is None:
            self._fatal = error
            if self._task is not None:
                self._task.cancel()

    def forget_results(self) -> None:
        """Drops results that nobody will read."""
        self._results.forget()

    def close_when_idle(self) -> None:
        """Refuses new requests, and ends the stream once no request is in flight."""
        self._closing = True
        self._end_if_idle()

    def cancel_all(self, error: HeadraceError) -> None:
        self._in_flight.cancel_all(error)

    def _take(self, messages: Iterator[bytes]) -> Awaitable[None] | None:
        """Starts the requests of messages. What is ready by then is written at once."""
        self._reading, started = True, 0
        try:
            for data in messages:
                if self._fatal is not None:  # the task is cancelled where it waits
                    return _NEXT_TURN
                recheck()  # as a call of its own would be checked
                requests = self._requests(data)
                if not isinstance(requests, list):
                    return self._start_later(requests, len(data))
                size = len(data) // len(requests) if requests else 0
                left = iter(requests)
                for request in left:
                    if started == _AT_ONCE or not self._start(request, size):
                        return self._start_rest(chain((request,), left), size)
                    started += 1
        finally:
            self._reading = False
        # If results have to wait, the caller wants them, and not that this goes on to read.
        return _NEXT_TURN if self._results.write_now() else None

    async def _start_later(self, requests: Awaitable[list[Any]], size: int) -> None:
        """Starts the requests of a message of `size` bytes."""
        read = await requests
        await self._start_rest(read, size // len(read) if read else 0)

    async def _start_rest(self, requests: Iterable[Any], size: int) -> None:
        """Starts requests of `size` bytes, each when there is room."""
        for count, request in enumerate(requests):
            if count % _AT_ONCE == 0:
                self._results.write()
                await _NEXT_TURN
            if self._fatal is not None:  # as above
                await _NEXT_TURN
            while not self._start(request, size):
                self._results.write()
                await self._wait_for_change()
        self._results.write()  # of those that were refused

    def _reserve(self, request: Any, size: int) -> Reservation | None:
        """Reserves room for a request of `size` bytes and its result. None if it has to wait for
        those in flight.

        Raises:
            ResourceExhausted: there is no room even for the request alone.
        """
        expected = self._expected(request)
        both = size + COPIES * expected.size
        if len(self._in_flight) + len(self._results.ready) >= self._owner.max_in_flight:
            return None
        if self._memory.use(both):
            return _new(Reservation, (both, expected))
        if self._is_busy():
            return None
        # Others have the memory, or the result may be smaller.
        if self._memory.use(size):
            return Reservation(size, expected)
        raise no_room("the request")

    def _start(self, request: Any, size: int) -> bool:
        """Starts a request of `size` bytes. Returns False if it has to wait for those in flight."""
        name = self._name(request)
        reserved: Reservation | None = None
        try:
            reserved = self._reserve(request, size)
            if reserved is None:
                return False
            key = self._key(name)
            self._in_flight.begin(key, reserved)
        except HeadraceError as error:
            if reserved is not None:
                self._memory.free(reserved.size)
            self._fail(name, error)
            return True
        if self._spans is not None:
            self._spans.begin(key, self._trace(request))
        try:
            self._owner.boundary.refuse_if_draining()
            cancel = self._begin(request, key)
        except Exception as error:  # noqa: BLE001 - any error is this request's result
            self._ended(key, name, None, error, 0.0, None)
            return True
        if self._spans is not None:
            self._spans.pause()
        self._in_flight.started(key, cancel)
        return True

    def _ended(
        self,
        key: Hashable,
        name: str,
        outcome: Any,
        error: BaseException | None,
        seconds: float,
        job: Job | None,
    ) -> None:
        """Takes a request's outcome or `error`, its duration, and its job if it has one."""
        reserved = self._in_flight.end(key)
        spans, code = self._spans, "OK"
        if spans is not None:
            spans.resume(key)
        try:
            if self.closed.is_set():  # the caller has left, and its request was cancelled
                code = "CANCELLED"
                return
            if error is not None:
                raise error
            result, size = self._success(name, outcome)
            reserved.expected.came(size)
            self._results.hold(result, size, reserved.size)
            reserved = NOTHING
        except Exception as failure:  # noqa: BLE001 - any error is this request's result
            code = self._fail(name, failure, seconds, job)
        else:
            self._tell(code, seconds, name, "", job)
        finally:
            if reserved.size:
                self._memory.free(reserved.size)
            if spans is not None:
                spans.end(key, name, code)
        if self._waiter is not None:
            self._wake()
        if not self._reading:
            self._results.write()

    def _fail(
        self, name: str, error: BaseException, seconds: float = 0.0, job: Job | None = None
    ) -> str:
        """Makes the error a request's result. Returns the name of its status."""
        details = describe(error, where=self.method, request=name)
        self._results.put(self._failure(name, details))
        code = str(details.code.name)
        self._tell(code, seconds, name, details.message, job, network_of(error))
        return code

    def _tell(
        self, code: str, seconds: float, name: str, said: str, job: Job | None, network: str = ""
    ) -> None:
        """Logs a request that has ended, if it gets a line."""
        log, caller, peer = self._owner.boundary.log, self._caller, self._peer
        if log.wants(code, seconds):
            log.ended(
                RequestRecord(self.method, code, seconds, name, caller, peer, said, job, network)
            )

    def _wrote(self) -> None:
        if self._waiter is not None:
            self._wake()
        if self._closing:
            self._end_if_idle()

    async def _settle(self) -> None:
        """Waits for all requests in flight and writes their results."""
        while self._is_busy():
            self._results.write()
            await self._wait_for_change()

    def _is_busy(self) -> bool:
        return bool(self._in_flight) or self._results.is_busy

    async def _wait_for_change(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        """Wakes the task that waits for a change."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end_if_idle(self) -> None:
        goes_on = self._is_busy() or self.closed.is_set()
        if self._closing and self._task is not None and not goes_on:
            self._ends = True
            self._task.cancel()
