"""Decides which devices hold a network: a pure state machine that turns events into instructions.

MULTI wants the network on every device of its list. AUTO wants it on the best one: a network
starts on one device, and if there are better ones that have not been tried, the best of them loads
it and becomes the preferred device when it is ready. If no device serves the network, the next one
loads it. A device that is measured to be faster becomes the preferred one.

One device loads the network at a time. A device that failed to for a reason that may pass is tried
again: after a delay that doubles from the first to the longest, and when it reports that it is up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace.plugins.multi.device_list import Failure
from headrace.plugins.multi.running.availability import Culprit, blame
from headrace.runtime.system.backoff import Backoff

FIRST_RELOAD_SECONDS: Final = 0.5
LONGEST_RELOAD_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class LoadDevice:
    """Load the network on the device, then call `loaded` or `failed`."""

    device: str


@dataclass(frozen=True, slots=True)
class Serve:
    """Let these devices serve from now on. The preferred one is first."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnloadDevice:
    """Free the device's memory when its requests have ended."""

    device: str


Instruction: TypeAlias = LoadDevice | Serve | UnloadDevice


class _Device:
    """
    Attributes:
        failure: why it does not have the network, until it has.
        may_load: whether it may be told to load the network.
        due: when it may again; infinite if it may now, or never.
    """

    __slots__ = ("backoff", "due", "failure", "has_it", "may_load")

    def __init__(self) -> None:
        self.has_it = False
        self.failure: Failure | None = None
        self.may_load = True
        self.due = math.inf
        self.backoff = Backoff(FIRST_RELOAD_SECONDS, LONGEST_RELOAD_SECONDS)

    @property
    def may_pass(self) -> bool:
        """Whether the reason of its failure may pass."""
        return self.failure is not None and blame(self.failure.error) not in (
            Culprit.REQUEST,
            Culprit.VALUES,
        )


class Choice:
    """Times are arguments, in seconds. `serving` are the devices that take requests.

    Args:
        candidates: the devices to choose from, the best one first.
        loaded: those that have loaded the network.
        failures: of those that have not, and of others, which are not tried again.
        all_of_them: whether each of the candidates is wanted, and not only the best one.
        fallback: whether to keep the network on other loaded devices beside the best one.
    """

    def __init__(
        self,
        candidates: Sequence[str],
        loaded: Collection[str],
        failures: Iterable[Failure] = (),
        now: float = 0.0,
        *,
        all_of_them: bool = False,
        fallback: bool = True,
    ) -> None:
        self._devices = {candidate: _Device() for candidate in candidates}
        self._others = {each.device: each for each in failures if each.device not in self._devices}
        self._all = all_of_them
        self._fallback = fallback
        self.loading: str | None = None
        for each in loaded:
            self._devices[each].has_it = True
        for failure in failures:
            if failure.device in self._devices:
                self._note(failure, now)
        self._order = [
            name
            for name, device in self._devices.items()
            if not all_of_them or device.has_it or device.may_pass
        ]

    # -- the present state --

    @property
    def order(self) -> tuple[str, ...]:
        """The devices that are wanted, the preferred one first, whether they have it or not."""
        return tuple(self._order)

    @property
    def failures(self) -> dict[str, Failure]:
        """The failures of devices that do not have the network, by name."""
        known = {name: device.failure for name, device in self._devices.items()}
        return {
            name: failure for name, failure in known.items() if failure is not None
        } | self._others

    @property
    def not_loaded(self) -> list[str]:
        """The wanted devices that do not have the network."""
        return [name for name in self._order if not self._devices[name].has_it]

    @property
    def serve(self) -> Serve:
        """The wanted devices that have it."""
        return Serve(tuple(name for name in self._order if self._devices[name].has_it))

    @property
    def wake_at(self) -> float:
        """When to call `look`; infinite if no device that failed is due."""
        return min((device.due for device in self._devices.values()), default=math.inf)

    def knows(self, name: str) -> bool:
        """Whether the device has the network, or may get it."""
        device = self._devices.get(name)
        return device is not None and (device.has_it or device.failure is not None)

    # -- events --

    def look(self, serving: Collection[str], now: float) -> list[Instruction]:
        """Handles the event that devices were taken out or put back, or that a device is due."""
        for device in self._devices.values():
            if device.due <= now:
                device.may_load, device.due = True, math.inf
        if self.loading is not None:
            return []
        self.loading = self._next(serving)
        return [] if self.loading is None else [LoadDevice(self.loading)]

    def loaded(self, serving: Collection[str], now: float) -> list[Instruction]:
        """Handles the event that the loading device has loaded the network."""
        assert self.loading is not None
        name, self.loading = self.loading, None
        return self._has_it(name, math.inf, serving, now)

    def prefer(self, name: str, serving: Collection[str], now: float) -> list[Instruction]:
        """Handles the event that this device, which has the network now, is the fastest. Beside it
        stays the one that was preferred until now, as after `loaded`."""
        self._order = [name, *(each for each in self._order if each != name)]
        return self._has_it(name, 2, serving, now)

    def failed(self, failure: Failure, serving: Collection[str], now: float) -> list[Instruction]:
        """Handles the event that the loading device could not load the network."""
        assert self.loading == failure.device
        self.loading = None
        self._note(failure, now)
        return self.look(serving, now)

    def up(
        self, devices: Collection[str], serving: Collection[str], now: float
    ) -> list[Instruction]:
        """Handles the event that these may work now. If one fails again, its delay grows on."""
        for name in devices:
            device = self._devices.get(name)
            if device is not None and device.due < math.inf:
                device.due = now
        return self.look(serving, now)

    def arrange(
        self, order: Iterable[str], serving: Collection[str], now: float
    ) -> list[Instruction]:
        """Handles the event that the caller wants these devices, in this order. Those that failed
        are tried now if that may help."""
        self._order = [*order]
        for name in self._order:
            device = self._devices[name]
            device.may_load = device.may_load or device.may_pass
        return [self.serve, *self.look(serving, now)]

    # -- inside --

    def _has_it(
        self, name: str, most: float, serving: Collection[str], now: float
    ) -> list[Instruction]:
        """
        Args:
            most: how many devices keep the network, if others stay beside the first.
        """
        self._devices[name] = device = _Device()
        device.has_it = True
        kept = self.serve.devices
        most = most if self._all or self._fallback else 1
        dropped = [each for at, each in enumerate(kept) if at >= most]
        for each in dropped:
            self._devices[each].has_it = False
        now_serving = {*serving, *kept[:1]}
        return [self.serve, *map(UnloadDevice, dropped), *self.look(now_serving, now)]

    def _note(self, failure: Failure, now: float) -> None:
        device = self._devices[failure.device]
        device.failure, device.may_load = failure, False
        if device.may_pass:
            device.due = now + device.backoff.died(now, useful=False)

    def _next(self, serving: Collection[str]) -> str | None:
        """The first device that may load the network. It must be better than all loaded devices,
        unless all are wanted or none of the loaded devices serves."""
        has_it = {name for name, device in self._devices.items() if device.has_it}
        any_one = self._all or (self._fallback and not has_it & set(serving))
        is_better = True
        for name in self._order:
            if name in has_it:
                is_better = False
            elif self._devices[name].may_load and (is_better or any_one):
                return name
        return None
