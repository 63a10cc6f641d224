"""When a worker that died is started again."""

from __future__ import annotations


class Backoff:
    """Delays that double while workers die young. Pure: the time is an argument.

    A worker that lived at least as long as the longest delay, or did some work, counts as healthy:
    the next one is started after the first delay.

    Args:
        first, longest: seconds.
    """

    def __init__(self, first: float = 0.05, longest: float = 30.0) -> None:
        self._first = first
        self._longest = longest
        self._delay = 0.0
        self._started = 0.0

    @property
    def keeps_failing(self) -> bool:
        """Whether one worker after another came to nothing."""
        return self._delay > self._first

    def started(self, now: float) -> None:
        """A worker is up."""
        self._started = now

    def died(self, now: float, *, useful: bool) -> float:
        """The worker died, or did not start.

        Args:
            useful: it has answered a request.

        Returns:
            Seconds until the next start.
        """
        healthy = useful or (self._started > 0 and now - self._started >= self._longest)
        self._started = 0.0
        self._delay = self._first if healthy else self._next()
        return self._delay

    def _next(self) -> float:
        return min(max(self._first, 2 * self._delay), self._longest)
