"""A short way to read requests that are like earlier ones.

Clients send requests in loops: message after message is the same except for its tensors' bytes and
its id. A server compares everything else with an earlier message, and if it is the same, reads the
request without parsing it. docs/results/performance.md says what that gains and costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from headrace.wire import framing
from headrace.wire.codec import Array, Value
from headrace.wire.dtypes import BOOL, NUMPY_TYPES, STRING
from headrace.wire.message import SMALL_BYTES

R = TypeVar("R")

Inputs: TypeAlias = dict[str, Value]
"""The decoded inputs by name. Arrays are read-only."""

MAX_ID_LENGTH: Final = 128
MAX_LAYOUTS: Final = 64
"""How many layouts are remembered at a time. A new one replaces the oldest. Each takes less than
twice SMALL_BYTES of memory, because a request with more bytes beside its tensors is not
remembered."""
MAX_PARTS: Final = 64
"""The most inputs and wanted outputs of a request that is remembered. Each of them takes far more
memory than it takes bytes in a message."""


class Places(NamedTuple):
    """Where a message holds the parts that differ from one request to the next.

    Attributes:
        tensors: where the bytes of each input's tensor lie, in the order of the inputs.
        identifier: where the request's id lies; None without one.
    """

    tensors: list[framing.Span]
    identifier: framing.Span | None


class _Tensor(NamedTuple):
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int
    in_place: bool  # whether it is large, and aligned where it lies in the message


class _Layout(NamedTuple):
    """A request without its id and its tensors' bytes: the other bytes, and what they mean."""

    frame: tuple[tuple[int, int, bytes], ...]  # start, end, and the bytes there
    tensors: tuple[_Tensor, ...]
    identifier: framing.Span | None
    request: Any


_UNLIKE: Final = _Layout(((0, 0, b"-"),), (), None, None)
"""Stands for a request without a layout. No message matches it."""


class Layouts(Generic[R]):
    """The layouts of recent requests. A layout is learnt when it comes for the second time. Not
    thread-safe.

    A request is read without parsing only if all its bytes, except its id and its tensors' data,
    equal those of a request that was parsed. Requests with tensors whose bytes have to be checked
    (bools, strings) are always parsed.

    Args:
        places: finds the parts that differ in a message. Returns None if the message does not hold
            each input's bytes in a field of its own.
    """

    def __init__(self, places: Callable[[bytes], Places | None]) -> None:
        self._places = places
        self._layouts: dict[tuple[int, bytes], _Layout | None] = {}

    def __len__(self) -> int:
        return len(self._layouts)

    def read(self, data: bytes) -> tuple[R, str, Inputs] | None:
        """The request in the message `data`, its id and its inputs. None if the message has to be
        parsed. The request is an earlier one that is like it, with the earlier one's id."""
        # `_key` in place: in a busy server a call costs as much as ten of these operations.
        first = bytes(data[: data[1] + 2] if len(data) > 1 else data)  # of a view, too
        layout = self._layouts.get((len(data), first))
        if layout is None:
            return None
        frame, tensors, place, request = layout
        for start, end, piece in frame:
            if data[start:end] != piece:
                return None
        identifier = ""
        if place is not None:
            try:
                identifier = bytes(data[place[0] : place[1]]).decode()
            except UnicodeDecodeError:
                return None
        inputs: Inputs = {}
        for name, dtype, shape, start, end, in_place in tensors:
            array: Array
            if in_place:
                array = np.ndarray(shape, dtype, data, start)
            else:  # a slice of bytes is aligned for every type
                array = np.ndarray(shape, dtype, data[start:end])
            inputs[name] = array
        return request, identifier, inputs

    def learn(self, data: bytes, request: R, identifier: str, inputs: Inputs, outputs: int) -> None:
        """Remembers a message that had to be parsed, and the request that was read from it.

        `outputs` is the number of outputs that it asks for.
        """
        if len(inputs) + outputs > MAX_PARTS:
            return
        if not all(map(_plain, inputs.values())):
            return
        layouts, key = self._layouts, _key(data)
        if key not in layouts:
            if len(layouts) >= MAX_LAYOUTS:
                del layouts[next(iter(layouts))]
            layouts[key] = None
        elif layouts[key] is None:
            places = self._places(data)
            layouts[key] = _layout(data, request, identifier, inputs, places) or _UNLIKE


def _key(data: bytes) -> tuple[int, bytes]:
    """The size and the first field, which in most messages is the network's name."""
    return len(data), bytes(data[: data[1] + 2] if len(data) > 1 else data)


def _plain(value: Value) -> bool:
    """Whether any bytes of the right length are a valid value of its type and shape."""
    return isinstance(value, np.ndarray) and value.dtype in _PLAIN


def _layout(
    data: bytes, request: Any, identifier: str, inputs: Inputs, places: Places | None
) -> _Layout | None:
    if places is None or len(places.tensors) != len(inputs):
        return None
    tensors: list[_Tensor] = []
    for (start, end), (name, value) in zip(places.tensors, inputs.items(), strict=True):
        if not isinstance(value, np.ndarray) or end - start != value.nbytes:
            return None
        # An allocator aligns the beginning of a message for every type.
        in_place = end - start >= SMALL_BYTES and not start % value.dtype.alignment
        tensors.append(_Tensor(name, value.dtype, value.shape, start, end, in_place))
    place = places.identifier
    if place is None and identifier:
        return None
    if place is not None and place[1] - place[0] > MAX_ID_LENGTH:
        return None  # another id with as many bytes may have more characters
    differing = sorted([*places.tensors, *((place,) if place is not None else ())])
    if len(data) - sum(end - start for start, end in differing) >= SMALL_BYTES:
        return None
    ends = (0, *(end for _, end in differing))
    starts = (*(start for start, _ in differing), len(data))
    frame = tuple((end, start, data[end:start]) for end, start in zip(ends, starts, strict=True))
    return _Layout(frame, tuple(tensors), place, request)


def only(data: bytes, span: framing.Span | None, number: int) -> framing.Span | None:
    """Where the one field `number` of the message at `span` lies; None if there is not just one."""
    fields = framing.split(data, *span, number) if span is not None else None
    return fields.payloads[0] if fields is not None and len(fields.payloads) == 1 else None


_PLAIN: Final = frozenset(
    dtype for number, dtype in NUMPY_TYPES.items() if number not in (BOOL, STRING)
)
