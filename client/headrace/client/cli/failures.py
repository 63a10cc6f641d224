"""How a command fails, and how that is told: a line for people, an object for programs."""

from __future__ import annotations

from dataclasses import replace

import grpc

from headrace.wire.errors import ErrorDetails, to_json


class Failed(Exception):
    """Ends a command with exit status 1; str() of it is what is said.

    Attributes:
        details: what the server, or the client, knows of it.
    """

    def __init__(self, message: str, details: ErrorDetails | None = None) -> None:
        super().__init__(message)
        self.details = details or ErrorDetails(grpc.StatusCode.FAILED_PRECONDITION, message)


def told(message: str, details: ErrorDetails, *, as_json: bool) -> str:
    """One line for the standard error."""
    if as_json:
        return to_json(replace(details, message=message))
    return f"error: {'; '.join(message.splitlines())}"
