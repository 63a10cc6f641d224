"""Decides which requests of a network go through shared memory, and at which place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from headrace.client.errors import Error
from headrace.client.info import Ports
from headrace.client.plans.plan import Plan
from headrace.client.shared_memory.loan import Loan
from headrace.client.shared_memory.pool import RegionPool
from headrace.client.shared_memory.segment import ClientSegment
from headrace.client.shared_memory.sizes import OutputSizes
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import Buffer

LEAST_BYTES: Final = 128 * 1024
"""The fewest bytes of a request's inputs and outputs together. Fewer are faster in the message."""
HANDED_LEAST_BYTES: Final = 64 * 1024
"""The same for memory that is handed over. A request of that size takes half of the processor time,
also because its message is so small that it shares a stream with others."""
_ALIGNMENT = 64
_MAY_PASS = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")


class Sharing:
    """Puts requests to one network into a client's segments. Thread-safe.

    Args:
        in_background: runs a plan in the background.
    """

    def __init__(
        self, pool: RegionPool, outputs: Ports, in_background: Callable[[Plan[None]], object]
    ) -> None:
        self._pool = pool
        self._least_bytes = HANDED_LEAST_BYTES if pool.hands_over else LEAST_BYTES
        self._sizes = OutputSizes(outputs)
        self._in_background = in_background
        self._grows = False  # in the background; it does no harm if two threads both begin it

    def lend(self, request: pb.InferRequest, attachments: Sequence[Buffer]) -> Loan | None:
        """Copies a request's large tensors into a segment. Returns None, and leaves the request as
        it is, if the request is small or no segment is free. In the second case it adds a segment
        in the background."""
        loan = self._lend(request, attachments)
        if loan is None and not self._grows and (size := self._lacks(request, attachments)):
            self._grows = True
            self._in_background(self._grow_in_background(size))
        return loan

    def _grow_in_background(self, size: int) -> Plan[None]:
        try:
            yield from self.grow(size)
        finally:
            self._grows = False

    def _lend(self, request: pb.InferRequest, attachments: Sequence[Buffer]) -> Loan | None:
        outputs = self._sizes.expected(request)
        size = _shared_bytes(request, attachments, outputs, self._least_bytes)
        segment = self._pool.take(size) if size else None
        if segment is None:
            return None
        _place(request, attachments, outputs, segment)
        return Loan(self._pool, segment, request, self._sizes)

    def _lacks(self, request: pb.InferRequest, attachments: Sequence[Buffer]) -> int:
        """The bytes of the further segment that such a request needs; 0 if it is small, or if no
        further segment may be made."""
        if not self._pool.may_grow:
            return 0
        outputs = self._sizes.expected(request)
        size = _shared_bytes(request, attachments, outputs, self._least_bytes)
        return size if size and self._pool.has_room(size) else 0

    def grow(self, size: int) -> Plan[None]:
        """Adds a segment to the pool, if the server takes it. The server's error is never raised,
        because requests work without segments."""
        segment = self._pool.make(size)
        if segment is None:
            return
        registered = False
        try:
            yield segment.registration()
            registered = True
        except OSError:  # nobody takes memory there, at least for now
            self._pool.pause()
        except Error as error:
            if error.code.name not in _MAY_PASS:
                self._pool.grow_no_more()
        finally:
            (self._pool.give if registered else self._pool.drop)(segment)

    def borrow(self, request: pb.InferRequest, attachments: Sequence[Buffer]) -> Plan[Loan | None]:
        """Does the same as `lend`, but waits for the further segment."""
        loan = self._lend(request, attachments)
        if loan is None and (size := self._lacks(request, attachments)):
            yield from self.grow(size)
            loan = self._lend(request, attachments)
        return loan

    def learn(self, request: pb.InferRequest, outputs: Mapping[str, Any]) -> None:
        """Remembers the sizes in a reply that came in a message."""
        self._sizes.learn(request, outputs)


def _shared_bytes(
    request: pb.InferRequest, attachments: Sequence[Buffer], outputs: dict[str, int], least: int
) -> int:
    """The bytes that a request takes in a segment; 0 if it is better sent in the message."""
    sizes = [*map(_length, attachments), *outputs.values()]
    if sum(sizes) < least or any(value.HasField("sequence") for value in request.inputs):
        return 0
    return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)


def _place(
    request: pb.InferRequest,
    attachments: Sequence[Buffer],
    outputs: dict[str, int],
    segment: ClientSegment,
) -> None:
    """Copies a request's attachments into a segment, and asks for its outputs behind them."""
    offset = 0
    for value in request.inputs:
        tensor = value.tensor
        if tensor.attachment:
            data = np.frombuffer(attachments[tensor.attachment - 1], np.uint8)
            segment.memory[offset : offset + len(data)] = data
            tensor.attachment = 0
            here = pb.SharedMemory(region=segment.name, offset=offset, bytes=len(data))
            tensor.shared_memory.CopyFrom(here)
            offset += -(-len(data) // _ALIGNMENT) * _ALIGNMENT
    for name, size in outputs.items():
        there = pb.SharedMemory(region=segment.name, offset=offset, bytes=size)
        request.output_regions[name].CopyFrom(there)
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT


def _length(data: Buffer) -> int:
    return memoryview(data).nbytes
