"""How a command fails, and how that is told: a line for people, an object for programs."""

from __future__ import annotations

import json

import grpc

from headrace.wire.errors import ErrorDetails


class Failed(Exception):
    """Ends a command with exit status 1; str() of it is what is said.

    Attributes:
        details: what the server, or the client, knows of it.
    """

    def __init__(self, message: str, details: ErrorDetails | None = None) -> None:
        super().__init__(message)
        self.details = details or ErrorDetails(grpc.StatusCode.FAILED_PRECONDITION, message)


def told(message: str, details: ErrorDetails, *, as_json: bool) -> str:
    """One line for the standard error; what is not known of the error is left out of the object."""
    if not as_json:
        return f"error: {'; '.join(message.splitlines())}"
    known = {
        "reason": details.reason,
        "field": details.field,
        "retry_delay_seconds": details.retry_delay_seconds,
        "request_id": details.request_id,
        "metadata": dict(details.metadata),
    }
    error = {"code": details.code.name, "message": message}
    error |= {name: value for name, value in known.items() if value not in (None, "", {})}
    return json.dumps({"error": error}, ensure_ascii=False)
