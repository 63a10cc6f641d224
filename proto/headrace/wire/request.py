"""Requests as the server reads them, and a faster way to read those that are like earlier ones."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import framing
from headrace.wire.codec import CodecError, decode_values
from headrace.wire.layouts import MAX_ID_LENGTH, Inputs, Layouts, Places, only
from headrace.wire.message import SMALL_BYTES, Attachments

MAX_PRIORITY: Final = 10
"""The highest priority. Its negative is the lowest one."""
MAX_TIMEOUT_SECONDS: Final = 7 * 24 * 3600.0

_REQUESTS = 1  # of InferStreamRequest
_ID = 2  # of InferRequest
_INPUTS = 3
_TENSOR = 2  # of Value
_DATA = 3  # of Tensor


class Session(NamedTuple):
    """The session that a request belongs to, of a network with states."""

    id: str
    start: bool
    end: bool


class Request(NamedTuple):
    """The contents of an InferRequest without its inputs.

    Attributes:
        traceparent, tracestate: the trace context as the caller sent it, not yet checked.
    """

    network: str
    id: str
    outputs: tuple[str, ...]
    priority: int
    performance_counts: bool
    timeout_seconds: float
    version: str = ""
    session: Session | None = None
    traceparent: str = ""
    tracestate: str = ""


class Decoded(NamedTuple):
    """The contents of an InferRequest."""

    request: Request
    inputs: Inputs


def decode_request(message: pb.InferRequest, attachments: Attachments) -> Decoded:
    """Decodes an InferRequest.

    Raises:
        CodecError: an input breaks the protocol, or a field is out of its bounds.
    """
    request = Request(
        message.network,
        message.id,
        tuple(message.outputs),
        message.priority,
        message.performance_counts,
        message.timeout_seconds,
        message.version,
        _session(message),
        message.traceparent,
        message.tracestate,
    )
    _check(request)
    return Decoded(request, decode_values(message.inputs, attachments))


def _session(message: pb.InferRequest) -> Session | None:
    if not message.HasField("session"):
        return None
    session = message.session
    if not 1 <= len(session.id) <= MAX_ID_LENGTH:
        raise CodecError("session.id", f"has 1 to {MAX_ID_LENGTH} characters")
    return Session(session.id, session.start, session.end)


def _check(request: Request) -> None:
    if len(request.id) > MAX_ID_LENGTH:
        raise CodecError("id", f"has at most {MAX_ID_LENGTH} characters")
    if abs(request.priority) > MAX_PRIORITY:
        problem = f"{request.priority} is not from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        raise CodecError("priority", problem)
    if not 0 <= request.timeout_seconds <= MAX_TIMEOUT_SECONDS:
        problem = f"has to be a number of seconds from 0 to {MAX_TIMEOUT_SECONDS:g}"
        raise CodecError("timeout_seconds", problem)


class RequestLayouts:
    """`Layouts` of InferRequests, both single ones and those in an InferStreamRequest.

    Requests with a session are always parsed, and so are those with attachments on a stream.
    """

    def __init__(self) -> None:
        self._layouts: Layouts[Request] = Layouts(_places)

    def read(self, data: bytes) -> Decoded | None:
        """The request in the message `data`; None if the message has to be parsed."""
        known = self._layouts.read(data)
        if known is None:
            return None
        request, identifier, inputs = known
        if identifier:
            request = Request(request[0], identifier, *request[2:])
        return Decoded(request, inputs)

    def read_stream(self, data: bytes) -> list[Decoded] | None:
        """The requests in an InferStreamRequest; None if all of it has to be parsed."""
        fields = framing.split(data, 0, len(data), _REQUESTS) if len(self._layouts) else None
        if fields is None or fields.rest:
            return None
        requests: list[Decoded] = []
        for start, end in fields.payloads:
            request = self.read(data[start:end]) if end - start < SMALL_BYTES else None
            if request is None:
                return None
            requests.append(request)
        return requests

    def learn(self, data: bytes, request: Request, inputs: Inputs) -> None:
        """Remembers a message that had to be parsed, and the request that was read from it."""
        if request.session is None:
            self._layouts.learn(data, request, request.id, inputs, len(request.outputs))


def _places(data: bytes) -> Places | None:
    values = framing.split(data, 0, len(data), _INPUTS)
    attached = framing.split(data, 0, len(data), framing.ATTACHMENTS)
    if values is None or attached is None:
        return None
    spans = [only(data, span, _TENSOR) for span in values.payloads]
    tensors = [_bytes_of(data, span, attached.payloads) for span in spans]
    if None in tensors:
        return None
    return Places([place for place in tensors if place], only(data, (0, len(data)), _ID))


def _bytes_of(
    data: bytes, tensor: framing.Span | None, attachments: list[framing.Span]
) -> framing.Span | None:
    """Where the bytes of the tensor at this span lie: in the tensor itself or in an attachment."""
    own = only(data, tensor, _DATA)
    if own is not None or tensor is None:
        return own
    number = pb.Tensor.FromString(data[slice(*tensor)]).attachment
    return attachments[number - 1] if 0 < number <= len(attachments) else None
