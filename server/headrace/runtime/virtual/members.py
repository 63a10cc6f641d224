"""The devices of a virtual device's list, each with its part of the configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.runtime.config.device_name import DeviceName, Member, resolve
from headrace.runtime.config.key import Key, config_field
from headrace.runtime.config.prefixes import check_prefixes, for_device
from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.config.standard_keys import DEVICE_ID, STANDARD_KEYS
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Devices
from headrace.runtime.errors import EndedWorker, UnsupportedLayer
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult


@dataclass(frozen=True, slots=True)
class Target:
    """A device of the list.

    Attributes:
        device: as in the list, with the id if there is one.
        config: the configuration that its plugin gets at load, including DEVICE_ID.
        options: the members, if the device is virtual.
    """

    device: DeviceName
    plugin: Plugin
    config: Mapping[str, str]
    options: NetworkOptions

    @property
    def name(self) -> str:
        return str(self.device)


def read_list(
    device_type: str,
    text: str,
    key: Key[str],
    available: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Member, ...]:
    """The devices that a key lists. The list is written as in the name of a virtual device.

    Args:
        device_type: of the virtual device.
        available: as for `resolve`. None means that the list is taken as it is written.

    Raises:
        InvalidArgument, NotFound: the text is not such a list, or a device does not exist.
    """
    field = config_field(key.name)
    name = DeviceName.parse(f"{device_type}:{text}", field=field)
    if available is None:
        return name.members
    return resolve(name, {device_type: [], **available}, field=field).members


def withheld_keys(schema: ConfigSchema, *own: Key[Any]) -> frozenset[str]:
    """Keys that a virtual device does not pass to the devices of its list: the keys of the whole
    device, and its own keys.

    Args:
        schema: the virtual device's.
        own: standard keys that are meant for the virtual device itself.
    """
    shared = {key.name for key in STANDARD_KEYS if key.scope == "network"}
    shared -= {DEVICE_ID.name, *(key.name for key in own)}
    return frozenset(key.name for key in schema if key.name not in shared)


def targets(
    names: Iterable[DeviceName],
    config: Mapping[str, str],
    shared: Mapping[str, str],
    devices: Devices,
    withheld: Collection[str],
) -> tuple[Target, ...]:
    """The devices in the order of their names.

    Args:
        config: of the load or query. A key without a prefix goes to every device that knows it.
            ``CPU.NUM_STREAMS`` goes only to CPU.
        shared: the keys that were set on the virtual device itself; `config` overrides them.
        withheld: keys without a prefix that are not passed on.

    Raises:
        NotFound, Unavailable: a device does not exist, or did not start.
    """
    plain = {
        key: text
        for key, text in {**shared, **config}.items()
        if "." not in key and key not in withheld
    }
    special = {key: text for key, text in config.items() if "." in key}
    return tuple(_target(name, plain, special, devices.plugin(name.type)) for name in names)


def ask(target: Target, network: Network) -> QueryResult:
    """The layers that a device of the list would run. If the model ended the device's worker
    process, the device runs none of them, so that the other devices are tried."""
    try:
        return target.plugin.query_network(network, target.config, target.options)
    except EndedWorker as error:
        return QueryResult(
            unsupported=[
                UnsupportedLayer(layer.name, layer.op_type, error.message, target.name)
                for layer in network.layers
            ]
        )


def listed(targets: Iterable[Target]) -> str:
    """The list as it is written in a device name."""
    return ",".join(f"[{target.name}]" if ":" in target.name else target.name for target in targets)


def own_config(
    schema: ConfigSchema, config: Mapping[str, str], targets: Sequence[Target]
) -> dict[str, str]:
    """The part of a load's configuration that the virtual device itself checks: its own keys, and
    the keys that no device has."""
    return {
        key: text
        for key, text in config.items()
        if "." not in key
        and (key in schema or not any(key in target.plugin.schema for target in targets))
    }


def check_owners(config: Mapping[str, str], devices: Iterable[DeviceName]) -> None:
    """
    Raises:
        NotFound: a key's prefix names none of the devices.
    """
    check_prefixes(config, (str(physical) for device in devices for physical in device.physical()))


def _target(
    name: DeviceName, plain: Mapping[str, str], special: Mapping[str, str], plugin: Plugin
) -> Target:
    known = {key: text for key, text in plain.items() if key in plugin.schema}
    if name.members:
        inner = [str(device) for device in name.physical()]
        owned = {
            key: text
            for key, text in special.items()
            if any(for_device({key: text}, device) for device in inner)
        }
        return Target(name, plugin, {**known, **owned}, NetworkOptions(members=name.members))
    own = {**known, **for_device(special, str(name))}
    if name.id:
        own["DEVICE_ID"] = name.id
    return Target(name, plugin, own, NetworkOptions())
