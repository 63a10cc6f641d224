"""Brings completions from any thread to the event loop. One wake-up can serve many of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from headrace.runtime.errors import Cancelled, DeadlineExceeded, HeadraceError
from headrace.runtime.execution.job import Job

TOLD: Final = object()
"""The waiter of a job whose end is known on the loop's thread before anybody waits for it. A job
has its outcome before its observers know, and nobody is to hear of it before them."""
_ON_THE_WAY: Final = 0.05
"""The seconds by which a caller's deadline may pass before the server's deadline."""


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
        """Calls `deliver(job)` on the loop's thread, and at once if this is the loop's thread.

        Completions are delivered in the order in which they come.
        """
        if threading.get_ident() == self._thread:
            if self._ready:
                self._deliver_ready()
            deliver(job)
            return
        self._ready.append((deliver, job))
        self._arm()

    def wake(self, job: Job) -> None:
        """Wakes the task that waits for the job in `ended`. Tasks on this thread are woken at once.

        It is `put` with `wake`, and shorter for a job that ends where it was submitted.
        """
        if self._ready or threading.get_ident() != self._thread:
            self.put(wake, job)
        else:
            wake(job)

    def _arm(self) -> None:
        if self._armed:
            return
        self._armed = True
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except BaseException:  # for example no memory
            self._armed = False
            raise

    def _drain(self) -> None:
        self._armed = False
        try:
            self._deliver_ready()
        except BaseException:  # one that cannot be delivered holds up no other
            if self._ready:
                self._arm()
            raise

    def _deliver_ready(self) -> None:
        while self._ready:
            deliver, job = self._ready.popleft()
            deliver(job)


def wake(job: Job) -> None:
    """Wakes the task that waits in `ended`. Belongs to the loop's thread."""
    waiter = job.waiter
    if waiter is None:
        job.waiter = TOLD
    elif not waiter.done():
        waiter.set_result(None)


async def ended(job: Job) -> None:
    """Returns when the job has completed; its `done` has to bring `wake` to the loop's thread.

    If this task is cancelled before that, the job is cancelled too: it has expired if its deadline
    has passed.

    Raises:
        The job's error if it failed.
    """
    if job.waiter is None:
        job.waiter = asyncio.get_running_loop().create_future()
        try:
            await job.waiter
        except asyncio.CancelledError:
            deadline = job.deadline
            expired = deadline is not None and time.monotonic() > deadline - _ON_THE_WAY
            job.token.cancel(left(expired=expired))
            raise
    if job.error is not None:
        raise job.take_error()


def left(*, expired: bool) -> HeadraceError:
    """The error of a request whose caller has left or whose deadline has expired."""
    if expired:
        return DeadlineExceeded("the deadline passed before the request finished")
    return Cancelled("the caller cancelled the request")


def deadline_after(timeout: float, remaining: float | None) -> float | None:
    """The earlier deadline on `time.monotonic`'s clock, or None without one.

    Args:
        timeout: the request's own, in seconds; 0 for none.
        remaining: seconds until the call's deadline; None for none.
    """
    if timeout:
        remaining = timeout if remaining is None else min(timeout, remaining)
    return None if remaining is None else time.monotonic() + remaining
