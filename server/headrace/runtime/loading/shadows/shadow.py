"""What a network's shadow is, and which shadows there can be."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.errors import FailedPrecondition, InvalidArgument
from headrace.runtime.loading.entry import (
    NetworkEntry,
    check_version,
    full_name,
    owner_of,
    plain_name,
)
from headrace.runtime.pipelines.description import DEVICE as PIPELINE

WHOLE: Final = 100
PERCENT: Final = 5
"""The share of the requests if nobody says another."""

OUTCOMES: Final = ("equal", "close", "differs", "failed", "dropped")
"""What becomes of a request that is chosen."""


class Shadow(NamedTuple):
    """
    Attributes:
        version, device: what gets the requests too: a version of the network, or the network on
            this device. One of them is empty. Both are if there is no shadow.
        percent: of the requests.
    """

    version: str = ""
    device: str = ""
    percent: int = PERCENT

    def __str__(self) -> str:
        return f"version {self.version}" if self.version else self.device


def copy_name(name: str) -> str:
    """The full name of a network on its shadow's device."""
    return full_name(f"{plain_name(name)}.shadow", owner_of(name))


NO_SHADOW: Final = Shadow(percent=0)


def check_shadow(shadow: Shadow, field: str = "") -> Shadow:
    """Returns the shadow, or `NO_SHADOW` if its share is 0.

    Args:
        field: what the fields of the error stand in.

    Raises:
        InvalidArgument: it is none.
    """
    version, device, percent = shadow
    if not 0 <= percent <= WHOLE:
        message = f"percent is {percent}; a share is a whole number from 0 to {WHOLE}"
        raise InvalidArgument(message, field=f"{field}percent")
    if not percent:
        return NO_SHADOW
    if bool(version) == bool(device):
        message = "give a shadow a version or a device, one of them"
        raise InvalidArgument(message, field=f"{field}version")
    if version:
        check_version(version, f"{field}version")
        return shadow
    return shadow._replace(device=str(DeviceName.parse(device, field=f"{field}device")))


def check_network(entry: NetworkEntry, shadow: Shadow) -> None:
    """
    Raises:
        FailedPrecondition: the network's requests cannot be compared, or it cannot be loaded on the
            shadow's device.
    """
    name, executable = plain_name(entry.key.name), entry.executable
    if shadow.device and entry.record.request.device.type == PIPELINE:
        raise FailedPrecondition(
            f"{name!r} is a pipeline, which runs on the devices of its steps: shadow another "
            "version of it, or a network of its steps",
            field="device",
        )
    if executable is None:
        return
    if executable.states:
        raise FailedPrecondition(
            f"network {name!r} keeps states, so a sequence would have to run on its shadow as a "
            "whole: compare versions of it with a client",
            field="network",
        )
    if random := executable.random_layers():
        raise FailedPrecondition(
            f"network {name!r} computes with random numbers ({random[0]}), so the same inputs give "
            "other outputs the next time",
            field="network",
        )
