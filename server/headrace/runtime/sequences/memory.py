"""Bounds on bytes of which each identity takes a part, as the states that a server keeps."""

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


class SharedBytes:
    """Counts bytes that identities share. Thread-safe; `_lock` guards the numbers.

    Args:
        limit: the most bytes, of all together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._taken = 0
        self._of: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._taken

    def takes(self, size: int, owner: str = "") -> bool:
        """Takes bytes if they are there, or gives them back.

        Args:
            size: how many bytes. A negative size gives bytes back, and that never fails.
            owner: the identity that takes them. Without one there is no share.
        """
        with self._lock:
            mine, free = self._of[owner] + size, self.limit - self._taken - size
            if size > 0 and (free < 0 or (owner and not may_take(mine, free))):
                return False
            self._taken += size
            self._of[owner] = mine
            if not mine:
                del self._of[owner]
        return True


class StateMemory(SharedBytes):
    """Counts the bytes of open sequences' states."""

    def take(self, size: int, owner: str = "") -> None:
        """As `takes`.

        Raises:
            ResourceExhausted: there are not enough bytes left, or the owner has its share.
        """
        if not self.takes(size, owner):
            used = f"{self.taken} of {self.limit} bytes are in use (--max-state-bytes)"
            if owner:
                used += f", {self._of[owner]} of them by you, and an eighth stays for others"
            raise ResourceExhausted(
                f"the states need {size} more bytes of memory; {used}; end a sequence first",
                field="session",
            )
