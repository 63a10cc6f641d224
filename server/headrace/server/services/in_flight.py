"""The requests of one stream that are in flight, and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeAlias

from headrace.runtime.errors import HeadraceError
from headrace.server.access.quotas import Meter
from headrace.server.transport.shares import Memory

Cancel: TypeAlias = Callable[[HeadraceError], object]


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

    def end(self, key: Hashable) -> None:
        """Gives back what a request holds. Idempotent."""
        self._cancels.pop(key, None)
        if (reserved := self._reserved.pop(key, None)) is None:
            return
        self._memory.free(reserved)
        if self._meter is not None:
            self._meter.leave()

    def cancel(self, key: Hashable, error: HeadraceError) -> None:
        """Cancels a request if it is in flight."""
        cancel = self._cancels.get(key)
        if cancel is not None:
            cancel(error)

    def cancel_all(self, error: HeadraceError) -> None:
        """Cancels all requests."""
        for cancel in list(self._cancels.values()):
            if cancel is not None:
                cancel(error)

    def abandon(self) -> None:
        """Waits for no request any more. Each gives back what it holds when it ends."""
        self._cancels.clear()
