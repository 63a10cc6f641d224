"""Keeps in the server's cache what was measured of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from headrace.plugins.multi.contest import DeviceSpeed
from headrace.plugins.multi.device_list import Candidate
from headrace.runtime.cache.notes import Notes
from headrace.runtime.device.cache_key import headrace_version, processor_features
from headrace.runtime.device.services import Services
from headrace.runtime.execution.request_shapes import Shapes
from headrace.runtime.network.network import Network
from headrace.runtime.system.processors import usable_processors
from headrace.runtime.virtual.entries import facts_of


class KeptMeasurements:
    """Measurements of one network, by its shapes, the machine, and the devices with the versions of
    their backends.

    Args:
        services: with the server's cache, if it has one.
        folder: in the cache; empty for none.
        network: as it was given.
    """

    def __init__(
        self,
        services: Services,
        folder: str,
        candidates: Sequence[Candidate],
        network: Callable[[], Network],
    ) -> None:
        self._notes = Notes(services.cache if folder else None, folder)
        self._devices = services.devices
        self._candidates = candidates
        self._network = network

    def read(self, shapes: Shapes) -> tuple[DeviceSpeed, ...]:
        """What a server has measured before; empty if there is nothing."""
        found = self._notes.read(partial(self._facts, shapes), _speeds) or ()
        wanted = {each.name for each in self._candidates}
        return found if {each.device for each in found} == wanted else ()

    def write(self, shapes: Shapes, rows: Sequence[DeviceSpeed]) -> None:
        """Keeps a measurement of all devices. What failed on one may succeed the next time."""
        if all(each.latency_seconds is not None for each in rows):
            self._notes.write(partial(self._facts, shapes), [asdict(each) for each in rows])

    def _facts(self, shapes: Shapes) -> dict[str, object]:
        return {
            "measured by": f"headrace {headrace_version()}",
            "network": self._network().digest,
            "shapes": shapes,
            "devices": [facts_of(each.target, self._devices) for each in self._candidates],
            "processors": usable_processors(),
            "processor features": processor_features(),
        }


def _speeds(note: Sequence[dict[str, Any]]) -> tuple[DeviceSpeed, ...]:
    return tuple(DeviceSpeed(**each) for each in note)
