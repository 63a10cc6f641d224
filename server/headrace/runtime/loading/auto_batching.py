"""When requests to a device may run together though nobody named BATCH."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.standard_keys import (
    ALLOW_AUTO_BATCHING,
    EXCLUSIVE_ASYNC_REQUESTS,
    PERFORMANCE_HINT,
    PERFORMANCE_HINT_NUM_REQUESTS,
)
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Devices
from headrace.runtime.errors import NotFound, Unavailable
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions

BATCHING_DEVICE = "BATCH"


@runtime_checkable
class AutoBatching(Protocol):
    """A device that can find out whether running requests together pays."""

    def join_if_it_pays(
        self,
        load: Callable[[], ExecutableNetwork],
        device: DeviceName,
        network: Network,
        config: Mapping[str, str],
        options: NetworkOptions,
        token: CancelToken,
    ) -> ExecutableNetwork:
        """Has `load`, which raises as the device does, make the network, and joins its requests or
        does not; a note says which, and why.

        Args:
            device, network, config, options: what `load` loads, and where.
        """


def load(
    make: Callable[[], ExecutableNetwork],
    device: DeviceName,
    network: Network,
    config: Mapping[str, str],
    options: NetworkOptions,
    token: CancelToken,
    devices: Devices,
) -> ExecutableNetwork:
    """What `make` loads or imports, its requests joined if that is wanted and pays.

    Raises as `make` does.

    Args:
        device, network, config, options: what `make` loads, and where.
        devices: those of the server, of which one may join requests.
    """
    if not wanted(device, devices.plugin(device.type), config):
        return make()
    try:
        batching = devices.plugin(BATCHING_DEVICE)
    except (NotFound, Unavailable):  # the server offers none
        return make()
    if not isinstance(batching, AutoBatching):
        return make()
    return batching.join_if_it_pays(make, device, network, config, options, token)


def wanted(device: DeviceName, plugin: Plugin, config: Mapping[str, str]) -> bool:
    """Whether a load asks for throughput, and allows batches for it.

    Raises:
        InvalidArgument: on a bad value.
    """
    if device.is_virtual:
        return False
    found = plugin.schema.resolve(plugin.settings(), config, ignore_unknown=True)
    return (
        ALLOW_AUTO_BATCHING in found
        and found[ALLOW_AUTO_BATCHING]
        and found.get(PERFORMANCE_HINT) == "THROUGHPUT"
        and found.get(PERFORMANCE_HINT_NUM_REQUESTS) != 1
        and not found.get(EXCLUSIVE_ASYNC_REQUESTS)
    )
