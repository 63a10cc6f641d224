"""Where a device type's networks run: an executor, an admission and counters for each device id."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable

from headrace.runtime.config.standard_keys import QUEUE_CAPACITY
from headrace.runtime.device.executable_network import ExecutableNetwork, Place
from headrace.runtime.device.services import Services
from headrace.runtime.execution.admission import Admission
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.metrics import families

_EXCLUSIVE = "EXCLUSIVE"


class Places:
    """The places of one device type. Thread-safe: `_lock` guards the tables and the capacity.

    Args:
        device: the type's name.
        streams: returns how many requests each device of the type runs at once.
        memory_bytes: takes a device id, and returns the bytes that networks hold on that device.
    """

    def __init__(
        self,
        device: str,
        services: Services,
        streams: Callable[[], int],
        memory_bytes: Callable[[str], float],
    ) -> None:
        self._device = device
        self._services = services
        self._streams = streams
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._capacity = QUEUE_CAPACITY.default
        self._admissions: dict[str, Admission] = {}
        self._weights: dict[str, list[tuple[weakref.ref[ExecutableNetwork], int]]] = {}

    def announce(self, device_ids: Iterable[str]) -> None:
        """Shows these devices in the metrics from now on."""
        for device_id in device_ids:
            self._admission(device_id)

    def withdraw(self) -> None:
        """Removes all gauges from the metrics."""
        for name in self.names():
            self._services.counters.device(name).unregister_gauges()

    def names(self) -> list[str]:
        """The names in metrics (for example CPU.0) of the devices that were announced or used."""
        with self._lock:
            return list(self._admissions)

    def executor(self, device_id: str, *, exclusive: bool, bind: bool) -> StreamsExecutor:
        """The streams of a device, or the one stream that all exclusive networks share."""
        if exclusive:
            return self._services.executors.get(_EXCLUSIVE, 1)
        return self._services.executors.get(self._name(device_id), self._streams(), bind=bind)

    def find_executor(self, device_id: str) -> StreamsExecutor | None:
        return self._services.executors.find(self._name(device_id))

    def have_streams(self) -> bool:
        """Whether a device of the type already has its streams."""
        return any(self._services.executors.find(name) is not None for name in self.names())

    def place(self, device_id: str, executor: StreamsExecutor | None) -> Place:
        """What a network needs to take requests; `executor` is None for a virtual device."""
        name, admission = self._name(device_id), self._admission(device_id)
        counters = self._services.counters.device(name)
        if executor is not None and executor.name == name:
            counters.register_gauge(families.DEVICE_QUEUE_DEPTH, lambda: executor.waiting)
            counters.register_gauge(families.DEVICE_STREAMS, lambda: executor.streams)
            counters.register_gauge(families.DEVICE_STREAMS_BUSY, lambda: executor.busy)
        return Place(name, admission, counters, self._services.timer)

    def hold(self, device_id: str, network: ExecutableNetwork) -> None:
        """Counts a network's weights for the device until the network is closed. The weights of a
        virtual device's network count for the devices that its parts run on."""
        if network.executor is None:
            return
        name, held = self._name(device_id), (weakref.ref(network), network.network.weight_bytes)
        with self._lock:
            self._weights[name] = [*self._held(name), held]

    def weight_bytes(self, device_id: str) -> int:
        """The bytes of weights of the networks that a device holds."""
        name = self._name(device_id)
        with self._lock:
            self._weights[name] = self._held(name)
            return sum(size for _, size in self._weights[name])

    def _held(self, name: str) -> list[tuple[weakref.ref[ExecutableNetwork], int]]:
        return [
            (reference, size)
            for reference, size in self._weights.get(name, ())
            if (network := reference()) is not None and not network._closed
        ]

    def _admission(self, device_id: str) -> Admission:
        name = self._name(device_id)
        with self._lock:
            known = self._admissions.get(name)
            if known is not None:
                return known
            admission = self._admissions[name] = Admission(name, self._capacity, self._streams)
        counters = self._services.counters.device(name)
        counters.register_gauge(families.DEVICE_QUEUE_CAPACITY, lambda: admission.capacity)
        counters.register_gauge(families.DEVICE_MEMORY_BYTES, lambda: self._memory_bytes(device_id))
        return admission

    def resize(self, streams: int, capacity: int) -> None:
        """Gives every device of the type another number of streams and queue capacity."""
        with self._lock:
            self._capacity = capacity
            admissions = dict(self._admissions)
        for name, admission in admissions.items():
            admission.capacity = capacity
            self._services.executors.resize(name, streams)

    def _name(self, device_id: str) -> str:
        return f"{self._device}.{device_id}" if device_id else self._device
