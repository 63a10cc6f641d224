"""Ranks devices for a network: by the data types they compute in, then by device type. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import onnx_ir as ir

from headrace.runtime.network.network import Network

_CAPABILITIES = {
    ir.DataType.FLOAT16: "FP16",
    ir.DataType.BFLOAT16: "BF16",
    ir.DataType.DOUBLE: "FP64",
}
_QUANTIZED = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "QuantizeLinear")


class DeviceType(enum.IntEnum):
    """The values of a device's metric DEVICE_TYPE, the best first. EMULATED: the device is a
    processor behind an accelerator's interface. REFERENCE: the device is exact and slow."""

    DISCRETE = 0
    INTEGRATED = 1
    PROCESSOR = 2
    EMULATED = 3
    REFERENCE = 4


_KNOWN = {
    "CPU": DeviceType.PROCESSOR,
    "TEMPLATE": DeviceType.REFERENCE,
}


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The facts about a device that decide its rank."""

    type: DeviceType
    capabilities: frozenset[str]


def device_type(name: str, told: object = None) -> DeviceType:
    """The type that the device reports, or the known type for its name. An unknown device counts as
    an accelerator, because that is the only likely reason to add a device.

    Args:
        told: DEVICE_TYPE, if the device has that metric.
    """
    if isinstance(told, str) and told.upper() in DeviceType.__members__:
        return DeviceType[told.upper()]
    return _KNOWN.get(name.partition(".")[0], DeviceType.INTEGRATED)


def is_slow(device: str) -> str:
    """Warns that a reference device serves because no other one does."""
    return (
        f"{device} is a reference device: requests take a hundred times longer on it, and often "
        "more; it serves because no other device does"
    )


def needs(network: Network) -> frozenset[str]:
    """The OPTIMIZATION_CAPABILITIES that a device should have for the network."""
    capabilities = {_CAPABILITIES[each] for each in network.types & _CAPABILITIES.keys()}
    if any(operator in _QUANTIZED for _, operator in network.operators):
        capabilities.add("INT8")
    return frozenset(capabilities)


def ranked(
    devices: Sequence[DeviceFacts | None], needed: AbstractSet[str], *, in_order: bool
) -> list[int]:
    """The positions of the devices in the given list, the best one first.

    Args:
        devices: None for a device that nothing is known about. It comes last.
        in_order: the list's order is the user's preference. It replaces the order of the types.
    """

    def key(place: int) -> tuple[int, int, int]:
        facts = devices[place]
        if facts is None:
            return (len(needed) + 1, 0, place)
        lacking = len(needed - facts.capabilities)
        return (lacking, 0 if in_order else facts.type, place)

    return sorted(range(len(devices)), key=key)
