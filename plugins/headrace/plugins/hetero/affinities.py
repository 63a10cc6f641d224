"""Layers as the partition sees them, and where their author or the caller wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from headrace.plugins.hetero.cut import is_constant
from headrace.runtime.errors import InvalidArgument, did_you_mean
from headrace.runtime.intake import naming
from headrace.runtime.network.network import Network

AFFINITY = "affinity"  # key of a node's metadata_props


@dataclass(frozen=True, slots=True)
class Layer:
    """A node of the network's top level, with all in its bodies.

    Attributes:
        affinity: where the network's author wants it, if anywhere.
        constant: it makes a tensor from nothing and can be anywhere, and in several places.
        inside: names of the layers in its bodies.
    """

    name: str
    op_type: str
    affinity: str = ""
    constant: bool = False
    inside: tuple[str, ...] = ()


def top_level(network: Network) -> tuple[list[Layer], list[tuple[int, int]]]:
    """The network's layers, in the order of its graph, and the edges (producer, reader) between.

    What the bodies of a layer read from around it, the layer reads.
    """
    nodes = list(network.model.graph)
    places = {node: place for place, node in enumerate(nodes)}
    layers: list[Layer] = []
    edges: list[tuple[int, int]] = []
    for place, node in enumerate(nodes):
        inside = [inner for _, body in naming.bodies(node) for inner in naming.walk(body)]
        layers.append(
            Layer(
                node.name or "",
                node.op_type,
                node.metadata_props.get(AFFINITY, ""),
                is_constant(node),
                tuple(inner.name or "" for inner in inside),
            )
        )
        sources = {places[source] for source in _producers(node, inside) if source in places}
        edges += [(source, place) for source in sorted(sources)]
    return layers, edges


def _producers(node: ir.Node, inside: Sequence[ir.Node]) -> Iterator[ir.Node]:
    """The nodes whose results `node` and those in its bodies read; those in the bodies too."""
    for reader in (node, *inside):
        for value in reader.inputs:
            source = None if value is None else value.producer()
            if source is not None:
                yield source


def pinned_layers(
    layers: Sequence[Layer], devices: Sequence[str], affinities: Mapping[str, str]
) -> dict[int, str]:
    """The device of each layer that has an affinity.

    An affinity may differ from the list in case, and a type may stand for its first device there.

    Raises:
        InvalidArgument: an affinity names no layer, or no device of the list.
    """
    places = {layer.name: place for place, layer in enumerate(layers)}
    owners = {name: layer.name for layer in layers for name in layer.inside}
    wanted = {place: layer.affinity for place, layer in enumerate(layers) if layer.affinity}
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
        wanted[places[name]] = device
    by_name = {device.partition(".")[0].casefold(): device for device in reversed(devices)}
    by_name.update((device.casefold(), device) for device in devices)
    for place, device in wanted.items():
        if device.casefold() not in by_name:
            name = layers[place].name
            raise InvalidArgument(
                f"layer {name!r} has the affinity {device!r}, which is not among the devices "
                f"{', '.join(devices)}",
                field=f"affinities[{name!r}]",
            )
    return {place: by_name[device.casefold()] for place, device in wanted.items()}
