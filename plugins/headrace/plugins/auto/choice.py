"""Decides which devices hold a network: a pure state machine that turns events into instructions.

A network starts on one device. If there are better devices that have not been tried, the best of
them loads the network in the background. It becomes the preferred device when it is ready. If no
device serves the network, the next device that has not been tried loads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Load:
    """Load the network on the device, then call `loaded` or `failed`."""

    device: str


@dataclass(frozen=True, slots=True)
class Serve:
    """Let these devices serve from now on. The preferred one is first."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unload:
    """Free the device's memory when its requests have ended."""

    device: str


Instruction: TypeAlias = Load | Serve | Unload


class Choice:
    """
    Args:
        candidates: the devices to choose from, the best one first.
        loaded: the device that the network starts on.
        failed: the devices that could not load the network.
        fallback: whether to keep the network on other loaded devices beside the best one.
    """

    def __init__(
        self,
        candidates: Sequence[str],
        loaded: str,
        failed: Iterable[str],
        *,
        fallback: bool,
    ) -> None:
        self._candidates = tuple(candidates)
        self._loaded = {loaded}
        self._failed = set(failed)
        self._fallback = fallback
        self._loading: str | None = None

    @property
    def loading(self) -> str | None:
        """The device that is loading the network."""
        return self._loading

    def look(self, serving: Collection[str]) -> list[Instruction]:
        """Handles the event that devices were taken out or put back.

        Args:
            serving: the devices that take requests.
        """
        if self._loading is not None:
            return []
        self._loading = self._next(serving)
        return [] if self._loading is None else [Load(self._loading)]

    def loaded(self, serving: Collection[str]) -> list[Instruction]:
        """Handles the event that the loading device has loaded the network."""
        assert self._loading is not None
        self._loaded.add(self._loading)
        self._loading = None
        order = [each for each in self._candidates if each in self._loaded]
        dropped = [] if self._fallback else order[1:]
        self._loaded.difference_update(dropped)
        kept = tuple(each for each in order if each not in dropped)
        return [Serve(kept), *map(Unload, dropped), *self.look({*serving, *kept[:1]})]

    def failed(self, serving: Collection[str]) -> list[Instruction]:
        """Handles the event that the loading device could not load the network."""
        assert self._loading is not None
        self._failed.add(self._loading)
        self._loading = None
        return self.look(serving)

    def forgive(self, device: str) -> None:
        """Lets a device that failed be tried again. Call `look` after it."""
        self._failed.discard(device)

    def _next(self, serving: Collection[str]) -> str | None:
        """The best device that has not been tried. It must be better than all loaded devices,
        unless none of the loaded devices serves."""
        nothing_serves = self._fallback and not self._loaded & set(serving)
        is_better = True
        for device in self._candidates:
            if device in self._loaded:
                is_better = False
            elif device not in self._failed and (is_better or nothing_serves):
                return device
        return None
