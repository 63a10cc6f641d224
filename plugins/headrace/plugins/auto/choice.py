"""Which devices to have a network on: a state machine, events in, instructions out. Pure.

A network starts on one device. While a better one has not been tried, the best of these is loaded
in the background, and goes to the front when it is ready. If nothing serves, the next one that has
not been tried is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Load:
    """Load the network on the device; tell `loaded` or `failed`."""

    device: str


@dataclass(frozen=True, slots=True)
class Serve:
    """Have these devices serve from now on, the preferred one first."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unload:
    """Give the device's memory back once its requests have ended."""

    device: str


Instruction: TypeAlias = Load | Serve | Unload


class Choice:
    """
    Args:
        candidates: the best one first.
        loaded: the one that the network starts on.
        failed: those that did not load it.
        fallback: keep the network on other devices than the best one that is loaded.
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
        """Devices were taken out or put back.

        Args:
            serving: those that take requests.
        """
        if self._loading is not None:
            return []
        self._loading = self._next(serving)
        return [] if self._loading is None else [Load(self._loading)]

    def loaded(self, serving: Collection[str]) -> list[Instruction]:
        """The device that was to load the network has."""
        assert self._loading is not None
        self._loaded.add(self._loading)
        self._loading = None
        order = [each for each in self._candidates if each in self._loaded]
        dropped = [] if self._fallback else order[1:]
        self._loaded.difference_update(dropped)
        kept = tuple(each for each in order if each not in dropped)
        return [Serve(kept), *map(Unload, dropped), *self.look({*serving, *kept[:1]})]

    def failed(self, serving: Collection[str]) -> list[Instruction]:
        """The device that was to load the network does not."""
        assert self._loading is not None
        self._failed.add(self._loading)
        self._loading = None
        return self.look(serving)

    def forgive(self, device: str) -> None:
        """The device that failed may work now; to be followed by `look`."""
        self._failed.discard(device)

    def _next(self, serving: Collection[str]) -> str | None:
        """The best device that has not been tried, if it is better than those that are loaded, or
        if none of these serves."""
        nothing_serves = self._fallback and not self._loaded & set(serving)
        is_better = True
        for device in self._candidates:
            if device in self._loaded:
                is_better = False
            elif device not in self._failed and (is_better or nothing_serves):
                return device
        return None
