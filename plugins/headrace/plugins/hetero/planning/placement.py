"""Finds the devices for a network's layers that cost least, by what layers and copies take. Pure.

With two devices the answer is exact: the cheapest of all placements is a minimum cut (H. S. Stone:
Multiprocessor scheduling with the aid of network flow algorithms, IEEE Transactions on Software
Engineering SE-3, 1977). A tensor that several layers on the other device read is copied once. With
more devices, each pair of them shares its layers out anew until nothing gets cheaper (the swap
moves of Y. Boykov, O. Veksler and R. Zabih: Fast approximate energy minimization via graph cuts,
IEEE Transactions on Pattern Analysis and Machine Intelligence 23, 2001).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from headrace.plugins.hetero.planning.minimum_cut import FlowNetwork

MOST_LAYERS: Final = 2000
"""The most layers that are placed by their costs: the search is written in Python."""
_MOST_ROUNDS: Final = 8
_UNITS: Final = 1e9
"""Capacities are nanoseconds."""
_SOURCE: Final = 0
_SINK: Final = 1


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """What a network's layers cost.

    Attributes:
        seconds: for each layer, by device; a device that does not run it is not there.
        tensors: the layer that makes each tensor, the layers that read it, and the seconds of a
            copy to another device.
    """

    seconds: Sequence[Mapping[str, float]]
    tensors: Sequence[tuple[int, Sequence[int], float]]

    def total(self, devices: Sequence[str]) -> float:
        """What all layers and copies take, one after the other; infinite if a device does not run
        its layer."""
        layers = sum(
            costs.get(device, math.inf) for costs, device in zip(self.seconds, devices, strict=True)
        )
        copies = sum(
            seconds
            for maker, readers, seconds in self.tensors
            if any(devices[reader] != devices[maker] for reader in readers)
        )
        return layers + copies


def placed(costs: LayerCosts, start: Sequence[str]) -> list[str]:
    """The device of each layer. It costs no more than `start`, and with two devices no more than
    any other placement. Of placements that cost the same, it is one with few devices.

    Args:
        start: devices that run their layers.
    """
    names = sorted({device for each in costs.seconds for device in each})
    starts = [_mostly(costs, device) for device in names]
    starts += [list(start), _mostly(costs, "")]
    if len(names) == 2:
        starts = [min(starts, key=costs.total)]  # from each one the same cut follows
    return min((_improved(costs, each, names) for each in starts), key=costs.total)


def _mostly(costs: LayerCosts, device: str) -> list[str]:
    """Each layer on this device, or else where it takes least."""
    return [device if device in each else min(each, key=each.__getitem__) for each in costs.seconds]


def _improved(costs: LayerCosts, start: Sequence[str], names: Sequence[str]) -> list[str]:
    best, cost = list(start), costs.total(start)
    for _ in range(_MOST_ROUNDS):
        before = cost
        for pair in combinations(names, 2):
            found = _shared_out(costs, best, *pair)
            if (total := costs.total(found)) < cost:
                best, cost = found, total
        if cost == before or len(names) == 2:
            break
    return best


def _shared_out(costs: LayerCosts, devices: Sequence[str], one: str, other: str) -> list[str]:
    """The placement in which the layers of two devices are shared out between these as is best."""
    taking_part = [at for at, device in enumerate(devices) if device in (one, other)]
    node_of = {at: number for number, at in enumerate(taking_part, 2)}
    flow = FlowNetwork(2 + len(taking_part))
    never = 1 + sum(_units(seconds) for _, _, seconds in costs.tensors)
    never += sum(_units(max(each.values(), default=0.0)) for each in costs.seconds)
    for at, node in node_of.items():
        # Whoever is cut off from the source is on `other`, and costs what it takes there.
        for start, end, device in ((_SOURCE, node, other), (node, _SINK, one)):
            seconds = costs.seconds[at].get(device)
            flow.add_arc(start, end, never if seconds is None else _units(seconds))
    for maker, readers, seconds in costs.tensors:
        inside = [node_of[reader] for reader in readers if reader in node_of]
        if maker not in node_of or len(inside) < len(readers):
            continue  # it is copied in any case, or by nobody of these
        capacity = _units(seconds)
        there, back = flow.add_node(), flow.add_node()
        flow.add_arc(node_of[maker], there, capacity)
        flow.add_arc(back, node_of[maker], capacity)
        for reader in inside:
            flow.add_arc(there, reader, never)
            flow.add_arc(reader, back, never)
    side = flow.source_side(_SOURCE, _SINK)
    found = list(devices)
    for at, node in node_of.items():
        found[at] = one if node in side else other
    return found


def _units(seconds: float) -> int:
    return max(0, round(seconds * _UNITS))
