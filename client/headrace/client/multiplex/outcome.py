"""What became of a request on the shared stream, in gRPC's own terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import grpc
from google.rpc import status_pb2

from headrace.client.multiplex.gathering import Item
from headrace.wire.errors import STATUS_KEY
from headrace.wire.message import Parsed
from headrace.wire.stream import StreamResult

# A unary call that ends so is sent again, see `channel_options`.
_RETRIED: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
# The server's word on the credential of the stream holds for its requests, too.
_FOR_ALL: Final = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_NO_TRACE: Final[Mapping[str, str]] = {}
_TRACE: Final = frozenset({"traceparent", "tracestate"})


class Failure(NamedTuple):
    """The status of a failed call or request, as gRPC tells it."""

    code: grpc.StatusCode
    message: str
    trailing: tuple[tuple[str, str | bytes], ...] = ()


class Lost(NamedTuple):
    """The stream has ended without a result for the request.

    Attributes:
        status: the stream's own; None if it ended well, or broke the protocol.
    """

    status: Failure | None = None


class Expired(NamedTuple):
    """The request's time is up."""


class Closed(NamedTuple):
    """The client has been closed."""


Outcome = StreamResult | Lost | Expired | Closed


def resolve(item: Item, outcome: Outcome, left_seconds: float | None) -> Parsed | Failure | None:
    """The reply or the failure; None if the request is to be sent again in a call of its own, which
    gRPC retries.

    Args:
        left_seconds: the time that is left for the request; None without a limit.
    """
    if isinstance(outcome, StreamResult):
        if outcome.reply is not None:
            return outcome.reply, outcome.attachments
        failure = _failed(outcome.error or status_pb2.Status(code=13))
        if failure.code not in _RETRIED or item.once:
            return failure
    elif isinstance(outcome, Closed):
        return Failure(grpc.StatusCode.CANCELLED, "Channel closed!")
    elif isinstance(outcome, Lost) and item.once and item.sent:
        return _lost(outcome)
    if isinstance(outcome, Expired) or left_seconds == 0:
        return Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    return None


def _failed(status: status_pb2.Status) -> Failure:
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    return Failure(code, status.message, ((STATUS_KEY, status.SerializeToString()),))


def _lost(lost: Lost) -> Failure:
    status = lost.status
    if status is not None and status.code in _FOR_ALL:
        return status
    return Failure(grpc.StatusCode.UNAVAILABLE, "the stream ended before the request's result")


def trace_of(metadata: Iterable[tuple[str, str]]) -> Mapping[str, str] | None:
    """The trace context in the metadata of a call. None if there is anything else, which cannot
    travel with a request."""
    if metadata == ():
        return _NO_TRACE
    found = dict(metadata)
    return found if found.keys() <= _TRACE else None
