"""Bounds on the bytes of all states that a server keeps, and on what one identity takes of them."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

from headrace.runtime.errors import ResourceExhausted

_OTHERS: Final = 7


def may_take(mine: int, free: int) -> bool:
    """Whether one identity may have so much while so much is left for all: at most seven times what
    is left, so that an eighth stays for others. (A dynamic threshold, as for the calls of an
    address.)

    Args:
        mine, free: with what it wants now.
    """
    return mine <= _OTHERS * free


class StateMemory:
    """Counts the bytes of open sequences' states. Thread-safe; `_lock` guards the numbers.

    Args:
        limit: the most bytes, of all networks together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._taken = 0
        self._of: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._taken

    def take(self, size: int, owner: str = "") -> None:
        """Takes bytes, or gives them back.

        Args:
            size: how many bytes. A negative size gives bytes back, and that never fails.
            owner: the identity whose states they are. Without one there is no share.

        Raises:
            ResourceExhausted: there are not enough bytes left, or the owner has its share.
        """
        with self._lock:
            if size > 0 and self._taken + size > self.limit:
                raise ResourceExhausted(
                    f"there is no memory for {size} bytes of states: {self._taken} of "
                    f"{self.limit} are in use (--max-state-bytes); end other sequences first",
                    field="session",
                )
            mine = self._of[owner] + size
            if size > 0 and owner and not may_take(mine, self.limit - self._taken - size):
                raise ResourceExhausted(
                    f"there is no memory for {size} more bytes of your states: you have "
                    f"{mine - size} of {self.limit} (--max-state-bytes), and an eighth stays for "
                    "others; end some of your sequences first",
                    field="session",
                )
            self._taken += size
            self._of[owner] = mine
            if not mine:
                del self._of[owner]
