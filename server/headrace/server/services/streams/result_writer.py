"""Writes a stream's results.

If the protocol allows it, all results that are ready go into one message. Results that finish
during a write then share the next message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from headrace.runtime.errors import ResourceExhausted
from headrace.server.transport.call import CallOver
from headrace.server.transport.shares import StreamMemory

_log = logging.getLogger(__name__)

_BYTES_A_MESSAGE = 1 << 20
COPIES: Final = 2
"""gRPC copies what it writes."""
_OF_WHAT_IS_LEFT: Final = 1.0
"""The part of the free memory that a connection may hold where a result is larger than expected:
more than for requests, because the result has been computed."""


class ResultWriter:
    """Holds results until they are written. Belongs to the event loop's thread.

    Args:
        memory: the memory of the stream. Results that the caller has not read yet count.
        message: builds the reply with some results, at most `results_a_message` of them.
        changed: called when there is room again, and when all results are written.

    Attributes:
        ready: the results that wait, each with the bytes that it holds.
    """

    def __init__(
        self,
        context: Any,
        memory: StreamMemory,
        message: Callable[[Sequence[Any]], bytes],
        results_a_message: int,
        changed: Callable[[], None],
    ) -> None:
        self._context = context
        self._memory = memory
        self._message = message
        self._results_a_message = results_a_message
        self._changed = changed
        self.ready: deque[tuple[Any, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writing = False

    @property
    def is_busy(self) -> bool:
        return bool(self.ready or self._writing)

    def hold(self, result: Any, size: int, reserved: int) -> None:
        """Takes a result that holds `size` bytes, and the bytes that were reserved for it.

        Raises:
            ResourceExhausted: there is no room for the result. Then the caller still has to give
                the reserved bytes back.
        """
        size *= COPIES
        if size > reserved:
            if not self._memory.use(size - reserved, _OF_WHAT_IS_LEFT):
                raise no_room("the result")
        else:
            self._memory.free(reserved - size)
        self.ready.append((result, size))

    def put(self, result: Any) -> None:
        """Takes a small result, even if there is no room."""
        self.ready.append((result, 0))

    def forget(self) -> None:
        """Drops results that nobody will read."""
        self.ready.clear()
        self._memory.free_all()

    def write(self) -> None:
        """Makes sure that the results get written that are ready in the loop's next turn."""
        if self.ready and not self._writing:
            self._writing = True
            asyncio.get_running_loop().call_soon(self._write_ready)

    def write_now(self) -> bool:
        """Writes the results that are ready, as far as flow control allows. Returns whether the
        loop writes the rest in its next turn."""
        if not self.ready or self._writing:
            return False
        self._writing = True
        self._write_ready()
        return self._writing

    def _write_ready(self) -> None:
        message: bytes | None = None
        size = 0
        try:
            while self.ready:
                batch, size = self._take()
                message = self._message(batch)
                if not self._context.try_write(message):
                    break
                message = None
                self._memory.free(size)
        except CallOver:
            message = None
            self.forget()
        finally:
            if message is None:
                self._writing = False
                self._changed()
        if message is not None:
            self._task = asyncio.get_running_loop().create_task(self._write_all(message, size))

    async def _write_all(self, message: bytes, size: int) -> None:
        """Writes a message that has to wait, and what gathers meanwhile."""
        try:
            while True:
                self._changed()
                await self._context.write(message)
                self._memory.free(size)
                if not self.ready:
                    return
                batch, size = self._take()
                message = self._message(batch)
                del batch
        except CallOver as error:  # the stream's task is cancelled for that as well
            _log.debug("the caller of a stream has gone: %s", error)
            self.forget()
        finally:
            self._writing = False
            self._changed()

    def _take(self) -> tuple[list[Any], int]:
        """Results for one message, and the bytes that they hold."""
        batch: list[Any] = []
        held = 0
        while self.ready and len(batch) < self._results_a_message:
            result, size = self.ready[0]
            if batch and held + size > _BYTES_A_MESSAGE:  # a large result travels alone
                break
            self.ready.popleft()
            batch.append(result)
            held += size
        return batch, held


def no_room(what: str) -> ResourceExhausted:
    return ResourceExhausted(
        f"there is no room for {what} beside what this and other connections have in flight or "
        "have not read (--max-stream-bytes); read results while you send requests, or send smaller "
        "ones"
    )
