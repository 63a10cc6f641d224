"""Decides whether a network is so quick that its request may run on the front-end's own thread.

A hop to a stream's thread and back costs more than a hundred microseconds of processor time, a tiny
network five. Pure: it sees durations only.
"""

from __future__ import annotations

LIMIT_SECONDS = 100e-6
SPIKE_SECONDS = 2e-3
_SAMPLES = 4
_PENALTY = 4096
_SMOOTHING = 1 / 8


class InlineBudget:
    """Allows running inline after some quick runs; one slow run forbids it for a long while.

    Not locked: a lost update between two streams changes a mean by a sample.
    """

    __slots__ = ("_mean", "_wait")

    def __init__(self) -> None:
        self._mean: float | None = None
        self._wait = _SAMPLES

    @property
    def allows(self) -> bool:
        return self._wait <= 0 and self._mean is not None and self._mean <= LIMIT_SECONDS

    def record(self, seconds: float) -> None:
        """Takes note of one run's duration."""
        mean = self._mean
        # From the first sample on, not from zero, which would let a slow network pass for quick.
        self._mean = seconds if mean is None else mean + _SMOOTHING * (seconds - mean)
        if seconds > SPIKE_SECONDS:
            self._wait = _PENALTY
        elif self._wait > 0:
            self._wait -= 1
