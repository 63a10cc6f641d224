"""Keeps layers together that cannot be separated, because a tensor of unknown type cannot be an
input of a network.

Type inference does not know the results of operators outside of ONNX that have no function. The
layers at both ends of such a tensor have to be on one device. So a device that refuses one of them
refuses the other one too, if another device runs the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from headrace.plugins.hetero.planning.assignment import Reasons
from headrace.plugins.hetero.planning.cut import is_constant, outer_reads
from headrace.plugins.hetero.planning.partition import Part
from headrace.runtime.errors import UnsupportedLayer


class Tensor(NamedTuple):
    """A tensor of unknown type, and the positions in the graph of the layer that makes it and of a
    layer that reads it."""

    name: str
    source: int
    reader: int


def tensors_of(nodes: Sequence[ir.Node]) -> list[Tensor]:
    """The tensors of unknown type between the nodes of a graph."""
    places: dict[ir.Node | None, int] = {node: place for place, node in enumerate(nodes)}
    return [
        Tensor(value.name or "", source, reader)
        for reader, node in enumerate(nodes)
        for value in dict.fromkeys(outer_reads([node]))
        if value.type is None
        and (source := places.get(value.producer(), reader)) != reader
        and not is_constant(nodes[source])
    ]


def kept_together(
    names: Sequence[str], tensors: Sequence[Tensor], verdicts: Mapping[str, Reasons]
) -> dict[str, dict[str, str]]:
    """The verdicts, in which each device refuses both ends of a tensor or none.

    Args:
        names: of the graph's layers.
        verdicts: for each device, the layers that it does not run.
    """
    everywhere = set[str](names).intersection(*verdicts.values())
    found = {device: dict(reasons) for device, reasons in verdicts.items()}
    ends = [(tensor.name, names[a], names[b]) for tensor in tensors for a, b in _both(tensor)]
    for reasons in found.values():
        size = -1
        while len(reasons) != size:
            size = len(reasons)
            for name, layer, other in ends:
                if other in reasons and other not in everywhere and layer not in reasons:
                    reasons[layer] = (
                        f"the type of {name!r} is not known, so it cannot be separated from "
                        f"{other!r}, which is elsewhere"
                    )
    return found


def separated(
    nodes: Sequence[ir.Node], tensors: Sequence[Tensor], parts: Sequence[Part]
) -> list[UnsupportedLayer]:
    """The layers that still read a tensor of unknown type from another part."""
    numbers = {place: number for number, part in enumerate(parts) for place in part.nodes}
    readers: dict[str, UnsupportedLayer] = {}
    for name, source, reader in tensors:
        if {source, reader} <= numbers.keys() and numbers[source] != numbers[reader]:
            layer = nodes[reader].name or ""
            readers[layer] = UnsupportedLayer(
                layer,
                nodes[reader].op_type,
                f"it reads {name!r}, whose type is not known, from another subgraph; give "
                f"{nodes[source].name!r} and {layer!r} one affinity",
                parts[numbers[reader]].affinity,
            )
    return list(readers.values())


def _both(tensor: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
    return (tensor.source, tensor.reader), (tensor.reader, tensor.source)
