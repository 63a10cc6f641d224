"""When requests go over the shared stream, and when each goes in a call of its own."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

OPEN_AFTER: Final = 4
"""The stream is opened with this request. A program that sends one or two does not need it."""
PATIENCE_SECONDS: Final = 10.0
"""How long the server may take to answer the question for its limits."""
MAX_PAUSE_SECONDS: Final = 300.0
GOOD_SECONDS: Final = 60.0
"""A stream that lasted this long was no failure."""
GOOD_REQUESTS: Final = 64
"""Nor was one that carried so many requests before its credential was replaced."""


class Step(Enum):
    """What to do with a request."""

    UNARY = auto()
    STREAM = auto()
    OPEN = auto()
    """Open the stream, and send this request in a call of its own."""
    GIVE_UP = auto()
    """End the stream, and send this request in a call of its own."""


class Choice:
    """Decides request by request. Not thread-safe; `now` is in seconds of any clock.

    A stream is used when the server has answered a question over it. So an older server, and a
    proxy that holds messages back, cost no request any time. A stream that breaks, or that does not
    answer, is tried again after a pause, which doubles with each failure.
    """

    def __init__(self, open_after: int = OPEN_AFTER) -> None:
        self._left = open_after
        self._pause_until: float | None = None
        self._failures = 0
        self._asked_at: float | None = None  # None: the server has answered
        self._opened_at: float | None = None  # None: there is no stream

    def step(self, now: float) -> Step:
        if self._opened_at is None:
            self._left -= 1
            if self._left > 0 or (self._pause_until is not None and now < self._pause_until):
                return Step.UNARY
            self._opened_at = self._asked_at = now
            return Step.OPEN
        if self._asked_at is None:
            return Step.STREAM
        if now - self._asked_at < PATIENCE_SECONDS:
            return Step.UNARY
        self.ended(now)
        return Step.GIVE_UP

    def answered(self) -> None:
        """The server has answered the question."""
        self._asked_at = None

    def doubted(self, now: float) -> bool:
        """A request got no result in time. Returns whether to ask the server again."""
        if self._opened_at is None or self._asked_at is not None:
            return False
        self._asked_at = now
        return True

    def ended(self, now: float) -> None:
        """The stream has ended, in whatever way."""
        if self._opened_at is None:
            return
        worked = self._asked_at is None and now - self._opened_at >= GOOD_SECONDS
        self._failures = 0 if worked else self._failures + 1
        self._pause_until = now + min(2.0 ** min(max(self._failures - 1, 0), 30), MAX_PAUSE_SECONDS)
        self._opened_at = None

    def replaced(self, now: float, carried: int) -> None:
        """The stream takes no more requests, because calls have another credential now.

        Args:
            carried: how many requests it has carried.
        """
        if carried < GOOD_REQUESTS:
            self.ended(now)
        else:
            self._opened_at, self._pause_until = None, None
