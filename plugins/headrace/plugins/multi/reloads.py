"""When a device that did not load a network is asked again: pure, times are arguments in seconds.

Delays double from the first to the longest. A device that says that it is up is asked at once, and
afterwards as late as if it had not said so.
"""

from __future__ import annotations

import math
from typing import Final

from headrace.runtime.system.backoff import Backoff

FIRST_SECONDS: Final = 0.5
LONGEST_SECONDS: Final = 300.0


class Reloads:
    """Of one network. Not thread-safe."""

    def __init__(self) -> None:
        self._backoffs: dict[str, Backoff] = {}
        self._due: dict[str, float] = {}  # infinite while it is being asked

    @property
    def wake_at(self) -> float:
        """When a device is due; infinite if none is."""
        return min(self._due.values(), default=math.inf)

    def __contains__(self, device: str) -> bool:
        """Whether it will be asked again, or is being asked."""
        return device in self._due

    def failed(self, device: str, now: float) -> float:
        """It has not loaded the network.

        Returns:
            Seconds until it is asked again.
        """
        backoff = self._backoffs.setdefault(device, Backoff(FIRST_SECONDS, LONGEST_SECONDS))
        delay = backoff.died(now, useful=False)
        self._due[device] = now + delay
        return delay

    def up(self, device: str, now: float) -> None:
        """It may work now. Nothing happens to one that is not to be asked, or is being asked."""
        if self._due.get(device, math.inf) < math.inf:
            self._due[device] = now

    def due(self, now: float) -> list[str]:
        """The devices to ask now; tell `failed` or `drop` of each."""
        found = [device for device, when in self._due.items() if when <= now]
        self._due.update(dict.fromkeys(found, math.inf))
        return found

    def drop(self, device: str) -> None:
        """It is not to be asked again: it has loaded the network, or nobody wants it."""
        self._due.pop(device, None)
        self._backoffs.pop(device, None)
