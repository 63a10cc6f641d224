"""Which calls are sent again, and when."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc

from headrace.client.channel.budget import RetryBudget
from headrace.client.channel.channel import CANCELLED_HERE, CLOSED_HERE, CallFailed

T = TypeVar("T")

ATTEMPTS: Final = 4
"""How often a call is sent that may be repeated."""
_AT_ONCE: Final = 16
"""How often a call is sent again that no server has begun."""
_FIRST_SECONDS: Final = 0.1
_FACTOR: Final = 3.0
_MOST_SECONDS: Final = 1.0
_RATIO: Final = 0.2
_HERE: Final = (CANCELLED_HERE, CLOSED_HERE)
_REPEATED: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class Repeats:
    """The budget of a channel. Thread-safe.

    Attributes:
        deposit: notes a call that may be repeated.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._budget = RetryBudget(_RATIO, time.monotonic())
        self.deposit = self._budget.deposit

    def inherit(self) -> None:
        self._lock = threading.Lock()

    def withdraw(self) -> bool:
        """Whether a call that a server may have begun is sent again, which then counts."""
        with self._lock:
            return self._budget.withdraw(time.monotonic())


class Repeating:
    """The attempts of one call. Not thread-safe.

    Args:
        deadline: the call's, on Python's monotonic clock.
        repeat: whether the call may run twice.
    """

    __slots__ = ("_budget", "_deadline", "_failed", "_refused", "_repeat")

    def __init__(self, budget: Repeats, deadline: float | None, *, repeat: bool) -> None:
        self._budget = budget
        self._deadline = deadline
        self._repeat = repeat
        self._failed = 0
        self._refused = 0

    def run(self, attempt: Callable[[], T], failure: CallFailed | None = None) -> T:
        """Makes the call, on this thread.

        Args:
            failure: that of the first attempt, if that was made.

        Raises:
            CallFailed: the last attempt failed.
        """
        while True:
            if failure is not None:
                time.sleep(self._pause_or_raise(failure))
            try:
                return attempt()
            except CallFailed as error:
                failure = error

    async def run_on_loop(
        self, attempt: Callable[[], Awaitable[T]], failure: CallFailed | None = None
    ) -> T:
        """Makes the call, on the event loop; as `run`."""
        while True:
            if failure is not None:
                await asyncio.sleep(self._pause_or_raise(failure))
            try:
                return await attempt()
            except CallFailed as error:
                failure = error

    def _pause_or_raise(self, failure: CallFailed) -> float:
        pause = self.pause(failure)
        if pause is None:
            raise failure
        return pause

    def pause(self, failure: CallFailed) -> float | None:
        """After how many seconds the call is sent again; None if the failure is final."""
        pause = self._pause(failure)
        if pause is None:
            return None
        if self._deadline is not None and time.monotonic() + pause >= self._deadline:
            return None
        return pause

    def _pause(self, failure: CallFailed) -> float | None:
        if not failure.begun and not failure.unreachable:
            self._refused += 1
            if self._refused > _AT_ONCE:
                return None
            return 0.0 if self._refused < 3 else _spread(0.01 * 2.0 ** (self._refused - 3))
        if not self._repeat or failure.code not in _REPEATED or failure.message in _HERE:
            return None
        if failure.lasts:
            return None
        self._failed += 1
        if self._failed >= ATTEMPTS or (failure.begun and not self._budget.withdraw()):
            return None
        return _spread(_FIRST_SECONDS * _FACTOR ** (self._failed - 1))


def _spread(seconds: float) -> float:
    """A pause that differs from client to client."""
    return min(seconds, _MOST_SECONDS) * random.uniform(0.8, 1.2)  # noqa: S311 - keeps no secret
