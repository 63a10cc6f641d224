"""Requests as the server takes them, and a short way to read those that differ in data alone.

Clients ask in loops: message after message is the same but for its tensors' bytes. Where that is
so, comparing all the rest finds the request without parsing it, which is what most of the time of a
request to a tiny network went into.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import framing
from headrace.wire.codec import Array, Value, decode_values
from headrace.wire.dtypes import BOOL, NUMPY_TYPES, STRING
from headrace.wire.message import SMALL_BYTES, Attachments

MAX_LAYOUTS: Final = 64
"""Remembered at a time, the oldest go; each takes less than twice SMALL_BYTES of memory."""
MAX_PARTS: Final = 64
"""Inputs and wanted outputs of a request that is remembered; what is kept of each is many times
what it takes in a message."""

_INPUTS = 3  # of InferRequest
_TENSOR = 2  # of Value
_DATA = 3  # of Tensor


class Request(NamedTuple):
    """An InferRequest, its inputs decoded; they are read-only."""

    network: str
    id: str
    outputs: tuple[str, ...]
    priority: int
    performance_counts: bool
    timeout_seconds: float
    inputs: dict[str, Value]


def decode_request(message: pb.InferRequest, attachments: Attachments) -> Request:
    """
    Raises:
        CodecError: an input breaks the protocol.
    """
    return Request(
        message.network,
        message.id,
        tuple(message.outputs),
        message.priority,
        message.performance_counts,
        message.timeout_seconds,
        decode_values(message.inputs, attachments),
    )


class _Tensor(NamedTuple):
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int


class _Layout(NamedTuple):
    """A message without its tensors' bytes: what lies between those, and what it says."""

    frame: tuple[tuple[int, int, bytes], ...]  # start, end, and the bytes there
    tensors: tuple[_Tensor, ...]
    request: Request

    def read(self, data: bytes) -> Request | None:
        for start, end, piece in self.frame:
            if data[start:end] != piece:
                return None
        inputs: dict[str, Value] = {}
        for name, dtype, shape, start, end in self.tensors:
            # A slice of bytes begins at a place that suits every type.
            array: Array = np.ndarray(shape, dtype, data[start:end])
            inputs[name] = array
        return Request(*self.request[:-1], inputs)


class RequestLayouts:
    """The layouts of recent messages, each learnt when it comes for the second time. Not
    thread-safe.

    A message is read so only if it is, byte for byte outside of its tensors' data, one that has
    been parsed. Requests with an id, with attachments, or with tensors whose bytes have to be
    looked at (bools, strings) always take protobuf's way.
    """

    def __init__(self) -> None:
        self._layouts: dict[tuple[int, bytes], _Layout | None] = {}

    def read(self, data: bytes) -> Request | None:
        """The request in the message `data`, or None: then it has to be parsed."""
        layout = self._layouts.get(_key(data))
        return None if layout is None else layout.read(data)

    def learn(self, data: bytes, request: Request) -> None:
        """Takes note of a message that had to be parsed, and of what was read in it."""
        if request.id or len(data) >= SMALL_BYTES:
            return
        inputs = request.inputs
        if len(inputs) + len(request.outputs) > MAX_PARTS or not all(map(_plain, inputs.values())):
            return
        layouts, key = self._layouts, _key(data)
        if key not in layouts:
            if len(layouts) >= MAX_LAYOUTS:
                del layouts[next(iter(layouts))]
            layouts[key] = None
        elif layouts[key] is None:
            layouts[key] = _layout(data, request)


def _key(data: bytes) -> tuple[int, bytes]:
    """The size, and the first field: the network's name, if the message begins as most do."""
    return len(data), data[: data[1] + 2] if len(data) > 1 else data


def _plain(value: Value) -> bool:
    """Whether any bytes are a value of its type and shape."""
    return isinstance(value, np.ndarray) and value.dtype in _PLAIN


def _layout(data: bytes, request: Request) -> _Layout | None:
    values = framing.split(data, 0, len(data), _INPUTS)
    if values is None or len(values.payloads) != len(request.inputs):
        return None
    frame: list[tuple[int, int, bytes]] = []
    tensors: list[_Tensor] = []
    position = 0
    for span, (name, value) in zip(values.payloads, request.inputs.items(), strict=True):
        place = _only(data, _only(data, span, _TENSOR), _DATA)
        if place is None or not isinstance(value, np.ndarray):
            return None
        start, end = place
        if end - start != value.nbytes:
            return None
        frame.append((position, start, data[position:start]))
        tensors.append(_Tensor(name, value.dtype, value.shape, start, end))
        position = end
    frame.append((position, len(data), data[position:]))
    return _Layout(tuple(frame), tuple(tensors), request._replace(inputs={}))


def _only(data: bytes, span: framing.Span | None, number: int) -> framing.Span | None:
    """Where the one field `number` of the message at `span` lies; None if there is not just one."""
    fields = framing.split(data, *span, number) if span is not None else None
    return fields.payloads[0] if fields is not None and len(fields.payloads) == 1 else None


_PLAIN: Final = frozenset(
    dtype for number, dtype in NUMPY_TYPES.items() if number not in (BOOL, STRING)
)
