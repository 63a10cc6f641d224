"""The counters of networks, devices and calls. They are always on and need no metrics library.

Exposition reads frozen snapshots of series and does not need to know any metric by name.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain

from headrace.runtime.execution.job import Outcome
from headrace.runtime.execution.trace import Exemplar
from headrace.runtime.metrics import families
from headrace.runtime.metrics.cache_counters import CacheCounters
from headrace.runtime.metrics.device_counters import DeviceCounters, Requests
from headrace.runtime.metrics.histogram import Histogram
from headrace.runtime.metrics.series import NOTED, SeriesSnapshot, SeriesTable, Snapshot, taken


class NetworkCounters:
    """Counters of one version of a network on one device string. Thread-safe.

    Attributes:
        accept: counts a request that the network admitted. A function of C, because every request
            calls it.
        series: those of the device's own.
    """

    def __init__(self, network: str, device: str, version: str = "1") -> None:
        self.network = network
        self.version = version
        self.device = device
        # Any thread may append to these two.
        self._begun: deque[None] = deque()
        self.accept: Callable[[], None] = partial(self._begun.append, None)
        # Outcome, seconds, rows or None, exemplar or None.
        self._ended: deque[tuple[Outcome, float, int | None, Exemplar | None]] = deque()
        self._lock = threading.Lock()  # guards all below; no other lock is taken under it
        self._requests = Requests()
        self._request_seconds = Histogram(families.NETWORK_REQUEST_SECONDS.bounds)
        self._load_seconds = Histogram(families.NETWORK_LOAD_SECONDS.bounds)
        self._batch_size = Histogram(families.NETWORK_BATCH_SIZE.bounds)
        self.series = SeriesTable()

    def observe(
        self,
        outcome: Outcome,
        request_seconds: float,
        batch_size: int | None = 1,
        exemplar: Exemplar | None = None,
    ) -> None:
        """Counts the end of an admitted request.

        Args:
            outcome: how it ended.
            request_seconds: from admission to the end.
            batch_size: the rows of the request; 1 for a network without a batch dimension; None if
                `observe_batch` counts the runs.
            exemplar: the request, if it is traced.
        """
        self._ended.append((outcome, request_seconds, batch_size, exemplar))
        if len(self._ended) >= NOTED:
            with self._lock:
                self._sort()

    def observe_batch(self, rows: int) -> None:
        """Counts a run of several requests' rows together."""
        with self._lock:
            self._batch_size.observe(rows)

    def observe_load(self, load_seconds: float) -> None:
        """Counts a finished load of this network."""
        with self._lock:
            self._load_seconds.observe(load_seconds)

    def snapshot(self) -> Snapshot:
        network = self.network, self.version
        own = [  # without the lock, because some are read elsewhere
            SeriesSnapshot(series.family.of_network(), (*network, *series.labels), series.value)
            for series in self.series.snapshot()
        ]
        labels = (*network, self.device)
        accepted, ended = families.NETWORK_ACCEPTED, families.NETWORK_REQUESTS
        seconds, loads = families.NETWORK_REQUEST_SECONDS, families.NETWORK_LOAD_SECONDS
        rows = families.NETWORK_BATCH_SIZE
        with self._lock:
            self._sort()
            return (
                *self._requests.series(accepted, ended, labels),
                SeriesSnapshot(seconds, labels, self._request_seconds.snapshot()),
                SeriesSnapshot(loads, labels, self._load_seconds.snapshot()),
                SeriesSnapshot(rows, labels, self._batch_size.snapshot()),
                *own,
            )

    def _sort(self) -> None:
        ended = taken(self._ended)
        if ended:
            outcomes, seconds, rows, exemplars = zip(*ended, strict=True)
            self._requests.count(outcomes)
            self._request_seconds.observe_all(seconds, exemplars)
            self._batch_size.observe_all(rows)
        self._requests.accepted += len(taken(self._begun))


class Counters:
    """All counters of one server. Thread-safe.

    Args:
        cache: those of its cache of compiled networks, if it has one.
    """

    def __init__(self, cache: CacheCounters | None = None) -> None:
        self._cache = cache
        # Guards the dictionaries below, not the counters in them; no lock is taken under it.
        self._lock = threading.Lock()
        self._devices: dict[str, DeviceCounters] = {}
        self._networks: dict[tuple[str, str, str], NetworkCounters] = {}
        self._network_users: dict[tuple[str, str, str], int] = {}
        self._grpc: dict[str, dict[str, int]] = {}
        self._http: dict[str, dict[str, int]] = {}
        self._refused: list[dict[str, int]] = []
        self._cold: Counter[str] = Counter()
        self._stages = SeriesTable()

    def device(self, name: str) -> DeviceCounters:
        """The counters of a device, made at the first call."""
        with self._lock:
            counters = self._devices.get(name)
            if counters is None:
                counters = self._devices[name] = DeviceCounters(name)
            return counters

    def requests(self) -> tuple[int, int]:
        """How many requests all devices have accepted, and how many of them have ended."""
        with self._lock:
            devices = [*self._devices.values()]
        counted = [device.requests() for device in devices]
        return sum(accepted for accepted, _ in counted), sum(ended for _, ended in counted)

    def network(self, name: str, device: str, version: str = "1") -> NetworkCounters:
        """The counters of a network; `remove_network` has to be called as often as this.

        Counted, because a network and its replacement under the same name and version live side by
        side while the old one drains.
        """
        key = (name, version, device)
        with self._lock:
            counters = self._networks.get(key)
            if counters is None:
                counters = self._networks[key] = NetworkCounters(name, device, version)
            self._network_users[key] = self._network_users.get(key, 0) + 1
            return counters

    def remove_network(self, name: str, device: str, version: str = "1") -> None:
        """Gives back the counters that `network` returned. The last call removes the series."""
        key = (name, version, device)
        with self._lock:
            users = self._network_users.get(key, 0) - 1
            if users > 0:
                self._network_users[key] = users
            else:
                self._network_users.pop(key, None)
                self._networks.pop(key, None)

    def grpc(self, method: str) -> dict[str, int]:
        """How many RPCs of a method have ended with which code, for one thread to count in.

        Args:
            method: one that the server has, never a client's text.
        """
        with self._lock:
            return self._grpc.setdefault(method, {})

    def http(self, path: str) -> dict[str, int]:
        """How many HTTP requests of a path have ended with which status, for one thread to count
        in.

        Args:
            path: a template that the server has, as ``/v2/models/{model}``, never a client's text.
        """
        with self._lock:
            return self._http.setdefault(path, {})

    def refused(self) -> dict[str, int]:
        """How many callers were refused for which reason, for one thread to count in.

        The reasons are the server's, never a client's text.
        """
        counts: dict[str, int] = {}
        with self._lock:
            self._refused.append(counts)
        return counts

    def count_cold(self, network: str) -> None:
        """Counts a request that came while its network was not loaded."""
        with self._lock:
            self._cold[network] += 1

    def forget_cold(self, network: str) -> None:
        """Removes the series of `count_cold` of a network that is gone."""
        with self._lock:
            self._cold.pop(network, None)

    def observe_stages(self, seconds: Mapping[str, float]) -> None:
        """Counts what each stage of a load took."""
        for name, took in seconds.items():
            self._stages.get(families.LOAD_STAGE_SECONDS, name).add(took)

    def snapshot(self) -> Snapshot:
        with self._lock:
            devices = list(self._devices.values())
            networks = list(self._networks.values())
            calls = [
                SeriesSnapshot(family, (name, code), count)
                for family, named in (
                    (families.GRPC_REQUESTS, self._grpc),
                    (families.HTTP_REQUESTS, self._http),
                )
                for name, codes in named.items()
                for code, count in codes.copy().items()
            ]
            calls += [
                SeriesSnapshot(families.COLD_REQUESTS, (name,), count)
                for name, count in self._cold.items()
            ]
            reasons = sum((Counter(counts.copy()) for counts in self._refused), Counter[str]())
            calls += [
                SeriesSnapshot(families.REFUSED_CALLERS, (reason,), count)
                for reason, count in reasons.items()
            ]
        for device in devices:
            device.sort()
        counted = [device.snapshot() for device in devices] + [
            network.snapshot() for network in networks
        ]
        if self._cache is not None:
            counted.append(self._cache.snapshot())
        return (*chain.from_iterable(counted), *calls, *self._stages.snapshot())
