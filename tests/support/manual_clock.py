"""A clock that stands still until it is told to go on."""

from __future__ import annotations


class ManualClock:
    """Seconds, as `time.monotonic` would give them."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        self.now += seconds
        return self.now
