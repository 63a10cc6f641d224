"""Other devices for a device that cannot do without them: the server's, and where the operator left
one out, one that nobody else sees."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import replace

from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import create_plugin, installed_plugins
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceStates
from headrace.runtime.errors import NotFound


class OwnDevices:
    """`Devices`. Thread-safe: `_lock` guards `_made`, and is held while one of them is made.

    Args:
        services: of the device that needs them.
        names: the devices that it needs. They are made without any configuration.
    """

    def __init__(self, services: Services, names: Collection[str]) -> None:
        self._servers = services.devices
        self._services = replace(services, states=DeviceStates(), devices=self)
        self._names = names
        self._lock = threading.Lock()
        self._made: dict[str, Plugin] = {}

    def plugin(self, device: str) -> Plugin:
        try:
            return self._servers.plugin(device)
        except NotFound:
            if device not in self._names:
                raise
        with self._lock:
            if device not in self._made:
                self._made[device] = create_plugin(installed_plugins()[device], self._services)
            return self._made[device]

    def available(self) -> Mapping[str, list[str]]:
        return self._servers.available()

    def reasons(self) -> dict[str, str]:
        return self._servers.reasons()

    def not_installed(self) -> frozenset[str]:
        return self._servers.not_installed()

    def kill(self) -> None:
        """As `Plugin.kill`, for those that were made."""
        for plugin in [*self._made.values()]:
            plugin.kill()

    def close(self) -> None:
        """As `Plugin.close`, for those that were made."""
        for plugin in self._made.values():
            plugin.close()
