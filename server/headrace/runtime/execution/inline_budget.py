"""Decides whether a network is so quick that its request may run on the front-end's own thread.

A hop to a stream's thread and back costs more than a hundred microseconds of processor time, while
a tiny network takes five. The decision uses processor time, because waiting for a processor does
not inflate it. But reading it takes a system call. So a network that has proved quick is measured
with the cheap wall clock. If a run then looks slow, some of the next runs are measured precisely,
twice as many each time. On a busy machine a run looks slow every few milliseconds, because its
thread lost the processor meanwhile. So not every run is measured then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from random import Random

LIMIT_SECONDS = 200e-6
SPIKE_SECONDS = 2e-3
_FIRST_RUNS = 4
_DOUBTFUL_RUNS = 16
_PENALTY_RUNS = 4096
_SMOOTHING = 1 / 8
_pause = partial(Random(0).getrandbits, 3)  # noqa: S311 - nobody gains by guessing it
"""How many runs in doubt come before the next that is measured precisely, 0 to 7. A fixed number
would miss a network that is slow at every such interval. Larger ones would find it late."""


class InlineBudget:
    """Allows running inline after some quick runs; one slow run forbids it for a long while.

    It has no lock: if two streams race, the mean misses one sample at most.

    Attributes:
        allowed: whether the next run may be inline.
        clock: the clock to measure the next run with, in seconds.
        unremarkable: a run that took at most this long by `clock` need not be recorded.
    """

    __slots__ = ("_doubt", "_mean", "_pause", "_runs", "allowed", "clock", "unremarkable")

    def __init__(self) -> None:
        self.allowed = False
        self.clock: Callable[[], float] = time.thread_time
        self.unremarkable = -1.0
        self._mean = 0.0
        self._runs = _FIRST_RUNS  # to measure precisely before the next decision
        self._doubt = _DOUBTFUL_RUNS
        self._pause = 0  # runs until the next that is measured precisely

    @classmethod
    def unlimited(cls) -> InlineBudget:
        """Allows every run, for a thread that has nothing else to do."""
        budget = cls()
        budget.allowed, budget.clock, budget.unremarkable = True, time.monotonic, math.inf
        return budget

    def record(self, seconds: float) -> None:
        """Records the duration of one run, measured with `clock`."""
        if self.clock is time.monotonic:
            if self._pause:
                self._pause = 0 if seconds > LIMIT_SECONDS else self._pause - 1
                if not self._pause:
                    self.clock = time.thread_time
            elif seconds > LIMIT_SECONDS:
                self.clock, self.unremarkable = time.thread_time, -1.0
                self._runs = self._doubt
                self._doubt = min(2 * self._doubt, _PENALTY_RUNS)
                self._mean = 0.0
            return
        # Start with the first sample. Starting from zero would make a slow network look quick.
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
        elif self.allowed:
            self._pause = _pause()
            if self._pause:
                self.clock = time.monotonic
