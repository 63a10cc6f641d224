"""Errors ↔ google.rpc.Status and the trailing metadata in which gRPC carries it.

Details are those of google/rpc/error_details.proto: ErrorInfo (domain ``headrace``, reason and
metadata), BadRequest (the field at fault), RetryInfo (after how long to try again), RequestInfo
(the id of the request in the server's log).
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DOMAIN: Final = "headrace"
STATUS_KEY: Final = "grpc-status-details-bin"
REQUEST_ID_KEY: Final = "x-request-id"
"""The metadata key of a call's id in the server's log. Callers may send an id of their own."""

MAX_TEXT_BYTES: Final = 2048
"""The most bytes that an error's text takes in gRPC's header."""

_FIELD_BYTES = 256
_METADATA_BYTES = 512
_NAME_BYTES = 128
_LONG_NAME = re.compile(rf"(?<!\S)\S{{{_NAME_BYTES + 1},}}")  # tried once a word
_ELLIPSIS = "…"
_SENT_AS_THEY_ARE = bytes({*range(0x20, 0x7F)} - {ord("%")})

_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorDetails:
    """Everything that is known about an error.

    Attributes:
        code: the status; you may also pass its name.
        message: says what is wrong and what to do about it.
        reason: a constant in capitals, as QUEUE_FULL.
        field: path of the request's field at fault, as ``inputs['x'].shape``.
        metadata: machine-readable facts.
        retry_delay_seconds: how long to wait before another try, if another try makes sense.
        request_id: the id of the request in the server's log.
    """

    code: grpc.StatusCode
    message: str
    reason: str = ""
    field: str | None = None
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    retry_delay_seconds: float | None = None
    request_id: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.code, str):
            object.__setattr__(self, "code", grpc.StatusCode[self.code])


def shorten(text: str, limit: int = MAX_TEXT_BYTES) -> str:
    """The text, shortened in the middle if it takes more than `limit` bytes in a header of gRPC.

    Very long names in the text are cut first. Of a text of megabytes, only the ends are read: a
    client may have chosen the names in it.
    """
    if len(text) > 8 * limit:
        text = f"{text[: 4 * limit]}{_ELLIPSIS}{text[-4 * limit :]}"
    text = text.encode("utf-8", "replace").decode()
    if _sent_bytes(text) <= limit:
        return text
    text = _LONG_NAME.sub(lambda name: _without_middle(name[0], _NAME_BYTES), text)
    return _without_middle(text, limit)


def _without_middle(text: str, limit: int) -> str:
    if _sent_bytes(text) <= limit:
        return text
    room = limit - _sent_bytes(_ELLIPSIS)
    head = _beginning(text, room * 2 // 3)
    tail = _beginning(text[: -limit - 1 : -1], room - _sent_bytes(head))
    return head + _ELLIPSIS + tail[::-1]


def _beginning(text: str, limit: int) -> str:
    used = 0
    for position, character in enumerate(text[: limit + 1]):
        used += _sent_bytes(character)
        if used > limit:
            return text[:position]
    return text[:limit]


def _sent_bytes(text: str) -> int:
    """How many bytes gRPC sends for it: a byte that is not printable ASCII takes three."""
    data = text.encode()
    return len(data) + 2 * len(data.translate(None, _SENT_AS_THEY_ARE))


def bounded(error: ErrorDetails) -> ErrorDetails:
    """The error, shortened to fit into the 8 KiB of trailing metadata that gRPC's clients accept.

    The metadata holds the text three times, and binary values grow by a third.
    """
    left = _METADATA_BYTES
    metadata = {}
    for key, value in error.metadata.items():
        value = shorten(value, _NAME_BYTES)
        left -= len(key) + _sent_bytes(value)
        if left < 0:
            break
        metadata[key] = value
    return dataclasses.replace(
        error,
        message=shorten(error.message),
        field=None if error.field is None else shorten(error.field, _FIELD_BYTES),
        metadata=metadata,
        request_id=shorten(error.request_id, _NAME_BYTES),
    )


def to_json(error: ErrorDetails) -> str:
    """The error as one line of JSON, for programs that read a command's standard error.

    Unknown details are left out.
    """
    known = {
        "reason": error.reason,
        "field": error.field,
        "retry_delay_seconds": error.retry_delay_seconds,
        "request_id": error.request_id,
        "metadata": dict(error.metadata),
    }
    facts = {"code": error.code.name, "message": error.message}
    facts |= {name: value for name, value in known.items() if value not in (None, "", {})}
    return json.dumps({"error": facts}, ensure_ascii=False)


def to_status(error: ErrorDetails) -> status_pb2.Status:
    """The error as a google.rpc.Status."""
    status = status_pb2.Status(code=error.code.value[0], message=error.message)
    details: list[Any] = [
        error_details_pb2.ErrorInfo(
            reason=error.reason or error.code.name, domain=DOMAIN, metadata=error.metadata
        )
    ]
    if error.field:
        request = error_details_pb2.BadRequest()
        request.field_violations.add(
            field=error.field, description=shorten(error.message, _FIELD_BYTES)
        )
        details.append(request)
    if error.retry_delay_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        # Round up, so that nobody tries too early. But 0.267 seconds, which no binary fraction
        # equals, must not become a nanosecond longer.
        nanoseconds = round(error.retry_delay_seconds * 1e9, 3)
        retry.retry_delay.FromNanoseconds(math.ceil(nanoseconds))
        details.append(retry)
    if error.request_id:
        details.append(error_details_pb2.RequestInfo(request_id=error.request_id))
    for detail in details:
        status.details.add().Pack(detail)
    return status


def from_status(status: status_pb2.Status) -> ErrorDetails:
    """The error of a google.rpc.Status. Details of other kinds or domains are ignored."""
    info = error_details_pb2.ErrorInfo()
    request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    log = error_details_pb2.RequestInfo()
    delay: float | None = None
    for packed in status.details:
        for target in (info, request, retry, log):
            if not packed.Is(target.DESCRIPTOR):
                continue
            try:
                packed.Unpack(target)
            except DecodeError:
                continue  # the code and the message are still valid
            if target is retry:
                delay = retry.retry_delay.ToNanoseconds() / 1e9
    violations = request.field_violations
    return ErrorDetails(
        code=_CODES.get(status.code, grpc.StatusCode.UNKNOWN),
        message=status.message,
        reason=info.reason if info.domain == DOMAIN else "",
        field=violations[0].field if violations else None,
        metadata=dict(info.metadata) if info.domain == DOMAIN else {},
        retry_delay_seconds=delay,
        request_id=log.request_id,
    )


def to_trailing_metadata(error: ErrorDetails) -> tuple[tuple[str, bytes], ...]:
    """The trailing metadata that goes with the error's code and message."""
    return ((STATUS_KEY, to_status(error).SerializeToString()),)


def from_trailing_metadata(
    code: grpc.StatusCode, message: str, metadata: Iterable[tuple[str, str | bytes]] | None
) -> ErrorDetails:
    """The error of a finished call. Without readable details it has the code and message only."""
    for key, value in metadata or ():
        if key == STATUS_KEY and isinstance(value, bytes):
            try:
                status = status_pb2.Status.FromString(value)
            except DecodeError:
                break
            if status.code == code.value[0]:
                return from_status(status)
    return ErrorDetails(code, message)
