"""The devices that a network is split over, from the device's name or TARGET_FALLBACK."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plugins.hetero.config import SCHEMA, TARGET_FALLBACK
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
    if not options.members and not fallback:
        raise InvalidArgument(
            "HETERO needs to know which devices to split over: name them in order of preference, "
            f"as HETERO:CPU,TEMPLATE, or set {TARGET_FALLBACK.name} to such a list",
            field="device",
        )
    for member in options.members or members.read_list("HETERO", fallback, TARGET_FALLBACK):
        if "HETERO" in member.device.types():
            raise InvalidArgument(
                f"{member.device} in a list of HETERO's would split what is split already; put "
                "its devices into the list itself",
                field="device",
            )
    listed = options.members or members.read_list(
        "HETERO", fallback, TARGET_FALLBACK, devices.available()
    )
    names = [member.device for member in listed]
    return members.targets(names, config, shared, devices, members.withheld_keys(SCHEMA))
