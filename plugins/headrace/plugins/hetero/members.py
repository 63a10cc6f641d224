"""The devices that a network is split over, each with its part of the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.plugins.hetero.config import NOT_FOR_MEMBERS, TARGET_FALLBACK
from headrace.runtime.config import ConfigSchema, check_prefixes, for_device
from headrace.runtime.device_name import DeviceName, Member, resolve
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network_options import NetworkOptions
from headrace.runtime.plugin import Plugin
from headrace.runtime.services import Devices


@dataclass(frozen=True, slots=True)
class Target:
    """A device of the list.

    Attributes:
        name: as in the list, with the id if there is one.
        config: what its plugin takes at load; DEVICE_ID included.
        options: the members of a virtual one.
    """

    name: str
    plugin: Plugin
    config: Mapping[str, str]
    options: NetworkOptions


def targets(
    options: NetworkOptions,
    fallback: str,
    config: Mapping[str, str],
    shared: Mapping[str, str],
    devices: Devices,
) -> tuple[Target, ...]:
    """The devices in order of preference.

    Args:
        options: its members are the list, if it has any.
        fallback: the list otherwise, as TARGET_FALLBACK gives it.
        config: of the load or query. A key without a prefix goes to every device that knows it,
            ``CPU.NUM_STREAMS`` to CPU alone.
        shared: what was set on HETERO itself, over which `config` wins.

    Raises:
        InvalidArgument: there is no list, or it holds HETERO.
        NotFound, Unavailable: a device does not exist, or did not start.
    """
    names = _unnested(options.members) or _listed(fallback, devices)
    plain = {key: text for key, text in {**shared, **config}.items() if "." not in key}
    special = {key: text for key, text in config.items() if "." in key}
    return tuple(_target(name, plain, special, devices.plugin(name.type)) for name in names)


def listed(found: Iterable[Target]) -> str:
    """The list as it stands in a device name."""
    return ",".join(f"[{each.name}]" if ":" in each.name else each.name for each in found)


def own_config(
    schema: ConfigSchema, config: Mapping[str, str], found: Sequence[Target]
) -> dict[str, str]:
    """What of a load's configuration is HETERO's own to judge: its keys, and those that nobody
    knows."""
    return {
        key: text
        for key, text in config.items()
        if "." not in key
        and (key in schema or not any(key in each.plugin.schema for each in found))
    }


def check_owners(config: Mapping[str, str], found: Sequence[Target]) -> None:
    """
    Raises:
        NotFound: a key's prefix names none of the devices.
    """
    physical = (str(device) for each in found for device in DeviceName.parse(each.name).physical())
    check_prefixes(config, physical)


def _listed(fallback: str, devices: Devices) -> list[DeviceName]:
    if not fallback:
        raise InvalidArgument(
            "HETERO needs to know which devices to split over: name them in order of preference, "
            f"as HETERO:CPU,TEMPLATE, or set {TARGET_FALLBACK.name} to such a list",
            field="device",
        )
    field = f"config[{TARGET_FALLBACK.name!r}]"
    name = DeviceName.parse(f"HETERO:{fallback}", field=field)
    kinds = {kind for device in _unnested(name.members) for kind in _types(device)}
    available = {kind: devices.plugin(kind).device_ids() for kind in kinds}
    return _unnested(resolve(name, {**available, name.type: []}, field=field).members)


def _types(name: DeviceName) -> Iterator[str]:
    yield name.type
    for member in name.members:
        yield from _types(member.device)


def _unnested(members: Sequence[Member]) -> list[DeviceName]:
    """The devices of a list, none of which may split networks itself."""
    for member in members:
        if "HETERO" in _types(member.device):
            raise InvalidArgument(
                f"{member.device} in a list of HETERO's would split what is split already; put "
                "its devices into the list itself",
                field="device",
            )
    return [member.device for member in members]


def _target(
    name: DeviceName, plain: Mapping[str, str], special: Mapping[str, str], plugin: Plugin
) -> Target:
    known = {
        key: text
        for key, text in plain.items()
        if key in plugin.schema and key not in NOT_FOR_MEMBERS
    }
    if name.members:
        inner = [str(device) for device in name.physical()]
        owned = {
            key: text
            for key, text in special.items()
            if any(for_device({key: text}, device) for device in inner)
        }
        return Target(str(name), plugin, {**known, **owned}, NetworkOptions(members=name.members))
    own = {**known, **for_device(special, str(name))}
    if name.id:
        own["DEVICE_ID"] = name.id
    return Target(str(name), plugin, own, NetworkOptions())
