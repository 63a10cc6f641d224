"""Turns errors into statuses, and finds the ids of requests."""

from __future__ import annotations

import logging
from typing import NoReturn

import grpc

from headrace.runtime.errors import HeadraceError, Internal, exhausted, forget_frames
from headrace.server.logs import CURRENT_REQUEST, log_internal_error, new_request_id
from headrace.server.transport.call import IncomingCall
from headrace.wire.codec import CodecError
from headrace.wire.errors import REQUEST_ID_KEY, ErrorDetails, bounded, to_trailing_metadata

_log = logging.getLogger(__name__)

_ON_THE_WAY = 0.05
"""The seconds that a message takes to arrive and to be read on a busy machine."""


def describe(error: BaseException, *, where: str, request: str = "") -> ErrorDetails:
    """The details of an error for the caller, short enough to be sent.

    The text of a bug goes only to the log. The caller still gets the facts that our own code added
    to it, for example the place where a device failed.

    An error that is no bug loses its traceback. Futures and jobs keep the error, and the frames of
    its traceback have them as local variables, together with messages and models.
    """
    return bounded(_describe(error, where, request))


def _describe(error: BaseException, where: str, request: str) -> ErrorDetails:
    lacking = exhausted(error)
    if lacking is not None:
        _log.warning("%s: %s", where, lacking.message, exc_info=error)
        error = lacking
    if isinstance(error, CodecError):
        return ErrorDetails(
            grpc.StatusCode.INVALID_ARGUMENT,
            str(error),
            reason="INVALID_ARGUMENT",
            field=error.field,
            request_id=request,
        )
    if isinstance(error, HeadraceError) and not isinstance(error, Internal):
        forget_frames(error)
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


async def abort(context: IncomingCall, details: ErrorDetails) -> NoReturn:
    trailing: list[tuple[str, str | bytes]] = [*to_trailing_metadata(details)]
    trailing += id_metadata(details.request_id)
    await context.abort(details.code, details.message, trailing)


def ended_code(context: IncomingCall) -> str:
    """The status of a handler that was cancelled: a deadline or a cancel.

    Only the time left shows which one it was. The caller's deadline began when the call was sent,
    so it ends slightly before the server's, and the caller then sends a cancel.
    """
    remaining = context.time_remaining()
    return "CANCELLED" if remaining is None or remaining > _ON_THE_WAY else "DEADLINE_EXCEEDED"


def id_metadata(identifier: str) -> tuple[tuple[str, str], ...]:
    """Trailing metadata with the request's id. Empty if gRPC does not accept the id's text."""
    sendable = identifier.isascii() and identifier.isprintable()
    return ((REQUEST_ID_KEY, identifier),) if sendable else ()


def request_id_of(context: IncomingCall) -> str:
    """The request's id, otherwise the id in the caller's metadata, otherwise a new id."""
    if identifier := CURRENT_REQUEST.get():
        return identifier
    for key, value in context.invocation_metadata():
        if key == REQUEST_ID_KEY and value and isinstance(value, str):
            CURRENT_REQUEST.set(value[:128])
            return value[:128]
    identifier = new_request_id()
    CURRENT_REQUEST.set(identifier)
    return identifier
