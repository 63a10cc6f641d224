"""Requests as the server reads them, and a faster way to read those that are like earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import framing
from headrace.wire.codec import CodecError, decode_values
from headrace.wire.layouts import MAX_ID_LENGTH, Inputs, Layouts, Places, only
from headrace.wire.message import SMALL_BYTES, Attachments
from headrace.wire.placed import MAX_BYTES, Placed, PlacedRequests
from headrace.wire.shared_memory import names_regions

MAX_PRIORITY: Final = 10
"""The highest priority. Its negative is the lowest one."""
MAX_TIMEOUT_SECONDS: Final = 7 * 24 * 3600.0

_new: Final = tuple.__new__  # makes a NamedTuple without a call of Python code
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


class InRegion(NamedTuple):
    """The contents of an InferRequest whose tensors lie in a region."""

    request: Request
    placed: Placed

    def message(self) -> pb.InferRequest:
        """The message that it was, for those who need one."""
        message = pb.InferRequest()
        message.CopyFrom(self.placed.message)
        message.id = self.request.id
        return message


def decode_request(message: pb.InferRequest, attachments: Attachments) -> Decoded:
    """Decodes an InferRequest.

    Raises:
        CodecError: an input breaks the protocol, or a field is out of its bounds.
    """
    return Decoded(_request(message), decode_values(message.inputs, attachments))


def _request(message: pb.InferRequest) -> Request:
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
    return request


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
    """`Layouts` of InferRequests, both single ones and those in an InferStreamRequest, and
    `PlacedRequests`.

    Requests with a session are always parsed, and so are those with attachments on a stream.
    """

    def __init__(self) -> None:
        self._layouts: Layouts[Request] = Layouts(_places)
        self._placed = PlacedRequests()

    def read(self, data: bytes) -> Decoded | InRegion | None:
        """The request in the message `data`; None if the message has to be parsed."""
        known = self._layouts.read(data)
        if known is not None:
            request, identifier, inputs = known
            if identifier:
                request = _new(Request, (request[0], identifier, *request[2:]))
            return _new(Decoded, (request, inputs))
        placed = self._placed.read(data) if len(self._placed) else None
        if placed is None:
            return None
        earlier, identifier, tensors = placed
        return InRegion(_new(Request, (earlier[0], identifier, *earlier[2:])), tensors)

    def read_stream(self, data: bytes) -> list[Decoded | InRegion] | None:
        """The requests in an InferStreamRequest; None if all of it has to be parsed."""
        knows_any = len(self._layouts) or len(self._placed)
        fields = framing.split(data, 0, len(data), _REQUESTS) if knows_any else None
        if fields is None or fields.rest:
            return None
        requests: list[Decoded | InRegion] = []
        for start, end in fields.payloads:
            request = self.read(bytes(data[start:end])) if end - start < SMALL_BYTES else None
            if request is None:
                return None
            requests.append(request)
        return requests

    def learn(self, data: bytes, request: Request, inputs: Inputs) -> None:
        """Remembers a message that had to be parsed, and the request that was read from it."""
        if request.session is None:
            self._layouts.learn(data, request, request.id, inputs, len(request.outputs))

    def learn_in_region(self, data: bytes, message: pb.InferRequest) -> None:
        """Remembers a message that had to be parsed, and whose tensors lie in a region."""
        with suppress(CodecError):  # the request itself will raise it
            self._placed.learn(data, _request(message))

    def learn_stream(self, data: bytes, messages: Sequence[pb.InferRequest]) -> None:
        """The same for those of an InferStreamRequest whose tensors lie in a region."""
        if not any(map(names_regions, messages)):
            return
        fields = framing.split(data, 0, len(data), _REQUESTS)
        if fields is None or len(fields.payloads) != len(messages):
            return
        for (start, end), message in zip(fields.payloads, messages, strict=True):
            if end - start <= MAX_BYTES and names_regions(message):
                self.learn_in_region(bytes(data[start:end]), message)


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
