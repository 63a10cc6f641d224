"""A bound on the bytes of all states that a server keeps."""

from __future__ import annotations

import threading

from headrace.runtime.errors import ResourceExhausted


class StateMemory:
    """Counts the bytes of open sequences' states. Thread-safe; `_lock` guards the number.

    Args:
        limit: the most bytes, of all networks together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._taken = 0

    @property
    def taken(self) -> int:
        return self._taken

    def take(self, size: int) -> None:
        """Takes bytes, or gives them back.

        Args:
            size: how many bytes. A negative size gives bytes back, and that never fails.

        Raises:
            ResourceExhausted: there are not enough bytes left.
        """
        with self._lock:
            if size > 0 and self._taken + size > self.limit:
                raise ResourceExhausted(
                    f"there is no memory for {size} bytes of states: {self._taken} of "
                    f"{self.limit} are in use (--max-state-bytes); end other sequences first",
                    field="session",
                )
            self._taken += size
