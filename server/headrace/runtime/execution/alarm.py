"""One timer entry for an owner whose next due time changes often."""

from __future__ import annotations

import math
from collections.abc import Callable

from headrace.runtime.execution.timer import Timer, TimerEntry


class Alarm:
    """Calls back when something is due, or earlier, so the owner must look at the clock. If the due
    time becomes later, the earlier entry stays in the timer. That is cheaper than a new entry for
    each change.

    Not thread-safe: the owner's lock guards it, and the timer's lock is taken under that lock.

    Args:
        callback: called without a lock. It must first call `rang`.
    """

    __slots__ = ("_callback", "_closed", "_due", "_entry", "_timer")

    def __init__(self, timer: Timer, callback: Callable[[], object]) -> None:
        self._timer = timer
        self._callback = callback
        self._entry: TimerEntry | None = None
        self._due = math.inf
        self._closed = False

    def set(self, due: float) -> None:
        """Has the callback called at `due` (`time.monotonic`) at the latest. Infinity sets
        nothing."""
        if due >= self._due or self._closed:
            return
        if self._entry is not None:
            self._timer.cancel(self._entry)
        self._entry = self._timer.schedule(due, self._callback)
        self._due = due

    def rang(self) -> None:
        """Records that the callback was called, so that the alarm can be set again."""
        self._entry, self._due = None, math.inf

    def close(self) -> None:
        """Stops the alarm. The callback is not called again, but a call may be running now."""
        if self._entry is not None:
            self._timer.cancel(self._entry)
        self.rang()
        self._closed = True
        self._callback = _silent  # it refers to the owner, which has this alarm


def _silent() -> None:
    """Takes the place of the callback when the alarm is closed."""
