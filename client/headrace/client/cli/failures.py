"""How a command fails, and the report of it: a line for people, an object for programs."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import replace
from typing import Final

import grpc

from headrace.wire.errors import ErrorDetails, to_json

# What writing raises. Where it is a file, the command itself says so.
_WRITING: Final = {errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC}


class CommandFailure(Exception):
    """Ends a command with exit status 1; str() of it is the message.

    Attributes:
        details: what the server or the client knows about the failure.
    """

    def __init__(self, message: str, details: ErrorDetails | None = None) -> None:
        super().__init__(message)
        self.details = details or ErrorDetails(grpc.StatusCode.FAILED_PRECONDITION, message)


def told(message: str, details: ErrorDetails, *, as_json: bool) -> str:
    """One line for the standard error."""
    if as_json:
        return to_json(replace(details, message=message))
    return f"error: {'; '.join(message.splitlines())}"


def unexpected(error: Exception) -> ErrorDetails:
    """The details of an error that no command expects: a full output, or a bug."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _WRITING:
        # Otherwise Python tries once more when it ends, and prints a message of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        message = f"cannot write to the standard output: {error.strerror}"
        return ErrorDetails(grpc.StatusCode.FAILED_PRECONDITION, message)
    message = f"{type(error).__name__}: {error}; this is a bug, HEADRACE_DEBUG=1 shows where"
    return ErrorDetails(grpc.StatusCode.INTERNAL, message, reason="BUG")
