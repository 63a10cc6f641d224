"""Prefixes of configuration keys: ``CPU.NUM_STREAMS`` is the key NUM_STREAMS for CPU alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.key import MAX_NAME_LENGTH, config_field
from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.errors import InvalidArgument, NotFound


def checked_for(config: Mapping[str, str], device: DeviceName) -> dict[str, str]:
    """As `own_config`, after a check that the prefixes name the device or those of its list.

    Raises:
        NotFound: as `check_prefixes`.
        InvalidArgument: as `own_config`.
    """
    listed = [str(physical) for physical in device.physical()]
    # A virtual device checks the prefixes itself if its list is empty or has only exclusions.
    if not device.is_virtual or (device.members and listed):
        check_prefixes(config, listed)
    return own_config(config, device)


def own_config(config: Mapping[str, str], device: DeviceName) -> dict[str, str]:
    """What a device gets of a configuration: its own part without prefixes, and its DEVICE_ID.

    A virtual device gets all of it, because it removes the prefixes itself, for each device of its
    list.

    Raises:
        InvalidArgument: as `for_device`.
    """
    if device.is_virtual:
        return dict(config)
    own = for_device(config, str(device))
    return {**own, "DEVICE_ID": device.id} if device.id else own


def for_device(config: Mapping[str, str], device: str) -> dict[str, str]:
    """The part of a list's configuration that is for one `device`, without prefixes.

    A key without a prefix is for every device. ``CPU.NUM_STREAMS`` is for CPU alone and wins over
    it, ``CPU.1.NUM_STREAMS`` is for CPU.1 alone and wins over both.

    Args:
        device: type or type and id, as "CPU" or "CPU.1".

    Raises:
        InvalidArgument: the device has an id, and DEVICE_ID is another one.
    """
    wanted = ["", device.partition(".")[0].upper()]
    if "." in device:
        wanted.append(_fold_device(device))
    chosen: dict[str, str] = {}
    for prefix in wanted:
        for name, text in config.items():
            owner, _, key = name.rpartition(".")
            if _fold_device(owner) == prefix:
                chosen[key] = text
    device_id = device.partition(".")[2]
    if device_id and chosen.get("DEVICE_ID", "") not in ("", device_id):
        raise InvalidArgument(
            f"the device is {device}, and DEVICE_ID is {chosen['DEVICE_ID']!r}: give one of them",
            field=config_field("DEVICE_ID"),
        )
    return chosen


def check_prefixes(config: Mapping[str, str], devices: Iterable[str]) -> None:
    """Refuses keys with a prefix that names none of `devices` ("CPU", "CPU.1").

    Raises:
        NotFound: naming the key.
    """
    known = {name for device in devices for name in (device, device.partition(".")[0].upper())}
    folded = {_fold_device(device) for device in known}
    for name in config:
        owner, dot, _ = name[: MAX_NAME_LENGTH + 1].rpartition(".")
        if dot and _fold_device(owner) not in folded:
            raise NotFound.unknown(
                "device", owner, known, field=config_field(name[:MAX_NAME_LENGTH])
            )


def split_off(
    config: Mapping[str, str], schema: ConfigSchema
) -> tuple[dict[str, str], dict[str, str]]:
    """The part of a load's configuration that no device gets, because it is about the whole
    network, and the rest.

    Args:
        schema: the keys of that part.

    Raises:
        InvalidArgument: one of these keys has a device's prefix.
    """
    own = {name: text for name, text in config.items() if name in schema}
    rest = {name: text for name, text in config.items() if name not in schema}
    for name in rest:
        prefix, dot, key = name.rpartition(".")
        if dot and key in schema:
            raise InvalidArgument(
                f"{key} belongs to the whole network, not to {prefix}: give it without a prefix",
                field=config_field(name),
            )
    return own, rest


def _fold_device(name: str) -> str:
    kind, dot, device_id = name.partition(".")
    return kind.upper() + dot + device_id
