"""The devices that a network is split over, from the device's name or TARGET_FALLBACK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.plugins.hetero.config import SCHEMA, TARGET_FALLBACK
from headrace.runtime.config.device_name import DeviceName, Member, resolve
from headrace.runtime.device.services import Devices
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.virtual import members
from headrace.runtime.virtual.members import Target


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
        config, shared: as `members.targets`.

    Raises:
        InvalidArgument: there is no list, or it holds HETERO.
        NotFound, Unavailable: a device does not exist, or did not start.
    """
    names = _unnested(options.members) or _listed(fallback, devices)
    return members.targets(names, config, shared, devices, members.withheld_keys(SCHEMA))


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
