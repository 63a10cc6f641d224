"""Where a device type's networks run: an executor, an admission and counters for each device id."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.runtime.admission import Admission
from headrace.runtime.executable_network import Place
from headrace.runtime.services import Services
from headrace.runtime.standard_keys import QUEUE_CAPACITY
from headrace.runtime.streams_executor import StreamsExecutor

_EXCLUSIVE = "EXCLUSIVE"


class Places:
    """The places of one device type. Thread-safe; `_lock` guards the table and the capacity.

    Args:
        device: the type's name.
        streams: how many requests each of its devices runs at once.
    """

    def __init__(self, device: str, services: Services, streams: Callable[[], int]) -> None:
        self._device = device
        self._services = services
        self._streams = streams
        self._lock = threading.Lock()
        self._capacity = QUEUE_CAPACITY.default
        self._admissions: dict[str, Admission] = {}

    def executor(self, device_id: str, *, exclusive: bool, bind: bool) -> StreamsExecutor:
        """The streams of a device, or the one stream that all exclusive networks share."""
        if exclusive:
            return self._services.executors.get(_EXCLUSIVE, 1)
        return self._services.executors.get(self._name(device_id), self._streams(), bind=bind)

    def find_executor(self, device_id: str) -> StreamsExecutor | None:
        return self._services.executors.find(self._name(device_id))

    def have_streams(self) -> bool:
        """Whether a device of the type has its streams yet."""
        with self._lock:
            names = list(self._admissions)
        return any(self._services.executors.find(name) is not None for name in names)

    def place(self, device_id: str, executor: StreamsExecutor | None) -> Place:
        """What a network needs to take requests; `executor` is None for a virtual device."""
        name = self._name(device_id)
        counters = self._services.counters.device(name)
        with self._lock:
            admission = self._admissions.get(name)
            if admission is None:
                admission = self._admissions[name] = Admission(name, self._capacity, self._streams)
                counters.register_gauge("queue_capacity", lambda: admission.capacity)
                if executor is not None and executor.name == name:
                    counters.register_gauge("queue_depth", lambda: executor.waiting)
                    counters.register_gauge("streams", lambda: executor.streams)
                    counters.register_gauge("streams_busy", lambda: executor.busy)
        return Place(name, admission, counters, self._services.timer)

    def resize(self, streams: int, capacity: int) -> None:
        """Gives every device of the type another number of streams and queue capacity."""
        with self._lock:
            self._capacity = capacity
            admissions = dict(self._admissions)
        for name, admission in admissions.items():
            admission.capacity = capacity
            executor = self._services.executors.find(name)
            if executor is not None and executor.streams != streams:
                executor.resize(streams)

    def _name(self, device_id: str) -> str:
        return f"{self._device}.{device_id}" if device_id else self._device
