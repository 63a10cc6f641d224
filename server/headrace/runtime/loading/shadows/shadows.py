"""The shadows of a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from headrace.runtime.errors import HeadraceError
from headrace.runtime.loading.entry import NetworkEntry
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.loading.shadows.device_copy import DeviceCopy
from headrace.runtime.loading.shadows.queue import SpareQueue
from headrace.runtime.loading.shadows.requests import ShadowRequests
from headrace.runtime.loading.shadows.shadow import NO_SHADOW, Shadow
from headrace.runtime.metrics.series import SeriesTable, Snapshot
from headrace.runtime.system.asker import Asker


class Shadows:
    """The shadows of a server. Thread-safe: `_lock` guards the tables. The registry's lock is taken
    under it.

    Args:
        networks: the registry.
        copy: makes a `DeviceCopy` of a network's name, a device and an asker.
        counts: how many requests the server has accepted, and how many of them have ended.
        asker: who sets a shadow, on the thread that does.
    """

    def __init__(
        self,
        networks: NetworkRegistry,
        copy: Callable[[str, str, Asker], DeviceCopy],
        counts: Callable[[], tuple[int, int]],
        asker: Callable[[], Asker],
    ) -> None:
        self._networks = networks
        self._copy = copy
        self._asker = asker
        self._queue = SpareQueue(counts)
        self._lock = threading.Lock()
        self._running: dict[str, ShadowRequests] = {}
        self._series: dict[str, SeriesTable] = {}

    def set(
        self, name: str, shadow: Shadow, failed: Callable[[], object] = lambda: None
    ) -> Future[NetworkEntry] | None:
        """Gives a network a shadow in the place of the one that it has. The network need not be
        there yet.

        Args:
            name: the network's full name.
            shadow: as `check_shadow` returns it.
            failed: called after the shadow has ended because its load has failed. Any thread may
                call it, also an event loop's.

        Returns:
            The load on the shadow's device, if one has begun.

        Raises:
            As `Core.load_network`. The network then has no shadow, nor if the load fails.
        """
        with self._lock:
            before = self._running.get(name)
            if before is not None and before.shadow == shadow:
                return None
            self._running.pop(name, None)
            requests = None
            if shadow.percent:
                series = self._series.setdefault(name, SeriesTable())
                requests = self._running[name] = ShadowRequests(
                    name,
                    shadow,
                    self._networks,
                    self._queue,
                    series,
                    self._copy(name, shadow.device, self._asker()) if shadow.device else None,
                )
            self._networks.shadow(name, requests)
        if before is not None:
            before.end()
        if requests is None:
            return None
        try:
            load = requests.begin()
        except HeadraceError:
            self._end(requests)
            raise
        if load is not None:
            load.add_done_callback(partial(self._begun, requests, failed))
        return load

    def get(self, name: str) -> Shadow:
        with self._lock:
            requests = self._running.get(name)
        return NO_SHADOW if requests is None else requests.shadow

    def forget(self, name: str) -> None:
        """Ends the shadow of a network that is gone, with its series."""
        self.set(name, NO_SHADOW)
        with self._lock:
            self._series.pop(name, None)

    def snapshot(self) -> Snapshot:
        with self._lock:
            tables = list(self._series.values())
        return tuple(series for table in tables for series in table.snapshot())

    def stop(self) -> None:
        """Ends all shadows, and waits for the thread. Their networks stay."""
        with self._lock:
            running = list(self._running.values())
            self._running.clear()
        for each in running:
            self._networks.shadow(each.name, None)
            each.stop()
        self._queue.stop()

    def _begun(
        self, requests: ShadowRequests, failed: Callable[[], object], load: Future[NetworkEntry]
    ) -> None:
        """Ends a shadow whose network could not be loaded on its device."""
        if (load.cancelled() or load.exception() is not None) and self._end(requests):
            failed()

    def _end(self, requests: ShadowRequests) -> bool:
        """Ends a shadow. Returns False if another one has taken its place."""
        with self._lock:
            if self._running.get(requests.name) is not requests:
                return False
            del self._running[requests.name]
            self._networks.shadow(requests.name, None)
        requests.end()
        return True
