"""A call at the moment at which something is due, which may change its mind."""

from __future__ import annotations

import math
from collections.abc import Callable

from headrace.runtime.execution.timer import Timer, TimerEntry


class Alarm:
    """One call of the timer's at a time. Its owner's lock guards it; the timer's is taken under it.

    Args:
        ring: called when it is time, without a lock; to begin with `rang`.
    """

    __slots__ = ("_closed", "_due", "_entry", "_ring", "_timer")

    def __init__(self, timer: Timer, ring: Callable[[], object]) -> None:
        self._timer = timer
        self._ring = ring
        self._entry: TimerEntry | None = None
        self._due = math.inf
        self._closed = False

    def set(self, due: float) -> None:
        """To be called then, and no more for what it was set to before; infinite: not at all."""
        if due == self._due or self._closed:
            return
        if self._entry is not None:
            self._timer.cancel(self._entry)
        self._entry = self._timer.schedule(due, self._ring) if due < math.inf else None
        self._due = due

    def rang(self) -> None:
        """It has been called, and may be set anew."""
        self._entry, self._due = None, math.inf

    def close(self) -> None:
        """It is called no more, unless it is just being called."""
        self.set(math.inf)
        self._closed = True
