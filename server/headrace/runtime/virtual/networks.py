"""Functions that a virtual device calls on the networks that other devices have loaded for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.runtime.config.key import Key
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.executable_network import ExecutableNetwork


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


def showing(
    config: Configuration, network: ExecutableNetwork, keys: Iterable[Key[Any]]
) -> Configuration:
    """The configuration with the values that the network's device has chosen for these keys."""
    values = network.config.to_strings()
    chosen = {key.name: values[key.name] for key in keys if key in network.config}
    return config.schema.resolve(config.explicit_strings(), chosen)
