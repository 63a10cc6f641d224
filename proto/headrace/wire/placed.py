"""A short way to read requests whose tensors lie in shared memory, for those like earlier ones.

Such a message is small. A client that uses its memory again sends the same bytes again, except for
the id. So what was read from a message is kept, with the message's bytes without the id as its key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import framing
from headrace.wire.codec import MAX_RANK, CodecError, Value, decode_values
from headrace.wire.dtypes import BOOL, NUMPY_TYPES, STRING
from headrace.wire.layouts import MAX_PARTS
from headrace.wire.reply import Place

MAX_BYTES: Final = 2048
"""The largest message that is remembered."""
MAX_REMEMBERED: Final = 1024
"""How many messages are remembered at a time, for all clients: one for each segment of a client and
network. A new one replaces the oldest. One of two tensors takes 2 KB, and one of `MAX_PARTS` 26."""

ALIGNMENT: Final = 64
"""A backend reads a tensor in a region where it lies if the tensor begins at such a multiple."""

_ID = 2  # of InferRequest
_NETWORK_TAG = 0x0A
_ID_TAG = 0x12


class PlacedTensor(NamedTuple):
    """An input that lies in a region, from its byte `start` to its byte `end`."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int


class Placed(NamedTuple):
    """What a request says of its tensors. All its places are in one region.

    Attributes:
        message: the request without its id. Nobody may change it.
        region: the name of the region.
        extent: the region has to have so many bytes.
        inputs: those in the region. Any bytes there are valid values.
        others: the inputs in the message.
        outputs: name, offset and room of each output that is wanted in the region.
        places: the name of each of them → region and offset.
        input_bytes: the bytes of `inputs` together.
        moved_bytes: the same and the room for the outputs.
        is_aligned: each of `inputs` begins at a multiple of `ALIGNMENT`.
    """

    message: pb.InferRequest
    region: str
    extent: int
    inputs: tuple[PlacedTensor, ...]
    others: Mapping[str, Value]
    outputs: tuple[tuple[str, int, int], ...]
    places: Mapping[str, Place]
    input_bytes: int
    moved_bytes: int
    is_aligned: bool


class PlacedRequests:
    """The requests that have come twice. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Any, Placed] | None] = {}

    def __len__(self) -> int:
        return len(self._known)

    def read(self, data: bytes) -> tuple[Any, str, Placed] | None:
        """What was learnt with the message `data`, and the id in `data`. None if the message has to
        be parsed."""
        if len(data) > MAX_BYTES:
            return None
        key, identifier = _without_id(data)
        known = self._known.get(key)
        if known is None:
            return None
        try:
            return known[0], identifier.decode(), known[1]
        except UnicodeDecodeError:
            return None

    def learn(self, data: bytes, request: Any) -> None:
        """Remembers a message that had to be parsed, and the request that was read from it."""
        if len(data) > MAX_BYTES:
            return
        key, _ = _without_id(data)
        if key not in self._known:
            if len(self._known) >= MAX_REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = None
        elif self._known[key] is None:
            placed = _read(key)
            if placed is not None:
                self._known[key] = request, placed


def _without_id(data: bytes) -> tuple[bytes, bytes]:
    """The message without its id, and the id. A message is left as it is, unless it begins with the
    network's name and the id, each of less than 128 bytes."""
    if len(data) < 2 or data[0] != _NETWORK_TAG or data[1] >= 0x80:
        return data, b""
    begin = data[1] + 2
    if len(data) < begin + 2 or data[begin] != _ID_TAG or data[begin + 1] >= 0x80:
        return data, b""
    end = begin + 2 + data[begin + 1]
    return data[:begin] + data[end:], data[begin + 2 : end]


def _read(data: bytes) -> Placed | None:
    """The tensors of a message without an id. None if it needs more than a look at its places, or
    has another id."""
    fields = framing.split(data, 0, len(data), _ID)
    if fields is None or fields.payloads:
        return None
    message = pb.InferRequest.FromString(data)
    parts = len(message.inputs) + len(message.outputs) + len(message.output_regions)
    if parts > MAX_PARTS:
        return None
    if message.HasField("session") or message.attachments or message.traceparent:
        return None
    places = [
        *(each.tensor.shared_memory for each in message.inputs if _is_placed(each)),
        *message.output_regions.values(),
    ]
    regions = {place.region for place in places}
    if len(regions) != 1:
        return None
    inputs = [_tensor(each) for each in message.inputs if _is_placed(each)]
    names = {each.name for each in message.inputs}
    if None in inputs or len(names) != len(message.inputs):
        return None
    try:
        others = decode_values(each for each in message.inputs if not _is_placed(each))
    except CodecError:
        return None
    if not all(map(_is_fixed, others.values())):
        return None
    size = sum(each.tensor.shared_memory.bytes for each in message.inputs if _is_placed(each))
    return Placed(
        message,
        regions.pop(),
        max(place.offset + place.bytes for place in places),
        tuple(each for each in inputs if each is not None),
        others,
        tuple((name, at.offset, at.bytes) for name, at in message.output_regions.items()),
        {name: (at.region, at.offset) for name, at in message.output_regions.items()},
        size,
        size + sum(place.bytes for place in message.output_regions.values()),
        not any(each.start % ALIGNMENT for each in inputs if each is not None),
    )


def _is_placed(value: pb.Value) -> bool:
    return bool(value.tensor.HasField("shared_memory"))


def _is_fixed(value: Value) -> bool:
    """Whether nobody can change the value, which many requests get, and it takes as much memory as
    the message."""
    return value is None or (isinstance(value, np.ndarray) and value.dtype != object)


def _tensor(value: pb.Value) -> PlacedTensor | None:
    """The input. None if its bytes have to be checked, or if it breaks the protocol."""
    tensor, number = value.tensor, value.tensor.dtype
    dtype, shape = NUMPY_TYPES.get(number), tuple(tensor.shape)
    if dtype is None or number in (BOOL, STRING):
        return None
    if tensor.data or tensor.strings or tensor.attachment or len(shape) > MAX_RANK:
        return None
    place = tensor.shared_memory
    if any(size <= 0 for size in shape) or dtype.itemsize * math.prod(shape) != place.bytes:
        return None
    return PlacedTensor(value.name, dtype, shape, place.offset, place.offset + place.bytes)
