"""Decides when a worker that died is started again."""

from __future__ import annotations


class Backoff:
    """Delays that double while workers die early. It reads no clock: the time is an argument.

    A worker that lived at least as long as the longest delay, or did some work, counts as healthy.
    After a healthy worker, the next one is started after the first delay.

    Args:
        first, longest: the first and the longest delay in seconds.
    """

    def __init__(self, first: float = 0.05, longest: float = 30.0) -> None:
        self._first = first
        self._longest = longest
        self._delay = 0.0
        self._started = 0.0

    @property
    def keeps_failing(self) -> bool:
        """Whether several workers in a row have failed."""
        return self._delay > self._first

    def started(self, now: float) -> None:
        """Records that a worker is up."""
        self._started = now

    def died(self, now: float, *, useful: bool) -> float:
        """Records that the worker died or did not start.

        Args:
            useful: whether the worker has answered a request.

        Returns:
            Seconds until the next start.
        """
        healthy = useful or (self._started > 0 and now - self._started >= self._longest)
        self._started = 0.0
        self._delay = self._first if healthy else self._next()
        return self._delay

    def _next(self) -> float:
        return min(max(self._first, 2 * self._delay), self._longest)
