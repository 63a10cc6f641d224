"""A process beside a device that computes in the server, for networks that the server might not
survive.

The device says which networks these are. For clients they are on the device like any other: they
have its queue, streams, counters and configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.device import Device
from headrace.runtime.device.places import Places
from headrace.runtime.device.state import DeviceStates
from headrace.runtime.errors import Unavailable
from headrace.runtime.isolation.server.plugin import IsolatedPlugin
from headrace.runtime.isolation.server.process import WorkerProcess
from headrace.runtime.isolation.server.workers import Launch


class OwnProcess(IsolatedPlugin):
    """The worker starts when it is first needed, and restarts as that of an isolated device does.
    The device stays up meanwhile, because its other networks do.

    Args:
        device: the device in the server. It checks configurations, and hands on its changes.
        path: its creation function, as ``module:function``.
        places: its places.
        launch: as `WorkerHost`.
    """

    def __init__(
        self, device: Device, path: str, places: Places, launch: Launch = WorkerProcess
    ) -> None:
        self._device = device
        super().__init__(
            device.name,
            replace(device.services, states=DeviceStates()),
            device.config.explicit_strings(),
            path,
            stub=device,
            launch=launch,
            places=places,
        )

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Follows the device, which has checked the changes."""
        with self._setting:
            self._changes = dict(changes)
            Device.set_config(self, changes)

    def _set_config(self, config: Configuration) -> None:
        with suppress(Unavailable):  # the next worker starts with the new configuration
            super()._set_config(config)

    def _device_ids(self) -> list[str]:
        return self._device.device_ids()
