"""Brings completions from any thread to the event loop. One wake-up can serve many of them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from headrace.runtime.execution.job import Job


class CompletionSink:
    """A deque and at most one pending wake-up of the loop. `put` may be called on any thread.

    It needs no lock: `deque.append` and `popleft` are atomic, and the flag is cleared before the
    deque is emptied. So a completion that arrives meanwhile schedules another wake-up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._ready: deque[tuple[Callable[[Job], None], Job]] = deque()
        self._armed = False

    def put(self, deliver: Callable[[Job], None], job: Job) -> None:
        """Calls `deliver(job)` on the loop's thread, and at once if this is the loop's thread."""
        if threading.get_ident() == self._thread:
            deliver(job)
            return
        self._ready.append((deliver, job))
        if not self._armed:
            self._armed = True
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._armed = False
        while self._ready:
            deliver, job = self._ready.popleft()
            deliver(job)
