"""Which device is best for a network: by the types that it computes in, then by its own. Pure."""

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
    """What the metric DEVICE_TYPE of a device says, the best first. EMULATED: an accelerator's
    interface on the processor. REFERENCE: exact and slow."""

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
class Facts:
    """What counts of a device."""

    type: DeviceType
    capabilities: frozenset[str]


def device_type(name: str, told: object = None) -> DeviceType:
    """The type that a device tells, else the one that its name is known for; an unknown device is
    taken for an accelerator, because only that is a likely reason to add one.

    Args:
        told: DEVICE_TYPE, if it has that metric.
    """
    if isinstance(told, str) and told.upper() in DeviceType.__members__:
        return DeviceType[told.upper()]
    return _KNOWN.get(name.partition(".")[0], DeviceType.INTEGRATED)


def needs(network: Network) -> frozenset[str]:
    """The OPTIMIZATION_CAPABILITIES that a device should have for the network."""
    graph = network.model.graph
    values = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    capabilities = {_CAPABILITIES[v.dtype] for v in values if v.dtype in _CAPABILITIES}
    if any(node.op_type in _QUANTIZED for node in graph):
        capabilities.add("INT8")
    return frozenset(capabilities)


def ranked(
    devices: Sequence[Facts | None], needed: AbstractSet[str], *, in_order: bool
) -> list[int]:
    """Places of the devices, the best one first.

    Args:
        devices: None if nothing is known about the device, which then comes last.
        in_order: the list's order is the user's preference, and counts instead of the types.
    """

    def key(place: int) -> tuple[int, int, int]:
        facts = devices[place]
        if facts is None:
            return (len(needed) + 1, 0, place)
        lacking = len(needed - facts.capabilities)
        return (lacking, 0 if in_order else facts.type, place)

    return sorted(range(len(devices)), key=key)
