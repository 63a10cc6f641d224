"""Keeps layers on one device that have to be together.

Quantised layers: a backend computes an operator between DequantizeLinear and QuantizeLinear in
integers. If a cut parts the three, it computes the operator in floating point, and some results are
one step of the quantisation off. `unknown_types` names other groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from headrace.plugins.hetero.planning.assignment import Reasons

_ACTIVATIONS = ("Relu", "Clip")  # backends make them part of the QuantizeLinear behind them


class LayerGroup(NamedTuple):
    """Positions of layers in the graph, and why they have to be together."""

    layers: tuple[int, ...]
    why: str


def kept_together(
    names: Sequence[str], groups: Sequence[LayerGroup], verdicts: Mapping[str, Reasons]
) -> dict[str, dict[str, str]]:
    """The verdicts, in which each device refuses all layers of a group or none, if any device runs
    them all. Takes time linear in the sizes of the groups.

    Args:
        names: of the graph's layers.
        verdicts: for each device, the layers that it does not run.
    """
    found = {device: dict(reasons) for device, reasons in verdicts.items()}
    members = [[names[place] for place in group.layers] for group in groups]
    of: defaultdict[str, list[int]] = defaultdict(list)
    for number, layers in enumerate(members):
        for layer in layers:
            of[layer].append(number)
    waiting = [(device, name) for device, reasons in found.items() for name in reasons]
    seen: set[tuple[str, int]] = set()
    while waiting:
        device, name = waiting.pop()
        for number in of.get(name, ()):
            if (device, number) in seen:
                continue
            seen.add((device, number))
            layers = members[number]
            if not any(reasons.keys().isdisjoint(layers) for reasons in found.values()):
                continue
            for layer in layers:
                if layer not in found[device]:
                    found[device][layer] = (
                        f"{groups[number].why}, so it stays with {name!r}, which is elsewhere"
                    )
                    waiting.append((device, layer))
    return found


def quantised(nodes: Sequence[ir.Node], edges: Sequence[tuple[int, int]]) -> Iterator[LayerGroup]:
    """The groups of DequantizeLinear, operator and QuantizeLinear. An activation may stand before
    the QuantizeLinear.

    Args:
        edges: pairs (producer, reader) of positions in `nodes`.
    """
    kinds = [node.op_type for node in nodes]
    sources: list[list[int]] = [[] for _ in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for source, reader in edges:
        sources[reader].append(source)
        readers[source].append(reader)
    ends = [[each for each in found if kinds[each] == "QuantizeLinear"] for found in readers]
    for place, node in enumerate(nodes):
        before = [each for each in sources[place] if kinds[each] == "DequantizeLinear"]
        behind = ends[place] + [
            each
            for reader in readers[place]
            if kinds[reader] in _ACTIVATIONS and ends[reader]
            for each in (reader, *ends[reader])
        ]
        if before and behind and kinds[place] != "QuantizeLinear":
            why = f"{node.name!r} computes with quantised values"
            yield LayerGroup((*before, place, *behind), why)
