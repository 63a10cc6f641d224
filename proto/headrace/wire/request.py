"""Requests as the server takes them, and a short way to read those that are like earlier ones.

Clients send requests in loops: message after message is the same except for its tensors' bytes and
its id. The server compares everything else with an earlier message, and if it is the same, reads
the request without parsing it. docs/performance.md says what that gains and costs.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import framing
from headrace.wire.codec import Array, CodecError, Value, decode_values
from headrace.wire.dtypes import BOOL, NUMPY_TYPES, STRING
from headrace.wire.message import SMALL_BYTES, Attachments

MAX_PRIORITY: Final = 10
"""And its negative, for the least."""
MAX_ID_LENGTH: Final = 128
MAX_TIMEOUT_SECONDS: Final = 7 * 24 * 3600.0

MAX_LAYOUTS: Final = 64
"""Remembered at a time, the oldest go; each takes less than twice SMALL_BYTES of memory."""
MAX_PARTS: Final = 64
"""Inputs and wanted outputs of a request that is remembered; what is kept of each is many times
what it takes in a message."""

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
    """What an InferRequest says, but for its inputs."""

    network: str
    id: str
    outputs: tuple[str, ...]
    priority: int
    performance_counts: bool
    timeout_seconds: float
    version: str = ""
    session: Session | None = None


Inputs: TypeAlias = dict[str, Value]
"""By name, decoded; arrays are read-only."""


class Decoded(NamedTuple):
    """All that an InferRequest says."""

    request: Request
    inputs: Inputs


def decode_request(message: pb.InferRequest, attachments: Attachments) -> Decoded:
    """
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
        session=_session(message),
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


class _Tensor(NamedTuple):
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int


class _Layout(NamedTuple):
    """A request without its id and its tensors' bytes: what lies between those, what it says."""

    frame: tuple[tuple[int, int, bytes], ...]  # start, end, and the bytes there
    tensors: tuple[_Tensor, ...]
    identifier: framing.Span | None  # where the id lies; None without one
    request: Request


_UNLIKE: Final = _Layout(((0, 0, b"-"),), (), None, Request("", "", (), 0, False, 0.0))
"""Stands for a request without a layout; no message is like it."""


class RequestLayouts:
    """The layouts of recent requests, each learnt when it comes for the second time. Not
    thread-safe.

    A request is read so only if it is, byte for byte outside of its id and its tensors' data, one
    that has been parsed. Requests with a session, with attachments, or with tensors whose bytes
    have to be looked at (bools, strings), are always parsed.
    """

    def __init__(self) -> None:
        self._layouts: dict[tuple[int, bytes], _Layout | None] = {}

    def read(self, data: bytes) -> Decoded | None:
        """The request in the message `data`, or None: then it has to be parsed."""
        layout = self._layouts.get(_key(data))
        if layout is None:
            return None
        frame, tensors, place, request = layout
        for start, end, piece in frame:
            if data[start:end] != piece:
                return None
        if place is not None:
            try:
                identifier = data[place[0] : place[1]].decode()
            except UnicodeDecodeError:
                return None
            request = Request(request[0], identifier, *request[2:])
        inputs: Inputs = {}
        for name, dtype, shape, start, end in tensors:
            # A slice of bytes begins at a place that suits every type.
            array: Array = np.ndarray(shape, dtype, data[start:end])
            inputs[name] = array
        return Decoded(request, inputs)

    def read_stream(self, data: bytes) -> list[Decoded] | None:
        """The requests in an InferStreamRequest, or None: then all of it has to be parsed."""
        fields = framing.split(data, 0, len(data), _REQUESTS) if self._layouts else None
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
        """Takes note of a message that had to be parsed, and of what was read in it."""
        if request.session is not None or len(data) >= SMALL_BYTES:
            return
        if len(inputs) + len(request.outputs) > MAX_PARTS or not all(map(_plain, inputs.values())):
            return
        layouts, key = self._layouts, _key(data)
        if key not in layouts:
            if len(layouts) >= MAX_LAYOUTS:
                del layouts[next(iter(layouts))]
            layouts[key] = None
        elif layouts[key] is None:
            layouts[key] = _layout(data, request, inputs) or _UNLIKE


def _key(data: bytes) -> tuple[int, bytes]:
    """The size, and the first field: the network's name, if the message begins as most do."""
    return len(data), data[: data[1] + 2] if len(data) > 1 else data


def _plain(value: Value) -> bool:
    """Whether any bytes are a value of its type and shape."""
    return isinstance(value, np.ndarray) and value.dtype in _PLAIN


def _layout(data: bytes, request: Request, inputs: Inputs) -> _Layout | None:
    values = framing.split(data, 0, len(data), _INPUTS)
    if values is None or len(values.payloads) != len(inputs):
        return None
    tensors: list[_Tensor] = []
    for span, (name, value) in zip(values.payloads, inputs.items(), strict=True):
        place = _only(data, _only(data, span, _TENSOR), _DATA)
        if place is None or not isinstance(value, np.ndarray):
            return None
        start, end = place
        if end - start != value.nbytes:
            return None
        tensors.append(_Tensor(name, value.dtype, value.shape, start, end))
    identifier = _only(data, (0, len(data)), _ID)
    if identifier is None and request.id:
        return None
    if identifier is not None and identifier[1] - identifier[0] > MAX_ID_LENGTH:
        return None  # another id of so many bytes may have more characters
    differing = [(tensor.start, tensor.end) for tensor in tensors]
    if identifier is not None:
        differing = sorted([*differing, identifier])
    ends = (0, *(end for _, end in differing))
    starts = (*(start for start, _ in differing), len(data))
    frame = tuple((end, start, data[end:start]) for end, start in zip(ends, starts, strict=True))
    return _Layout(frame, tuple(tensors), identifier, request)


def _only(data: bytes, span: framing.Span | None, number: int) -> framing.Span | None:
    """Where the one field `number` of the message at `span` lies; None if there is not just one."""
    fields = framing.split(data, *span, number) if span is not None else None
    return fields.payloads[0] if fields is not None and len(fields.payloads) == 1 else None


_PLAIN: Final = frozenset(
    dtype for number, dtype in NUMPY_TYPES.items() if number not in (BOOL, STRING)
)
