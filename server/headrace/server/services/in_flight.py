"""The requests of one stream that are in flight, and what they hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from contextvars import copy_context
from typing import Any, Final, Generic, TypeAlias, TypeVar

from headrace.runtime.errors import Cancelled, HeadraceError
from headrace.runtime.execution.job import Job
from headrace.server.access.quotas import Meter
from headrace.server.request_log import JOB
from headrace.server.services.turns import Turn
from headrace.server.transport.shares import Memory

T = TypeVar("T")
Cancel: TypeAlias = Callable[[HeadraceError], object]
Ended: TypeAlias = Callable[[T | None, BaseException | None, float, Job | None], object]
"""Takes a request's outcome or its error, its seconds, and its job if it has one."""

_BEFORE_THE_FIRST: Final = 4
"""How many requests to a network run before its first result tells how large its results are."""


class InFlight:
    """Each request has a key, the memory that is reserved for it and its result, a place in its
    caller's quota, and a function that cancels it. Belongs to the event loop's thread.

    Args:
        memory: the memory of the stream.
        meter: counts the requests of the caller, if the server bounds them.
    """

    def __init__(self, memory: Memory, meter: Meter | None) -> None:
        self._memory = memory
        self._meter = meter
        self._cancels: dict[Hashable, Cancel | None] = {}  # None until it is known
        self._reserved: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._cancels)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._cancels

    def begin(self, key: Hashable, reserved: int) -> None:
        """Takes a request that begins, and the bytes that are reserved for it.

        Raises:
            ResourceExhausted: the caller has too many requests. The bytes stay reserved.
        """
        if self._meter is not None:
            self._meter.enter()
        self._reserved[key] = reserved
        self._cancels[key] = None

    def started(self, key: Hashable, cancel: Cancel) -> None:
        """Notes how to cancel a request, if it has not ended already."""
        if key in self._cancels:
            self._cancels[key] = cancel

    def reserve(self, key: Hashable, size: int) -> bool:
        """Reserves `size` more bytes for a request. Returns whether there was room."""
        if not self._memory.use(size):
            return False
        self._reserved[key] += size
        return True

    def end(self, key: Hashable) -> int:
        """Forgets a request. Returns the bytes that are still reserved for it. Idempotent."""
        self._cancels.pop(key, None)
        reserved = self._reserved.pop(key, None)
        if reserved is not None and self._meter is not None:
            self._meter.leave()
        return reserved or 0

    def cancel(self, key: Hashable, error: HeadraceError) -> None:
        """Cancels a request if it is in flight."""
        cancel = self._cancels.get(key)
        if cancel is not None:
            cancel(error)

    def cancel_all(self, error: HeadraceError) -> None:
        """Cancels all requests."""
        for key in list(self._cancels):  # the end of one may start another
            self.cancel(key, error)

    def abandon(self) -> None:
        """Waits for no request any more. Each gives back what it holds when it ends."""
        self._cancels.clear()


class FirstResults:
    """Lets a few requests to a network run before its first result on the stream. The others wait
    for it, because nobody knows yet how much room their results need. They do not wait for requests
    to other networks. Belongs to the event loop's thread.

    Args:
        reserve: reserves room for a request's result, when its size is known. Returns whether a
            request that waits may start.
    """

    def __init__(self, reserve: Callable[[Hashable], bool]) -> None:
        self._reserve = reserve
        self._known: set[str] = set()  # the networks that have had a result
        self._running: dict[Hashable, str] = {}  # the requests to others, and their networks
        self._waiting: dict[Hashable, tuple[str, Callable[[], object]]] = {}
        self._starting = False

    def __len__(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    def begin(self, network: str, key: Hashable) -> bool:
        """Takes a request. Returns whether it may start now. If not, it is to `wait`."""
        if self._waiting and any(each == network for each, _ in self._waiting.values()):
            return False
        return self._may_start(network, key)

    def wait(self, network: str, key: Hashable, start: Callable[[], object]) -> None:
        """Takes the function that is to start a request later."""
        self._waiting[key] = network, start

    def ended(self, key: Hashable, *, result: bool) -> None:
        """Takes the end of a request, and whether there is a result."""
        self._waiting.pop(key, None)
        network = self._running.pop(key, None)
        if result and network is not None:
            self._known.add(network)

    def start(self) -> None:
        """Starts the requests that need not wait any more, those of a network in their order."""
        if self._starting or not (self._running or self._waiting):
            return
        self._starting = True
        try:
            for key, network in list(self._running.items()):
                if network in self._known:
                    del self._running[key]
                    self._reserve(key)
            stay: set[str] = set()
            for key, (network, start) in list(self._waiting.items()):
                known = network in self._known
                if key not in self._waiting or network in stay:
                    continue
                if not (self._reserve(key) if known else self._may_start(network, key)):
                    stay.add(network)
                    continue
                del self._waiting[key]
                start()
        finally:
            self._starting = False

    def _may_start(self, network: str, key: Hashable) -> bool:
        if network in self._known:
            return True
        if sum(each == network for each in self._running.values()) >= _BEFORE_THE_FIRST:
            return False
        self._running[key] = network
        return True


class Tasks(Generic[T]):
    """The requests of one stream that run as tasks. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[T]] = set()  # asyncio would lose them

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
        task = asyncio.get_running_loop().create_task(work, context=own)
        self._running.add(task)

        def done(_: object) -> None:
            self._running.discard(task)
            if turn is not None:
                turn.over()
            error: BaseException | None
            if task.cancelled():
                error = reasons[0] if reasons else Cancelled("the caller cancelled the request")
            else:
                error = task.exception()
            outcome = task.result() if error is None else None
            ended(outcome, error, time.monotonic() - started, own.get(JOB))

        def cancel(error: HeadraceError) -> None:
            reasons.append(error)
            task.cancel()

        task.add_done_callback(done)
        return cancel
