"""What a call can raise: one class per gRPC status.

    Error
    ├── Cancelled
    ├── InvalidArgument
    ├── DeadlineExceeded
    ├── NotFound
    ├── AlreadyExists
    ├── ResourceExhausted
    ├── FailedPrecondition
    ├── Unimplemented
    ├── Internal
    ├── Unavailable
    ├── Unauthenticated
    └── PermissionDenied

Statuses without a class of their own raise `Error`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import grpc

from headrace.client.channel.channel import CANCELLED_HERE, CLOSED_HERE, CallFailed
from headrace.wire import errors as wire
from headrace.wire.codec import CodecError
from headrace.wire.errors import ErrorDetails


class Error(Exception):
    """Base of all errors of the client; str() of it is the message.

    Attributes:
        details: message, reason, field at fault, metadata, retry delay and request id.
    """

    def __init__(self, details: ErrorDetails) -> None:
        super().__init__(details.message)
        self.details = details

    @property
    def code(self) -> grpc.StatusCode:
        return self.details.code


class Cancelled(Error):
    """The client cancelled the request."""


class InvalidArgument(Error):
    """A value, a model or an option is wrong; `details.field` names it."""


class DeadlineExceeded(Error):
    """The timeout passed. A request that had not started is not computed."""


class NotFound(Error):
    """No network, device, metric, key or model has this name."""


class AlreadyExists(Error):
    """A network with this name is loaded; pass `replace=True` to replace it."""


class ResourceExhausted(Error):
    """A queue or another limit is full; `details.retry_delay_seconds` says when to try again."""


class FailedPrecondition(Error):
    """The device lacks layers, or the network is still loading."""


class Unimplemented(Error):
    """The device lacks this feature, such as exports."""


class Internal(Error):
    """A bug in the server; its log explains `details.metadata["error_id"]`."""


class Unavailable(Error):
    """The server cannot be reached or is stopping, or the device is down. Try again."""


class Unauthenticated(Error):
    """The token is missing, wrong, expired or revoked. Pass `token`, or a client certificate."""


class PermissionDenied(Error):
    """The server knows the caller, and the caller's role does not include this call."""


CLASSES = {
    grpc.StatusCode[re.sub(r"\B(?=[A-Z])", "_", kind.__name__).upper()]: kind
    for kind in Error.__subclasses__()
}
"""By status. Each class has the name of its own."""
_ENDED_HERE = (CANCELLED_HERE, CLOSED_HERE, "Channel is closed", "Locally cancelled")
DROPPED = "DROPPED"
"""The reason in the error of a call that was neither answered nor refused, nor cancelled here."""


def from_details(details: ErrorDetails) -> Error:
    """The error, of the class that belongs to its status."""
    return CLASSES.get(details.code, Error)(details)


def from_call(failure: CallFailed, target: object) -> Error:
    """The error of a failed call.

    A server that stops, or has too many calls, may drop a call with CANCELLED. If the client itself
    has not cancelled the call, this counts as UNAVAILABLE.

    Args:
        target: the server; str() of it is the address.
    """
    code, message = failure.code, failure.message
    details = wire.from_trailing_metadata(code, message, failure.trailing)
    if code is grpc.StatusCode.CANCELLED and not message.startswith(_ENDED_HERE):
        message = f"the server at {target} dropped the call: {message}"
        details = ErrorDetails(grpc.StatusCode.UNAVAILABLE, message, reason=DROPPED)
    elif details.reason:
        pass  # the server's own words
    elif failure.unreachable:
        details = ErrorDetails(code, message)  # it says all
    elif code is grpc.StatusCode.UNAVAILABLE:
        message = f"cannot reach the server at {target}: {message}"
        details = ErrorDetails(code, message)
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
        message = "time was up before the server answered; pass a longer timeout"
        details = ErrorDetails(code, message)
    elif code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than" in message:
        option = (
            "pass a larger max_message_bytes to the client"
            if message.startswith("CLIENT")
            else "start the server with a larger --max-message-bytes, or send less at a time"
        )
        details = ErrorDetails(code, f"{message}; {option}")
    return from_details(details)


def invalid(field: str, message: str) -> InvalidArgument:
    """The error for an argument that the client itself finds wrong, cut as the server cuts its."""
    code = grpc.StatusCode.INVALID_ARGUMENT
    return InvalidArgument(wire.bounded(ErrorDetails(code, message, code.name, field)))


def cancelled(message: str = "the request was cancelled") -> Cancelled:
    return Cancelled(ErrorDetails(grpc.StatusCode.CANCELLED, message, reason="CANCELLED"))


def late(target: object) -> Error:
    """The error for a call whose timeout passed before it could be sent."""
    return from_call(CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, ""), target)


def precondition(message: str, reason: str) -> FailedPrecondition:
    """The error for a call that this client cannot make now."""
    code = grpc.StatusCode.FAILED_PRECONDITION
    return FailedPrecondition(ErrorDetails(code, message, reason=reason))


def client_closed() -> FailedPrecondition:
    """The error for a call on a client after its `close`."""
    return precondition("the client is closed; make a new one", "CLIENT_CLOSED")


def failed_to_load(network: str, reason: str) -> FailedPrecondition:
    """The error for a request to a network that had failed to load when it was looked up."""
    return precondition(f"network {network!r} failed to load: {reason}", "FAILED_PRECONDITION")


def forked() -> FailedPrecondition:
    """The error for whatever belongs to the process that this one was forked from."""
    return precondition(
        "this belongs to the process that this one was forked from; begin it again in this one, "
        "whose clients have connections of their own",
        "FORKED",
    )


def still_loading(network: str) -> FailedPrecondition:
    """The error for a request to a network that was still loading when it was looked up."""
    message = f"network {network!r} was still loading when it was looked up; look it up again"
    return precondition(message, "NETWORK_LOADING")


def bad_reply(cause: CodecError | str) -> Internal:
    """The error for a reply that breaks the protocol."""
    message = f"the server's reply breaks the protocol: {cause}"
    return Internal(ErrorDetails(grpc.StatusCode.INTERNAL, message, reason="BAD_REPLY"))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause for the end of an error about an unknown name."""
    names = sorted(known)
    by_folded = {candidate.casefold(): candidate for candidate in names}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    if close:
        return f"; did you mean {by_folded[close[0]]!r}?"
    return f"; known: {', '.join(names)}" if names else ""
