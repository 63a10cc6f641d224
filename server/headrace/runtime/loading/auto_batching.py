"""Decides when requests to a device run together although the load did not name BATCH."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.standard_keys import (
    ALLOW_AUTO_BATCHING,
    EXCLUSIVE_ASYNC_REQUESTS,
    PERFORMANCE_HINT,
    PERFORMANCE_HINT_NUM_REQUESTS,
)
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Devices
from headrace.runtime.errors import NotFound, Unavailable

BATCHING_DEVICE = "BATCH"


@runtime_checkable
class AutoBatching(Protocol):
    """A device that can find out whether running requests together pays."""

    def join_if_it_pays(self, device: DeviceName, load: Load) -> ExecutableNetwork:
        """Loads the network on the device, and joins its requests if that pays. A note says whether
        it joins them and why. Raises as the device."""


def load(device: DeviceName, load: Load, devices: Devices) -> ExecutableNetwork:
    """Loads a network, and joins its requests if the load wants that and it pays. Raises as the
    device.

    Args:
        devices: the server's devices. One of them may be able to join requests.
    """
    plugin = devices.plugin(device.type)
    if wanted(device, plugin, load.config):
        try:
            batching = devices.plugin(BATCHING_DEVICE)
        except (NotFound, Unavailable):  # the server has no such device
            return plugin.load_network(load)
        if isinstance(batching, AutoBatching):
            return batching.join_if_it_pays(device, load)
    return plugin.load_network(load)


def wanted(device: DeviceName, plugin: Plugin, config: Mapping[str, str]) -> bool:
    """Whether a load asks for throughput, and allows batches for it.

    Raises:
        InvalidArgument: a value is bad.
    """
    if device.is_virtual:
        return False
    resolved = plugin.schema.resolve(plugin.settings(), config, ignore_unknown=True)
    return (
        ALLOW_AUTO_BATCHING in resolved
        and resolved[ALLOW_AUTO_BATCHING]
        and resolved.get(PERFORMANCE_HINT) == "THROUGHPUT"
        and resolved.get(PERFORMANCE_HINT_NUM_REQUESTS) != 1
        and not resolved.get(EXCLUSIVE_ASYNC_REQUESTS)
    )
