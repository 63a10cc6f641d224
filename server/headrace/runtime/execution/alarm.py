"""One timer entry for an owner whose next due moment changes often."""

from __future__ import annotations

import math
from collections.abc import Callable

from headrace.runtime.execution.timer import Timer, TimerEntry


class Alarm:
    """Calls back when something is due, or earlier: the owner then looks at the clock. An entry
    that became too early is left in the timer, which is cheaper than another one for each change.

    Not thread-safe: the owner's lock guards it, and the timer's lock is taken under that.

    Args:
        callback: called without a lock; to begin with `rang`.
    """

    __slots__ = ("_callback", "_closed", "_due", "_entry", "_timer")

    def __init__(self, timer: Timer, callback: Callable[[], object]) -> None:
        self._timer = timer
        self._callback = callback
        self._entry: TimerEntry | None = None
        self._due = math.inf
        self._closed = False

    def set(self, due: float) -> None:
        """Has the callback called at `due` at the latest (`time.monotonic`). Infinite: whenever."""
        if due >= self._due or self._closed:
            return
        if self._entry is not None:
            self._timer.cancel(self._entry)
        self._entry = self._timer.schedule(due, self._callback)
        self._due = due

    def rang(self) -> None:
        """The callback was called, and the alarm may be set again."""
        self._entry, self._due = None, math.inf

    def close(self) -> None:
        """The callback is not called any more, unless it is being called now."""
        if self._entry is not None:
            self._timer.cancel(self._entry)
        self.rang()
        self._closed = True
