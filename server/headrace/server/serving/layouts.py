"""A short way to read requests that are like earlier ones.

Clients send requests in loops: message after message is the same except for its tensors' bytes and
its id. A server compares everything else with an earlier message, and if it is the same, reads the
request without parsing it. docs/results/performance.md says what that gains and costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.server.serving.call import NOTHING_MORE, InferCall, Input, SharedTensor
from headrace.wire import framing
from headrace.wire.codec import PLAIN
from headrace.wire.message import SMALL_BYTES
from headrace.wire.request import MAX_ID_LENGTH

MAX_LAYOUTS: Final = 64
"""How many layouts are remembered at a time. A new one replaces the oldest. Each takes less than
twice SMALL_BYTES of memory, because a request with more bytes beside its tensors is not
remembered."""
MAX_IN_REGIONS: Final = 1024
"""How many requests with inputs in shared memory are remembered at a time: one for each segment of
a client and network. A new one replaces the oldest. Most take 2 KB."""
MAX_BYTES_IN_REGIONS: Final = 2048
"""The largest of them."""
MAX_PARTS: Final = 64
"""The most inputs and wanted outputs of a request that is remembered. Each of them takes far more
memory than it takes bytes in a message."""


class PartSpans(NamedTuple):
    """Where a message holds the parts that differ from one request to the next.

    Attributes:
        tensors: where the bytes of each input's tensor lie, in the order of the inputs. None for
            one whose bytes do not lie in a field of the message.
        identifier: where the request's id lies; None without one.
    """

    tensors: Sequence[framing.Span | None]
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
    call: InferCall | None  # None if those that are like it are known by their bytes


_UNLIKE: Final = _Layout(((0, 0, b"-"),), (), None, InferCall("", "", "", {}, (), NOTHING_MORE))
"""Stands for a request without a layout. No message matches it."""


class CallLayouts:
    """The layouts of recent requests of one protocol. A layout is learnt when it comes for the
    second time. Belongs to the event loop's thread.

    A request is read without parsing only if all its bytes, except its id and its tensors' data,
    equal those of a request that was parsed. Requests with a sequence, or with tensors whose bytes
    have to be checked (bools, strings), are always parsed.

    A request with inputs in shared memory is small, and comes with the same bytes again, except for
    its id, for each segment of its client's pool. So these are known by all their other bytes.

    Args:
        find_parts: finds the parts that differ in a message. Returns None if it cannot.
    """

    def __init__(self, find_parts: Callable[[bytes], PartSpans | None]) -> None:
        self._find_parts = find_parts
        self._layouts: dict[tuple[int, bytes], _Layout | None] = {}
        self._in_regions: dict[tuple[framing.Span | None, bytes], InferCall | None] = {}

    def __len__(self) -> int:
        return len(self._layouts)

    def read(self, data: bytes) -> InferCall | None:
        """The request in the message `data`. None if the message has to be parsed."""
        # `_key` in place: in a busy server a call costs as much as ten of these operations.
        first = bytes(data[: data[1] + 2] if len(data) > 1 else data)  # of a view, too
        layout = self._layouts.get((len(data), first))
        if layout is None:
            return None
        frame, tensors, id_span, like = layout
        if like is None:
            like = self._in_regions.get((id_span, _without(data, id_span)))
            if like is None:
                return None
        for start, end, piece in frame:
            if data[start:end] != piece:
                return None
        identifier = ""
        if id_span is not None:
            try:
                identifier = bytes(data[id_span[0] : id_span[1]]).decode()
            except UnicodeDecodeError:
                return None
        inputs: dict[str, Input] = dict(like.inputs)  # those in shared memory, if any
        for name, dtype, shape, start, end, in_place in tensors:
            if in_place:
                inputs[name] = np.ndarray(shape, dtype, data, start)
            else:  # a slice of bytes is aligned for every type
                inputs[name] = np.ndarray(shape, dtype, data[start:end])
        return InferCall(
            like.network,
            like.version,
            identifier,
            inputs,
            like.outputs,
            like.wanted,
            like.priority,
            like.timeout_seconds,
            None,
            like.performance_counts,
            like.encode_texts,
        )

    def learn(self, data: bytes, call: InferCall) -> None:
        """Remembers a message that had to be parsed, and the call that was read from it."""
        if call.sequence is not None or len(call.inputs) + len(call.outputs) > MAX_PARTS:
            return
        if len(call.wanted) > MAX_PARTS or not all(map(_plain, call.inputs.values())):
            return
        if SharedTensor in map(type, call.inputs.values()):
            self._learn_in_region(data, call)
            return
        layouts, key = self._layouts, _key(data)
        if key not in layouts:
            if len(layouts) >= MAX_LAYOUTS:
                del layouts[next(iter(layouts))]
            layouts[key] = None
        elif layouts[key] is None:
            layouts[key] = _layout(data, call, self._find_parts(data)) or _UNLIKE

    def _learn_in_region(self, data: bytes, call: InferCall) -> None:
        key, parts = _key(data), self._find_parts(data)
        if len(data) > MAX_BYTES_IN_REGIONS or parts is None:
            return
        layouts, known, id_span = self._layouts, self._in_regions, parts.identifier
        rest = id_span, _without(data, id_span)
        if rest not in known:
            if len(known) >= MAX_IN_REGIONS:
                del known[next(iter(known))]
            known[rest] = None
            return
        if len(layouts) >= MAX_LAYOUTS and key not in layouts:
            del layouts[next(iter(layouts))]
        layouts[key] = _Layout((), (), id_span, None)
        known[rest] = replace(call, id="", inputs=dict(call.inputs))  # which the run replaces


def _without(data: bytes, id_span: framing.Span | None) -> bytes:
    """The message without what lies at `id_span`."""
    return data if id_span is None else data[: id_span[0]] + data[id_span[1] :]


def _key(data: bytes) -> tuple[int, bytes]:
    """The size and the first field, which in most messages is the network's name."""
    return len(data), bytes(data[: data[1] + 2] if len(data) > 1 else data)


def _plain(value: Input) -> bool:
    """Whether any bytes of the right length are a valid value of its type and shape."""
    return type(value) is SharedTensor or (isinstance(value, np.ndarray) and value.dtype in _PLAIN)


def _layout(data: bytes, call: InferCall, parts: PartSpans | None) -> _Layout | None:
    inputs = call.inputs
    if parts is None or len(parts.tensors) != len(inputs):
        return None
    tensors: list[_Tensor] = []
    spans: list[framing.Span] = []
    for span, (name, value) in zip(parts.tensors, inputs.items(), strict=True):
        if span is None or not isinstance(value, np.ndarray):
            return None
        start, end = span
        if end - start != value.nbytes:
            return None
        spans.append(span)
        # An allocator aligns the beginning of a message for every type.
        in_place = end - start >= SMALL_BYTES and not start % value.dtype.alignment
        tensors.append(_Tensor(name, value.dtype, value.shape, start, end, in_place))
    id_span = parts.identifier
    if id_span is None and call.id:
        return None
    if id_span is not None and id_span[1] - id_span[0] > MAX_ID_LENGTH:
        return None  # another id with as many bytes may have more characters
    differing = sorted([*spans, *((id_span,) if id_span is not None else ())])
    if len(data) - sum(end - start for start, end in differing) >= SMALL_BYTES:
        return None
    ends = (0, *(end for _, end in differing))
    starts = (*(start for start, _ in differing), len(data))
    frame = tuple((end, start, data[end:start]) for end, start in zip(ends, starts, strict=True))
    return _Layout(frame, tuple(tensors), id_span, replace(call, inputs={}))


def only(data: bytes, span: framing.Span | None, number: int) -> framing.Span | None:
    """Where the one field `number` of the message at `span` lies; None if there is not just one."""
    fields = framing.split(data, *span, number) if span is not None else None
    return fields.payloads[0] if fields is not None and len(fields.payloads) == 1 else None


_PLAIN: Final = frozenset(PLAIN.values())
