"""Decides whether a network is so quick that its request may run on the front-end's own thread.

A hop to a stream's thread and back costs more than a hundred microseconds of processor time, a tiny
network five. What counts is processor time, which waiting for a processor does not inflate; but it
takes a system call to read. So a network that has proved quick is watched by the cheap wall clock,
and what looks slow there is measured precisely for a while, twice as long each time. Pure: it sees
durations only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_SECONDS = 200e-6
SPIKE_SECONDS = 2e-3
_FIRST_RUNS = 4
_DOUBTFUL_RUNS = 16
_PENALTY_RUNS = 4096
_SMOOTHING = 1 / 8


class InlineBudget:
    """Allows running inline after some quick runs; one slow run forbids it for a long while.

    Not locked: a lost update between two streams changes a mean by a sample.

    Attributes:
        allowed: the next run may be inline.
        clock: what to measure the next run with, in seconds.
        unremarkable: by that clock; a run that took no longer need not be recorded.
    """

    __slots__ = ("_doubt", "_mean", "_runs", "allowed", "clock", "unremarkable")

    def __init__(self) -> None:
        self.allowed = False
        self.clock: Callable[[], float] = time.thread_time
        self.unremarkable = -1.0
        self._mean = 0.0
        self._runs = _FIRST_RUNS  # to measure precisely before the next verdict
        self._doubt = _DOUBTFUL_RUNS

    def record(self, seconds: float) -> None:
        """Records the duration of one run, measured with `clock`."""
        if self.clock is time.monotonic:
            if seconds > LIMIT_SECONDS:
                self.clock, self.unremarkable = time.thread_time, -1.0
                self._runs = self._doubt
                self._doubt = min(2 * self._doubt, _PENALTY_RUNS)
                self._mean = 0.0
            return
        # From the first sample on, not from zero, which would let a slow network pass for quick.
        mean = self._mean
        mean = self._mean = mean + _SMOOTHING * (seconds - mean) if mean else seconds
        self._runs -= 1
        if seconds > SPIKE_SECONDS:
            self.allowed = False
            self._runs = _PENALTY_RUNS
        elif self._runs <= 0:
            self.allowed = mean <= LIMIT_SECONDS
            if self.allowed:
                self.clock, self.unremarkable = time.monotonic, LIMIT_SECONDS
