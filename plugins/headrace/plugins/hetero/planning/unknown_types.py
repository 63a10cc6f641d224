"""Finds layers that cannot be separated, because a tensor of unknown type cannot be an input of a
network.

Type inference does not know the results of operators outside of ONNX that have no function. The
layers at both ends of such a tensor have to be on one device.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from headrace.plugins.hetero.planning.cut import is_constant, outer_reads
from headrace.plugins.hetero.planning.groups import LayerGroup
from headrace.plugins.hetero.planning.partition import Part
from headrace.runtime.errors import UnsupportedLayer


def unknown(nodes: Sequence[ir.Node]) -> list[LayerGroup]:
    """The two layers at the ends of each tensor of unknown type: the one that makes it, and one
    that reads it."""
    places: dict[ir.Node | None, int] = {node: place for place, node in enumerate(nodes)}
    return [
        LayerGroup((source, reader), f"the type of {value.name!r} is not known")
        for reader, node in enumerate(nodes)
        for value in dict.fromkeys(outer_reads([node]))
        if value.type is None
        and (source := places.get(value.producer(), reader)) != reader
        and not is_constant(nodes[source])
    ]


def separated(
    nodes: Sequence[ir.Node], groups: Sequence[LayerGroup], parts: Sequence[Part]
) -> list[UnsupportedLayer]:
    """The layers that still read a tensor of unknown type from another part."""
    numbers = {place: number for number, part in enumerate(parts) for place in part.nodes}
    readers: dict[str, UnsupportedLayer] = {}
    for (source, reader), why in groups:
        if {source, reader} <= numbers.keys() and numbers[source] != numbers[reader]:
            layer = nodes[reader].name or ""
            readers[layer] = UnsupportedLayer(
                layer,
                nodes[reader].op_type,
                f"{why}, and {nodes[source].name!r} in another subgraph makes it; give "
                f"{nodes[source].name!r} and {layer!r} one affinity",
                parts[numbers[reader]].affinity,
            )
    return list(readers.values())
