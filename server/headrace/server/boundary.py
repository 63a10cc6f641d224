"""The one place where errors become statuses, and where RPCs are counted.

Every method of the service is wrapped when it is registered, so that a request pays for no chain of
interceptors.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc

from headrace.runtime.counters import Counters
from headrace.runtime.errors import HeadraceError, Internal, ResourceExhausted, Unavailable
from headrace.server.logs import (
    CURRENT_REQUEST,
    log_internal_error,
    new_request_id,
    request_id,
)
from headrace.wire.codec import CodecError
from headrace.wire.errors import REQUEST_ID_KEY, ErrorDetails, to_trailing_metadata

_log = logging.getLogger(__name__)

_ON_THE_WAY = 0.05
"""Seconds that a message takes to come, and to be read, on a busy machine."""


def describe(error: BaseException, *, where: str, request: str = "") -> ErrorDetails:
    """What the caller is told of an error; a bug's text goes to the log alone, the facts that our
    own code put beside it do not: such as the place where a device failed."""
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


class Boundary:
    """Wraps the service's methods. Belongs to the event loop's thread.

    Args:
        max_calls: at a time, streams included. Health and reflection are not among them, so that a
            server that is busy is not taken for one that is broken.
    """

    def __init__(self, counters: Counters, max_calls: int) -> None:
        self._counters = counters
        self._max_calls = max_calls
        self._verbose = _log.isEnabledFor(logging.DEBUG)
        self._active = 0
        self._streams = 0
        self._idle = asyncio.Event()
        self.draining = False

    async def wait_idle(self) -> None:
        """Returns when no RPC but open streams is under way; new ones are refused meanwhile."""
        while self._active:
            self._idle.clear()
            await self._idle.wait()

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
        *,
        names_request: bool = False,
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """A method with one reply.

        Args:
            names_request: the reply says itself which request it answers. Any other call says so
                in its trailing metadata.
        """
        if not names_request:
            handler = _naming_request(handler)
        ended = self._counters.grpc(method)

        async def call(request: Any, context: Any) -> Any:
            code, said = "OK", ""
            started = time.monotonic() if self._verbose else 0.0
            self._active += 1
            try:
                if self.draining or self._active + self._streams > self._max_calls:
                    self._refuse()
                return await handler(request, context)
            except asyncio.CancelledError:
                code = ended_code(context)
                raise
            except Exception as error:  # noqa: BLE001 - the boundary maps all of them
                details = describe(error, where=method, request=_request_id(context))
                code, said = details.code.name, details.message
                await self._abort(context, details)
            finally:
                self._active -= 1
                if self.draining and not self._active:
                    self._idle.set()
                ended[code] = ended.get(code, 0) + 1
                if self._verbose:
                    seconds = time.monotonic() - started
                    self.log_ended(method, code, seconds, _request_id(context), said)

        return call

    def server_stream(
        self, method: str, handler: Callable[[Any, Any], AsyncIterator[Any]]
    ) -> Callable[[Any, Any], Awaitable[None]]:
        """A method with a stream of replies."""

        async def send(request: Any, context: Any) -> None:
            async for reply in handler(request, context):
                await context.write(reply)

        return self.unary(method, send)

    def stream(
        self, method: str, handler: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Any, Any], Awaitable[None]]:
        """A bidirectional stream, which keeps count of its own work."""
        ended = self._counters.grpc(method)

        async def call(_: Any, context: Any) -> None:
            code = "OK"
            self._streams += 1
            try:
                if self.draining or self._active + self._streams > self._max_calls:
                    self._refuse()
                await handler(context)
            except asyncio.CancelledError:
                code = ended_code(context)
                raise
            except Exception as error:  # noqa: BLE001 - the boundary maps all of them
                details = describe(error, where=method, request=_request_id(context))
                code = details.code.name
                await self._abort(context, details)
            finally:
                self._streams -= 1
                ended[code] = ended.get(code, 0) + 1

        return call

    def log_ended(
        self, method: str, code: str, seconds: float, identifier: str, said: str = ""
    ) -> None:
        """A line for one request, at debug."""
        if self._verbose:
            with request_id(identifier):
                reason = f": {said}" if said else ""
                _log.debug("%s: %s after %.3f ms%s", method, code, seconds * 1e3, reason)

    def _refuse(self) -> None:
        """
        Raises:
            Unavailable: the server is shutting down.
            ResourceExhausted: there are as many calls as may be.
        """
        self.refuse_if_draining()
        raise ResourceExhausted(
            f"{self._max_calls} calls are under way, and this server takes no more at a time "
            "(--max-concurrent-rpcs); try again later, or send requests over one stream"
        )

    @staticmethod
    async def _abort(context: Any, details: ErrorDetails) -> NoReturn:
        trailing = (*to_trailing_metadata(details), *_id_metadata(details.request_id))
        try:
            await context.abort(details.code, details.message, trailing)
        except grpc.aio.InternalError:
            # The call has just ended by itself, as gRPC would say in a moment by cancelling this.
            raise asyncio.CancelledError from None
        raise AssertionError("abort returned")


def ended_code(context: Any) -> str:
    """Why grpc.aio cancelled a handler: it tells a deadline from a cancel only by the time left.
    The caller's began when the call was sent, and ends by so much before ours, with a cancel."""
    remaining = context.time_remaining()
    return "CANCELLED" if remaining is None or remaining > _ON_THE_WAY else "DEADLINE_EXCEEDED"


def _naming_request(
    handler: Callable[[Any, Any], Awaitable[Any]],
) -> Callable[[Any, Any], Awaitable[Any]]:
    """The handler, which first sees to it that the call ends with the request's id; an error's own
    trailing metadata replace this."""

    def call(request: Any, context: Any) -> Awaitable[Any]:
        context.set_trailing_metadata(_id_metadata(_request_id(context)))
        return handler(request, context)

    return call


def _id_metadata(identifier: str) -> tuple[tuple[str, str], ...]:
    """Trailing metadata with the request's id; none where it is text that gRPC does not take."""
    sendable = identifier.isascii() and identifier.isprintable()
    return ((REQUEST_ID_KEY, identifier),) if sendable else ()


def _request_id(context: Any) -> str:
    """That of the request, else what the caller's metadata says, else a new one."""
    if identifier := CURRENT_REQUEST.get():
        return identifier
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID_KEY and value and isinstance(value, str):
            CURRENT_REQUEST.set(value[:128])
            return value[:128]
    identifier = new_request_id()
    CURRENT_REQUEST.set(identifier)
    return identifier
