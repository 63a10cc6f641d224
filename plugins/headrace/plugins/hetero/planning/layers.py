"""Layers as the partition sees them, and the devices that the author or the caller chose for
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from headrace.plugins.hetero.planning.cut import is_constant, outer_reads, walk
from headrace.runtime.errors import InvalidArgument, did_you_mean

AFFINITY = "affinity"
"""The key of a node's metadata that names the device that should run the node."""


@dataclass(frozen=True, slots=True)
class TopLayer:
    """A node of the network's top level, with all nodes in its bodies.

    Attributes:
        affinity: the device that the network's author chose; empty if none.
        constant: whether the node makes a tensor without inputs. It can be in any part, and in
            several.
        inside: names of the layers in its bodies.
    """

    name: str
    op_type: str
    affinity: str = ""
    constant: bool = False
    inside: tuple[str, ...] = ()


def layer_of(node: ir.Node) -> TopLayer:
    """The layer of a node, with all nodes in its bodies.

    Raises:
        InvalidArgument: the metadata of the node and its bodies names several devices.
    """
    affinities = {
        each.metadata_props[AFFINITY]: each
        for each in walk([node])
        if AFFINITY in each.metadata_props
    }
    if len({device.casefold() for device in affinities}) > 1:
        one, other, *_ = (f"{affinity.name} on {device}" for device, affinity in affinities.items())
        raise InvalidArgument(
            f"layer {node.name!r} is not split, but its metadata names {one} and {other}",
            field="model",
        )
    return TopLayer(
        name=node.name or "",
        op_type=node.op_type,
        affinity=next(iter(affinities), ""),
        constant=is_constant(node),
        inside=tuple(each.name or "" for each in walk([node]) if each is not node),
    )


def edges_between(nodes: Sequence[ir.Node]) -> list[tuple[int, int]]:
    """The edges of the graph as pairs (producer, reader). Reads of a node's bodies count too."""
    places = {node: place for place, node in enumerate(nodes)}
    return [
        (places[source], place)
        for place, node in enumerate(nodes)
        for value in dict.fromkeys(outer_reads([node]))
        if (source := value.producer()) in places and source is not node
    ]


def pinned_layers(
    layers: Sequence[TopLayer], devices: Sequence[str], affinities: Mapping[str, str]
) -> dict[int, str]:
    """The device of each layer that has an affinity.

    An affinity may differ from the list in upper and lower case. A device type without an id means
    the first device of that type in the list.

    Raises:
        InvalidArgument: an affinity names no layer, or no device of the list.
    """
    places = {layer.name: place for place, layer in enumerate(layers)}
    owners = {name: layer.name for layer in layers for name in layer.inside}
    pinned = {place: layer.affinity for place, layer in enumerate(layers) if layer.affinity}
    for name, device in affinities.items():
        if name in owners:
            raise InvalidArgument(
                f"layer {name!r} is inside of {owners[name]!r}, which is not split: give "
                f"{owners[name]!r} the affinity",
                field=f"affinities[{name!r}]",
            )
        if name not in places:
            raise InvalidArgument(
                f"the network has no layer {name!r}{did_you_mean(name, places)}",
                field=f"affinities[{name!r}]",
            )
        pinned[places[name]] = device
    by_name = {device.partition(".")[0].casefold(): device for device in reversed(devices)}
    by_name.update((device.casefold(), device) for device in devices)
    for place, device in pinned.items():
        if device.casefold() not in by_name:
            name = layers[place].name
            raise InvalidArgument(
                f"layer {name!r} has the affinity {device!r}, which is not among the devices "
                f"{', '.join(devices)}",
                field=f"affinities[{name!r}]",
            )
    return {place: by_name[device.casefold()] for place, device in pinned.items()}
