"""The one place where errors become statuses, and where RPCs are counted.

Every method of the service is wrapped when it is registered, so that a request does not go through
a chain of interceptors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple, NoReturn

from headrace.runtime.errors import InvalidArgument, ResourceExhausted, ShuttingDown
from headrace.runtime.execution.trace import Span
from headrace.runtime.metrics.counters import Counters
from headrace.server.access.certificates import names_of_call
from headrace.server.access.entrance import Entrance, Visit
from headrace.server.access.gate import uncancelled
from headrace.server.access.identity import CALLER, Role, holder_of
from headrace.server.access.quotas import Meter
from headrace.server.access.refusal import reason_of
from headrace.server.request_log import JOB, RequestLog, RequestRecord, network_of
from headrace.server.tracing.tracing import RequestSpans, Tracing
from headrace.server.transport.call import CallOver, IncomingCall
from headrace.server.transport.shares import Shares
from headrace.server.transport.statuses import (
    abort,
    describe,
    ended_code,
    id_metadata,
    request_id_of,
)
from headrace.server.transport.unread import UnreadReplies


class CallLane(NamedTuple):
    """Calls that share slots. Calls of one kind cannot take the slots of another kind.

    Attributes:
        name: the name of the calls in a refusal.
        slots: how many calls may be open at a time.
        work: whether the calls are work. While the server stops, it refuses new work and waits for
            work that has begun.
    """

    name: str
    slots: Shares
    work: bool


class _OpenCalls(set[IncomingCall]):
    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[asyncio.Future[None]] = []

    def discard(self, call: object) -> None:
        super().discard(call)
        if self._waiting and not self:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiting.clear()

    async def wait_empty(self) -> None:
        while self:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting


class Boundary:
    """Wraps the methods of all services. Belongs to the event loop's thread.

    A method reads its message itself. A caller that does not read the reply holds a slot in its
    lane, and gets only a fair share of the slots: a call ends when its status has been sent.

    Args:
        max_calls: the most calls at a time. Streams, watches and probes each have the same limit.
            So calls that callers keep open do not take the slots of others, and a busy server does
            not look like a broken one.
        entrance: what callers go through before their messages are read. None lets everybody in.
        log: gets the requests that have ended.
        tracing: traces calls. None traces nothing.
        max_unread_bytes: the most bytes that single calls' replies have that wait to be read.
    """

    def __init__(
        self,
        counters: Counters,
        max_calls: int,
        entrance: Entrance | None = None,
        log: RequestLog | None = None,
        tracing: Tracing | None = None,
        max_unread_bytes: int = 512 << 20,
    ) -> None:
        self.unread = UnreadReplies(max_unread_bytes)
        self.entrance = entrance
        self.log = log or RequestLog()
        self._tracing = tracing
        self._counters = counters
        self.calls = CallLane("calls", Shares(max_calls), work=True)
        self.streams = CallLane("streams", Shares(max_calls), work=True)
        self.watches = CallLane("watches", Shares(max_calls), work=False)
        self.probes = CallLane("probes", Shares(max_calls), work=False)
        self._active = _OpenCalls()  # work except streams
        self._open = _OpenCalls()  # all others
        self.draining = False

    async def wait_idle(self) -> None:
        """Returns when no work except open streams is in progress, and all its replies are sent.

        New work is refused meanwhile.
        """
        await self._active.wait_empty()

    async def wait_closed(self) -> None:
        """Returns when no call is open, except calls that are being refused."""
        while self._active or self._open:
            await self._active.wait_empty()
            await self._open.wait_empty()

    def refuse_if_draining(self) -> None:
        """
        Raises:
            ShuttingDown: the server is shutting down.
        """
        if self.draining:
            raise ShuttingDown()

    @property
    def knows_callers(self) -> bool:
        """Whether calls need a credential, which has to be checked before their messages come."""
        return self.entrance is not None and self.entrance.checks

    def unary(
        self,
        method: str,
        handler: Callable[[Any, Any], Awaitable[Any]],
        lane: CallLane | None = None,
        role: Role = Role.MANAGE,
        *,
        names_request: bool = False,
    ) -> Callable[[IncomingCall], Awaitable[Any]]:
        """A method with one message and one reply, for a handler of serialised messages.

        Args:
            names_request: whether the reply itself contains the id of its request. Otherwise the
                trailing metadata contain the id.
        """

        lane = lane or self.calls
        return self._method(method, handler, lane, role, reads=True, names_request=names_request)

    def client_stream(
        self, method: str, handler: Callable[[Any], Awaitable[Any]], lane: CallLane, role: Role
    ) -> Callable[[IncomingCall], Awaitable[Any]]:
        """A method with a stream of messages, which the handler reads, and one reply."""
        return self._method(method, handler, lane, role)

    def server_stream(
        self,
        method: str,
        handler: Callable[[Any, Any], AsyncGenerator[bytes, None]],
        lane: CallLane,
        role: Role,
    ) -> Callable[[IncomingCall], Awaitable[Any]]:
        """A method with one message and a stream of replies."""

        async def send(data: Any, context: Any) -> None:
            async with aclosing(handler(data, context)) as replies:
                await write_all(context, replies)

        return self.unary(method, send, lane, role)

    def stream(
        self, method: str, handler: Callable[[Any], Awaitable[None]], lane: CallLane, role: Role
    ) -> Callable[[IncomingCall], Awaitable[Any]]:
        """A bidirectional stream, which counts its own work."""
        return self._method(method, handler, lane, role, active=False, names_request=True)

    def _method(
        self,
        method: str,
        handler: Callable[..., Awaitable[Any]],
        lane: CallLane,
        role: Role,
        *,
        active: bool = True,
        reads: bool = False,
        names_request: bool = False,
    ) -> Callable[[IncomingCall], Awaitable[Any]]:
        """The method that gRPC calls.

        Args:
            active: whether the call is work itself, and not a stream that counts its own work.
            reads: whether the handler takes a message before the context.
        """
        active = active and lane.work
        slots, calls = lane.slots, self._active if active else self._open
        may_be_slow = active and role is not Role.MANAGE
        ended = self._counters.grpc(method)
        entrance, log, unread = self.entrance, self.log, self.unread
        tracing = self._tracing if active else None  # the requests of a stream are traced

        def over(holder: str, context: IncomingCall) -> None:
            calls.discard(context)
            slots.give_back(holder)

        async def call(context: IncomingCall) -> Any:
            code, said, network = "OK", "", ""
            started = time.monotonic()
            peer = context.peer()
            taken = stopped = False
            visit: Visit | None = None
            span: Span | None = None
            error: BaseException | None = None
            try:
                try:
                    # First, so that strangers take no slots and learn nothing of the load.
                    if entrance is not None:
                        names = partial(names_of_call, context)
                        headers = context.invocation_metadata()
                        visit = entrance.enter(headers, names, role, peer, context, stays=active)
                        if visit.call is not None:
                            context.show_credential()
                    if tracing is not None:  # only now, because strangers cause no spans
                        headers = context.invocation_metadata()
                        span = tracing.begin(context.method[1:], headers, started)
                    holder = holder_of(peer)
                    taken = not (self.draining and lane.work) and slots.take(holder)
                    if not taken:
                        self._refuse(lane)
                    calls.add(context)
                    context.when_over(partial(over, holder, context))
                    if not names_request:  # the trailing metadata of an error replace these
                        context.set_trailing_metadata(id_metadata(request_id_of(context)))
                    if not reads:
                        return await handler(context)
                    data = await context.read()
                    if data is None:
                        raise InvalidArgument("the call ended without a message; send one")
                    reply = await handler(data, context)
                    if reply is not None:
                        unread.hold(reply, holder, context)
                    return reply
                except asyncio.CancelledError:
                    error = visit.ended if visit is not None else None
                    if error is None:
                        code = ended_code(context)
                        raise
                    _uncancel()
                except Exception as raised:  # noqa: BLE001 - the boundary maps all of them
                    error = raised
                    # A stream that the server ends when it stops has answered all its requests.
                    stopped = taken and not active and isinstance(raised, ShuttingDown)
                details = describe(error, where=method, request=request_id_of(context))
                code, said = details.code.name, details.message
                network = network_of(error)
            finally:
                if entrance is not None:
                    if visit is not None:
                        entrance.leave(visit)
                    why = (error is not None and reason_of(error)) or ""
                    if why or role is Role.MANAGE:
                        name = request_id_of(context)
                        entrance.record(method, role, peer, code, why, name)
                # Whoever keeps the exception that ends a call keeps this frame.
                data = reply = error = None
                if tracing is not None and span is not None:
                    tracing.end_call(span, code, request_id_of(context))
                ended[code] = ended.get(code, 0) + 1
                seconds = time.monotonic() - started
                if log.wants(code, seconds) and not stopped:
                    name, whose = request_id_of(context), (CALLER.get(), peer)
                    # Not a variable: its job has results, and this frame may be kept.
                    log.ended(
                        RequestRecord(
                            method, code, seconds, name, *whose, said, JOB.get(), network
                        ),
                        may_be_slow=may_be_slow,
                    )
                JOB.set(None)  # its tensors would stay until the reply is sent
            # Last, so that a caller who has read an error finds it in the metrics and the logs.
            return await abort(context, details)

        return call

    def request_spans(self, context: IncomingCall) -> RequestSpans | None:
        """The spans of a stream's requests. None if nothing is traced."""
        if self._tracing is None:
            return None
        return RequestSpans(self._tracing, context.method[1:], context.invocation_metadata())

    def meter(self, context: IncomingCall) -> Meter | None:
        """Counts the messages of a stream, if the server bounds what one client may ask for."""
        return None if self.entrance is None else self.entrance.meter(context.peer())

    def _refuse(self, lane: CallLane) -> NoReturn:
        """
        Raises:
            ShuttingDown: the server is shutting down.
            ResourceExhausted: there are as many calls as allowed, or the caller has its share.
        """
        if lane.work:
            self.refuse_if_draining()
        taken, capacity = lane.slots.taken, lane.slots.capacity
        raise ResourceExhausted(
            f"{taken} of at most {capacity} {lane.name} are open (--max-concurrent-rpcs), and one "
            "connection gets no more of them than are left; try again later, or send requests over "
            "one stream"
        )


async def write_all(context: IncomingCall, replies: AsyncIterable[bytes]) -> None:
    """Writes the replies of a call.

    Raises:
        HeadraceError: the caller's credential has become invalid.
        asyncio.CancelledError: the caller has left.
    """
    async for reply in replies:
        with uncancelled():
            try:
                await context.write(reply)
            except CallOver:  # this task would be cancelled in a moment
                raise asyncio.CancelledError from None


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
