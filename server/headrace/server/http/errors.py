"""HTTP replies for errors: one table of statuses, and one form of the body."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from headrace.server.access.refusal import FACT, Refusal
from headrace.wire.errors import ErrorDetails

REST: Final = "/v2"
CLIENT_LEFT: Final = 499
"""nginx's status for a request that its client gave up. Only our metrics read it."""

# The same mapping as google.rpc.Code's.
STATUSES: Mapping[str, int] = {
    "OK": HTTPStatus.OK,
    "CANCELLED": CLIENT_LEFT,
    "UNKNOWN": HTTPStatus.INTERNAL_SERVER_ERROR,
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    "DEADLINE_EXCEEDED": HTTPStatus.GATEWAY_TIMEOUT,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "ALREADY_EXISTS": HTTPStatus.CONFLICT,
    "PERMISSION_DENIED": HTTPStatus.FORBIDDEN,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "FAILED_PRECONDITION": HTTPStatus.BAD_REQUEST,
    "ABORTED": HTTPStatus.CONFLICT,
    "OUT_OF_RANGE": HTTPStatus.BAD_REQUEST,
    "UNIMPLEMENTED": HTTPStatus.NOT_IMPLEMENTED,
    "INTERNAL": HTTPStatus.INTERNAL_SERVER_ERROR,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
    "DATA_LOSS": HTTPStatus.INTERNAL_SERVER_ERROR,
    "UNAUTHENTICATED": HTTPStatus.UNAUTHORIZED,
}

_CHALLENGES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_AGAIN = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_AGAIN_SECONDS = 1.0


def error_reply(details: ErrorDetails, path: str) -> Response:
    """The reply for an error, in the form that the path's clients expect."""
    status = STATUSES[details.code.name]
    headers = {}
    if status in _AGAIN:
        delay = details.retry_delay_seconds or _AGAIN_SECONDS
        headers["retry-after"] = str(math.ceil(delay))
    if status in _CHALLENGES:
        headers["www-authenticate"] = _challenge(status, details)
    if status == HTTPStatus.UNAUTHORIZED:
        headers["connection"] = "close"  # a stranger keeps no connection
    message, place = details.message, details.field
    # A client gets only the text here, so the text has to name the place.
    named = not place or place in message
    return said(status, message if named else f"{place}: {message}", path, headers)


def _challenge(status: int, details: ErrorDetails) -> str:
    """How to get in, as RFC 6750 says."""
    challenge = 'Bearer realm="headrace"'
    if status == HTTPStatus.FORBIDDEN:
        scope = details.metadata.get("role", "")
        return f'{challenge}, error="insufficient_scope", scope="{scope}"'
    if details.metadata.get(FACT) == Refusal.NO_CREDENTIAL:
        return challenge
    return f'{challenge}, error="invalid_token"'


def said(
    status: int, message: str, path: str, headers: Mapping[str, str] | None = None
) -> Response:
    """``{"error": message}`` for the Open Inference Protocol's paths, plain text for all others."""
    given = dict(headers or {})
    if is_rest(path):
        body = json.dumps({"error": message}).encode()
        return Response(body, status, given, "application/json")
    return Response(f"{message}\n", status, given, "text/plain")


def is_rest(path: str) -> bool:
    """Whether the path is one of the Open Inference Protocol's."""
    return path == REST or path.startswith(f"{REST}/")
