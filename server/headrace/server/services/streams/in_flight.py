"""The requests of one stream that are in flight, and what they hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from contextvars import copy_context
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from headrace.runtime.errors import Cancelled, HeadraceError
from headrace.runtime.execution.job import Job
from headrace.server.access.quotas import Meter
from headrace.server.begun import Remainder, cancel_soon
from headrace.server.request_log import JOB
from headrace.server.services.streams.result_sizes import SMALL, ExpectedSize
from headrace.server.serving.turns import Turn
from headrace.server.transport.shares import StreamMemory

T = TypeVar("T")


class Reservation(NamedTuple):
    """What a request in flight has reserved: bytes for itself and for the result that is
    expected."""

    size: int
    expected: ExpectedSize


NOTHING: Final = Reservation(0, SMALL)


Cancel: TypeAlias = Callable[[HeadraceError], object]
Ended: TypeAlias = Callable[[T | None, BaseException | None, float, Job | None], object]
"""Takes a request's outcome or its error, its seconds, and its job if it has one."""


class InFlight(dict[Hashable, "Cancel | None"]):
    """Each request has a key, the memory that is reserved for it and its result, a place in its
    caller's quota, and a function that cancels it, None until that is known. Belongs to the event
    loop's thread.

    Args:
        memory: the memory of the stream.
        meter: counts the requests of the caller, if the server bounds them.
    """

    def __init__(self, memory: StreamMemory, meter: Meter | None) -> None:
        super().__init__()
        self._memory = memory
        self._meter = meter
        self._reserved: dict[Hashable, Reservation] = {}

    def begin(self, key: Hashable, reserved: Reservation) -> None:
        """Takes a request that begins, and what is reserved for it.

        Raises:
            ResourceExhausted: the caller has too many requests. The bytes stay reserved.
        """
        if self._meter is not None:
            self._meter.enter()
        self._reserved[key] = reserved
        self[key] = None

    def started(self, key: Hashable, cancel: Cancel) -> None:
        """Notes how to cancel a request, if it has not ended already."""
        if key in self:
            self[key] = cancel

    def end(self, key: Hashable) -> Reservation:
        """Forgets a request. Returns what is still reserved for it. Idempotent."""
        self.pop(key, None)
        reserved = self._reserved.pop(key, None)
        if reserved is not None and self._meter is not None:
            self._meter.leave()
        return NOTHING if reserved is None else reserved

    def cancel(self, key: Hashable, error: HeadraceError) -> None:
        cancel = self.get(key)
        if cancel is not None:
            cancel(error)

    def cancel_all(self, error: HeadraceError) -> None:
        for cancel in list(self.values()):
            if cancel is not None:
                cancel(error)

    def abandon(self) -> None:
        """Waits for no request any more. Each gives back what it holds when it ends."""
        self.clear()


class Tasks(Generic[T]):
    """The requests of one stream that may have to wait. Each runs at once, and gets a task when it
    waits. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()  # asyncio would lose them

    def begin(
        self, work: Coroutine[Any, Any, T], ended: Ended[T], turn: Turn | None = None
    ) -> Cancel:
        """Starts a request, and returns a function that cancels it.

        Args:
            ended: is called once.
            turn: that of a sequence's request. It is over when the request ends.
        """
        reasons: list[HeadraceError] = []
        started = time.monotonic()
        own = copy_context()

        def end(outcome: T | None, error: BaseException | None) -> None:
            if turn is not None:
                turn.over()
            ended(outcome, error, time.monotonic() - started, own.get(JOB))

        try:
            waiting = own.run(work.send, None)
        except StopIteration as done:
            end(done.value, None)
            return reasons.append
        except Exception as error:  # noqa: BLE001 - any error is this request's result
            end(None, error)
            return reasons.append

        async def wait() -> None:
            outcome: T | None = None
            error: BaseException | None = None
            try:
                outcome = await Remainder(work, waiting)
            except asyncio.CancelledError:
                error = reasons[0] if reasons else Cancelled("the caller cancelled the request")
            except Exception as raised:  # noqa: BLE001 - as above
                error = raised
            end(outcome, error)

        task = asyncio.get_running_loop().create_task(wait(), context=own)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

        def cancel(error: HeadraceError) -> None:
            reasons.append(error)
            cancel_soon(task)

        return cancel
