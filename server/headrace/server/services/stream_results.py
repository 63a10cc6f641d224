"""Results of one stream that wait to be written, and the memory that they hold."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from headrace.runtime.errors import ResourceExhausted
from headrace.server.transport.shares import Memory
from headrace.wire.stream import EncodedResult

_RESULTS_A_MESSAGE: Final = 64
_BYTES_A_MESSAGE: Final = 1 << 20
_COPIES: Final = 2  # gRPC copies what it writes


class Results:
    """A queue. Belongs to the event loop's thread.

    Attributes:
        largest_bytes: that a result has held so far.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._waiting: deque[tuple[EncodedResult, int]] = deque()
        self.largest_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, result: EncodedResult) -> None:
        """
        Raises:
            ResourceExhausted: there is no room for it.
        """
        size = len(result.reply or b"") + sum(map(_bytes, result.attachments))
        size *= _COPIES
        self.largest_bytes = max(self.largest_bytes, size)
        if not self._memory.use(size):
            raise no_room("the result")
        self._waiting.append((result, size))

    def add_error(self, result: EncodedResult) -> None:
        """There is always room for an error."""
        self._waiting.append((result, 0))

    def take(self) -> tuple[list[EncodedResult], int]:
        """Results for one message, and the bytes that they hold."""
        batch: list[EncodedResult] = []
        held = 0
        while self._waiting and len(batch) < _RESULTS_A_MESSAGE and held < _BYTES_A_MESSAGE:
            result, size = self._waiting.popleft()
            held += size
            batch.append(result)
        return batch, held

    def forget(self) -> None:
        """Drops what nobody will read."""
        self._waiting.clear()
        self._memory.free_all()


def _bytes(part: Any) -> int:
    return memoryview(part).nbytes


def no_room(what: str) -> ResourceExhausted:
    return ResourceExhausted(
        f"there is no room for {what} beside what this and other connections have in flight or "
        "have not read (--max-stream-bytes); read results while you send requests, or send smaller "
        "ones"
    )
