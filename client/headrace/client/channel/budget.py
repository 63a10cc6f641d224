"""The budget of repeated requests, so that repeats cannot double the load of servers in trouble."""

from __future__ import annotations

from typing import Final

_FREE_PER_SECOND: Final = 10.0
_START: Final = 100.0
_MOST: Final = 1000.0


class RetryBudget:
    """Counts what may be repeated. Not thread-safe.

    Each request pays in `ratio`, each repeat takes 1. Time pays in, too, so that a client with few
    requests may repeat them.
    """

    def __init__(self, ratio: float, now: float) -> None:
        self._ratio = ratio
        self._tokens = _START
        self._paid_at = now

    def deposit(self) -> None:
        """Notes a request that is sent for the first time."""
        if self._tokens < _MOST:
            self._tokens += self._ratio

    def withdraw(self, now: float) -> bool:
        """Whether a request may be repeated, which then counts."""
        free = (now - self._paid_at) * _FREE_PER_SECOND
        self._paid_at = now
        self._tokens = max(self._tokens, min(self._tokens + free, _START))
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
