"""A network loaded on one device of a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.state import DeviceEvent, DeviceState


@dataclass(frozen=True, slots=True)
class Member:
    """A network loaded on one device of a list.

    Attributes:
        name: the device, as in the list.
        count: requests that it gets at once; None: as many as it runs.
        architecture, backend_version: the device's, for an export.
    """

    name: str
    executable: ExecutableNetwork
    count: int | None = None
    architecture: str = ""
    backend_version: str = ""

    def execution_devices(self) -> list[str]:
        """The physical devices that run it."""
        devices = self.executable.get_metric("EXECUTION_DEVICES")
        assert isinstance(devices, list)
        return devices

    def optimal_requests(self) -> int:
        """How many requests at once fill its devices, at this moment."""
        optimal = self.executable.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        assert isinstance(optimal, int)
        return max(1, optimal)

    def is_told_of(self, event: DeviceEvent) -> bool:
        """Whether the event is about a device that it needs."""
        return event.device in self._needs()

    def down(self, events: Mapping[str, DeviceEvent]) -> str:
        """Why it cannot work, by what its devices say of themselves; empty if it can."""
        for device in sorted(self._needs()):
            event = events.get(device)
            if event is not None and event.state is not DeviceState.UP:
                return event.reason or event.state.value
        return ""

    def _needs(self) -> set[str]:
        """Names under which devices tell their state: CPU.1 and its type, CPU."""
        physical = DeviceName.parse(self.name).physical()
        return {name for device in physical for name in (str(device), device.type)}
