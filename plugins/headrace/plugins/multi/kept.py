"""Keeps in the server's cache what was measured of a network."""

from __future__ import annotations

import importlib.metadata
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict

from headrace.plugins.multi.contest import DeviceSpeed
from headrace.plugins.multi.device_list import Candidate
from headrace.runtime.cache.entry import CacheKey, EntryRefused
from headrace.runtime.device.cache_key import processor_features
from headrace.runtime.device.services import Services
from headrace.runtime.errors import HeadraceError
from headrace.runtime.execution.request_shapes import Shapes
from headrace.runtime.network.network import Network
from headrace.runtime.system.processors import usable_processors
from headrace.runtime.virtual.entries import facts_of

_log = logging.getLogger(__name__)


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
        self._cache = services.cache if folder else None
        self._devices = services.devices
        self._folder = folder
        self._candidates = candidates
        self._network = network

    def read(self, shapes: Shapes) -> tuple[DeviceSpeed, ...]:
        """What a server has measured before; empty if there is nothing."""
        if self._cache is None:
            return ()
        try:
            data = self._cache.read(self._folder, self._key(shapes))
            found = tuple(DeviceSpeed(**each) for each in json.loads(data or b"[]"))
        except (EntryRefused, HeadraceError, ValueError, TypeError) as error:
            _log.warning("a measurement in the cache is not used: %s", error)
            return ()
        wanted = {each.name for each in self._candidates}
        return found if {each.device for each in found} == wanted else ()

    def write(self, shapes: Shapes, rows: Sequence[DeviceSpeed]) -> None:
        """Keeps a measurement of all devices. What failed on one may succeed the next time."""
        if self._cache is None or any(each.latency_seconds is None for each in rows):
            return
        try:
            data = json.dumps([asdict(each) for each in rows]).encode()
            self._cache.write(self._folder, self._key(shapes), data)
        except (HeadraceError, OSError, ValueError) as error:
            _log.warning("a measurement was not kept: %s", error)

    def _key(self, shapes: Shapes) -> CacheKey:
        facts = {
            "measured by": f"headrace {importlib.metadata.version('headrace')}",
            "network": self._network().digest,
            "shapes": shapes,
            "devices": [facts_of(each.target, self._devices) for each in self._candidates],
            "processors": usable_processors(),
            "processor features": processor_features(),
        }
        return CacheKey(json.dumps(facts, sort_keys=True, separators=(",", ":")))
