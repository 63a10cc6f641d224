"""The one place where errors become statuses, and where RPCs are counted.

Every method of the service is wrapped when it is registered, so that a request does not go through
a chain of interceptors.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple, NoReturn

import grpc

from headrace.runtime.errors import (
    HeadraceError,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from headrace.runtime.metrics.counters import Counters
from headrace.server.logs import (
    CURRENT_REQUEST,
    log_internal_error,
    new_request_id,
    request_id,
)
from headrace.server.transport.shares import Shares
from headrace.wire.codec import CodecError
from headrace.wire.errors import REQUEST_ID_KEY, ErrorDetails, bounded, to_trailing_metadata

_log = logging.getLogger(__name__)

_ON_THE_WAY = 0.05
"""The seconds that a message takes to arrive and to be read on a busy machine."""


def describe(error: BaseException, *, where: str, request: str = "") -> ErrorDetails:
    """The details of an error for the caller, short enough to be sent.

    The text of a bug goes only to the log. The caller still gets the facts that our own code added
    to it, for example the place where a device failed.
    """
    return bounded(_describe(error, where, request))


def _describe(error: BaseException, where: str, request: str) -> ErrorDetails:
    if isinstance(error, CodecError):
        return ErrorDetails(
            grpc.StatusCode.INVALID_ARGUMENT,
            str(error),
            reason="INVALID_ARGUMENT",
            field=error.field,
            request_id=request,
        )
    if isinstance(error, HeadraceError) and not isinstance(error, Internal):
        return ErrorDetails(
            grpc.StatusCode[error.status],
            error.message,
            reason=error.reason,
            field=error.field,
            metadata=error.metadata,
            retry_delay_seconds=error.retry_delay_seconds,
            request_id=request,
        )
    identifier = log_internal_error(error, where=where, request=request)
    facts = error.metadata if isinstance(error, Internal) else {}
    place = f" in {facts['place']}" if "place" in facts else ""
    return ErrorDetails(
        grpc.StatusCode.INTERNAL,
        f"internal error {identifier}{place}; the server's log explains it",
        reason="INTERNAL",
        metadata={**facts, "error_id": identifier},
        request_id=request,
    )


class Lane(NamedTuple):
    """Calls that share places. Calls of one kind cannot take the places of another kind.

    Attributes:
        name: the name of the calls in a refusal.
        places: how many calls may be open at a time.
        work: whether the calls are work. While the server stops, it refuses new work and waits for
            work that has begun.
    """

    name: str
    places: Shares
    work: bool


class Boundary:
    """Wraps the methods of all services. Belongs to the event loop's thread.

    A method begins when its call arrives, and reads its message itself. gRPC treats each method as
    one with a stream of messages. So a call counts from its first byte. A caller that sends only
    half a message holds a place in its lane, and gets only a fair share of the places.

    Args:
        max_calls: the most calls at a time. Streams, watches and probes each have the same limit.
            So calls that callers keep open do not take the places of others, and a busy server does
            not look like a broken one.
    """

    def __init__(self, counters: Counters, max_calls: int) -> None:
        self._counters = counters
        self.calls = Lane("calls", Shares(max_calls), work=True)
        self.streams = Lane("streams", Shares(max_calls), work=True)
        self.watches = Lane("watches", Shares(max_calls), work=False)
        self.probes = Lane("probes", Shares(max_calls), work=False)
        self._active = 0  # calls of work except streams, until their status is sent
        self._open = 0  # all other calls
        self._ended = asyncio.Event()
        self.draining = False

    @property
    def _verbose(self) -> bool:
        """Whether each request is logged. Clients may change that while the server runs."""
        return _log.isEnabledFor(logging.DEBUG)

    async def wait_idle(self) -> None:
        """Returns when no work except open streams is in progress, and all its replies are sent.

        New work is refused meanwhile.
        """
        while self._active:
            await self._wait_for_an_end()

    async def wait_closed(self) -> None:
        """Returns when no call is open, except calls that are being refused."""
        while self._active or self._open:
            await self._wait_for_an_end()

    async def _wait_for_an_end(self) -> None:
        self._ended.clear()
        await self._ended.wait()

    def refuse_if_draining(self) -> None:
        """
        Raises:
            Unavailable: the server is shutting down.
        """
        if self.draining:
            raise Unavailable("the server is shutting down; use another one")

    def unary(
        self,
        method: str,
        handler: Callable[[Any, Any], Awaitable[Any]],
        lane: Lane | None = None,
        *,
        names_request: bool = False,
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """A method with one message and one reply, for a handler of serialised messages.

        Args:
            names_request: whether the reply itself contains the id of its request. Otherwise the
                trailing metadata contain the id.
        """

        async def serve(context: Any) -> Any:
            data = await context.read()
            if data is grpc.aio.EOF:
                raise InvalidArgument("the call ended without a message; send one")
            return await handler(data, context)

        return self._method(
            method, serve if names_request else _naming_request(serve), lane or self.calls
        )

    def client_stream(
        self, method: str, handler: Callable[[Any], Awaitable[Any]], lane: Lane
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """A method with a stream of messages, which the handler reads, and one reply."""
        return self._method(method, _naming_request(handler), lane)

    def server_stream(
        self,
        method: str,
        handler: Callable[[Any, Any], AsyncGenerator[bytes, None]],
        lane: Lane,
    ) -> Callable[[Any, Any], Awaitable[None]]:
        """A method with one message and a stream of replies."""

        async def send(data: Any, context: Any) -> None:
            async with aclosing(handler(data, context)) as replies:
                async for reply in replies:
                    await context.write(reply)

        return self.unary(method, send, lane)

    def stream(
        self, method: str, handler: Callable[[Any], Awaitable[None]], lane: Lane
    ) -> Callable[[Any, Any], Awaitable[None]]:
        """A bidirectional stream, which counts its own work."""
        return self._method(method, handler, lane, active=False)

    def _method(
        self,
        method: str,
        serve: Callable[[Any], Awaitable[Any]],
        lane: Lane,
        *,
        active: bool = True,
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        active = active and lane.work
        places = lane.places
        ended = self._counters.grpc(method)

        async def call(_: Any, context: Any) -> Any:
            code, said = "OK", ""
            started = time.monotonic()
            peer = context.peer()
            taken = not (self.draining and lane.work) and places.take(peer)
            try:
                if not taken:
                    self._refuse(lane)
                self._begin(context, active=active)
                return await serve(context)
            except asyncio.CancelledError:
                code = ended_code(context)
                raise
            except Exception as error:  # noqa: BLE001 - the boundary maps all of them
                details = describe(error, where=method, request=_request_id(context))
                code, said = details.code.name, details.message
                await self._abort(context, details)
            finally:
                if taken:
                    places.give_back(peer)
                ended[code] = ended.get(code, 0) + 1
                if self._verbose:
                    seconds = time.monotonic() - started
                    self.log_ended(method, code, seconds, _request_id(context), said)

        return call

    def _begin(self, context: Any, *, active: bool) -> None:
        if active:
            self._active += 1
            context.add_done_callback(self._active_ended)
        else:
            self._open += 1
            context.add_done_callback(self._open_ended)

    def _active_ended(self, _: Any) -> None:
        self._active -= 1
        if self.draining:
            self._ended.set()

    def _open_ended(self, _: Any) -> None:
        self._open -= 1
        if self.draining:
            self._ended.set()

    def log_ended(
        self, method: str, code: str, seconds: float, identifier: str, said: str = ""
    ) -> None:
        """Logs one request, at level debug."""
        if self._verbose:
            with request_id(identifier):
                reason = f": {said}" if said else ""
                _log.debug("%s: %s after %.3f ms%s", method, code, seconds * 1e3, reason)

    def _refuse(self, lane: Lane) -> NoReturn:
        """
        Raises:
            Unavailable: the server is shutting down.
            ResourceExhausted: there are as many calls as allowed, or the caller has its share.
        """
        if lane.work:
            self.refuse_if_draining()
        taken, capacity = lane.places.taken, lane.places.capacity
        raise ResourceExhausted(
            f"{taken} of at most {capacity} {lane.name} are open (--max-concurrent-rpcs), and one "
            "connection gets no more of them than are left; try again later, or send requests over "
            "one stream"
        )

    @staticmethod
    async def _abort(context: Any, details: ErrorDetails) -> NoReturn:
        trailing = (*to_trailing_metadata(details), *_id_metadata(details.request_id))
        try:
            await context.abort(details.code, details.message, trailing)
        except grpc.aio.InternalError:
            # The call has just ended by itself. gRPC would cancel this task in a moment.
            raise asyncio.CancelledError from None
        raise AssertionError("abort returned")


def ended_code(context: Any) -> str:
    """The status of a handler that grpc.aio cancelled: a deadline or a cancel.

    Only the time left shows which one it was. The caller's deadline began when the call was sent,
    so it ends slightly before the server's, and the caller then sends a cancel.
    """
    remaining = context.time_remaining()
    return "CANCELLED" if remaining is None or remaining > _ON_THE_WAY else "DEADLINE_EXCEEDED"


def _naming_request(handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """A handler that first puts the request's id into the call's trailing metadata.

    The trailing metadata of an error replace this.
    """

    def call(context: Any) -> Awaitable[Any]:
        context.set_trailing_metadata(_id_metadata(_request_id(context)))
        return handler(context)

    return call


def _id_metadata(identifier: str) -> tuple[tuple[str, str], ...]:
    """Trailing metadata with the request's id. Empty if gRPC does not accept the id's text."""
    sendable = identifier.isascii() and identifier.isprintable()
    return ((REQUEST_ID_KEY, identifier),) if sendable else ()


def _request_id(context: Any) -> str:
    """The request's id, otherwise the id in the caller's metadata, otherwise a new id."""
    if identifier := CURRENT_REQUEST.get():
        return identifier
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID_KEY and value and isinstance(value, str):
            CURRENT_REQUEST.set(value[:128])
            return value[:128]
    identifier = new_request_id()
    CURRENT_REQUEST.set(identifier)
    return identifier
