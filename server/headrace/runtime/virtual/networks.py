"""Functions that a virtual device calls on the networks that other devices have loaded for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.runtime.config.key import Key
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.executable_network import ExecutableNetwork

_log = logging.getLogger(__name__)


def execution_devices(networks: Iterable[ExecutableNetwork]) -> list[str]:
    """The physical devices that run the networks, each once."""
    names: dict[str, None] = {}
    for network in networks:
        devices = network.get_metric("EXECUTION_DEVICES")
        assert isinstance(devices, list)
        names.update(dict.fromkeys(devices))
    return list(names)


def optimal_requests(network: ExecutableNetwork) -> int:
    """How many requests at once fill the network's devices at this moment; at least one."""
    optimal = network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    assert isinstance(optimal, int)
    return max(1, optimal)


def taken_by(network: ExecutableNetwork) -> frozenset[str]:
    """The inputs that the network takes. A request may give another value for one that has a value
    in the network, if the device can replace it."""
    return frozenset(port.name for port in (*network.inputs, *network.defaults))


def set_known(network: ExecutableNetwork, changes: Mapping[str, str]) -> None:
    """Sets the keys that the network's device has. Raises as `ExecutableNetwork.set_config`."""
    known = {key: text for key, text in changes.items() if key in network.config.schema}
    if known:
        network.set_config(known)


def catch_up(
    network: ExecutableNetwork, present: Callable[[], Mapping[str, str]], shown: str
) -> None:
    """Sets the keys that were set before the network was there. Repeats this if more keys are set
    meanwhile. If its device refuses them, it serves without them.

    Args:
        present: a copy of the keys that were set until now.
        shown: the network's device for the log.
    """
    changes: Mapping[str, str] = {}
    while changes != (now := present()):
        changes = now
        try:
            set_known(network, changes)
        except Exception as error:  # noqa: BLE001 - whatever a device does, the network is needed
            _log.warning("%s cannot be set as asked: %s", shown, error)


def showing(
    config: Configuration, network: ExecutableNetwork, keys: Iterable[Key[Any]]
) -> Configuration:
    """The configuration with the values that the network's device has chosen for these keys."""
    values = network.config.to_strings()
    chosen = {key.name: values[key.name] for key in keys if key in network.config}
    return config.schema.resolve(config.explicit_strings(), chosen)
