"""Plans where each layer of a network runs. A query answers with the plan; a load follows it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from headrace.plugins.hetero.planning.assignment import Assignment, Reasons, assign
from headrace.plugins.hetero.planning.cut import Cutter, walk
from headrace.plugins.hetero.planning.layers import edges_between, layer_of
from headrace.plugins.hetero.planning.partition import Part
from headrace.plugins.hetero.planning.unknown_types import UnknownTypes
from headrace.runtime.errors import UnsupportedLayer
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.intake.provenance import origins
from headrace.runtime.network.network import Network
from headrace.runtime.transform.query import QueryResult, Subgraph
from headrace.runtime.virtual.members import Target, ask


class Asked(enum.IntEnum):
    """What a plan asks the devices. A device may compile what it is asked about."""

    NOTHING = 0
    """Each device is taken to run every layer, so that the first one gets all of them."""
    NETWORK = 1
    """Each device is asked about the whole network."""
    PARTS = 2
    """Each device is also asked about its parts alone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A network's parts in execution order, and notes on them.

    Attributes:
        devices: the device of each node of the network's graph; empty if no device runs the node.
        unsupported: each unsupported layer once, with the reasons of all devices.
    """

    network: Network
    parts: tuple[Part, ...]
    devices: tuple[str, ...]
    unsupported: tuple[UnsupportedLayer, ...]
    notes: tuple[str, ...]

    def query_result(self) -> QueryResult:
        """The plan as a query result. It names layers of the network as it was given, without the
        layers that preprocessing adds."""
        result = QueryResult(unsupported=list(self.unsupported), notes=self.notes)
        refused = {layer.layer for layer in self.unsupported}
        nodes = list(self.network.model.graph)
        for node, device in zip(nodes, self.devices, strict=True):
            for name in _names(node):
                if name not in refused:
                    result.supported_layers[name] = device
        for part in self.parts:
            names = (name for index in part.nodes for name in _names(nodes[index]))
            result.subgraphs.append(Subgraph(part.affinity, tuple(names)))
        places = dict(zip(nodes, self.devices, strict=True))
        result.housekeeping.update(_housekeeping(self.network.model.graph, places))
        return result


def plan(
    network: Network,
    targets: Sequence[Target],
    affinities: Mapping[str, str],
    *,
    merge_islands: bool,
    told: Mapping[str, Reasons],
    token: CancelToken,
    asked: Asked = Asked.PARTS,
) -> Plan:
    """Assigns the layers of a network to the devices of a list.

    Args:
        network: with preprocessing and types, otherwise untransformed. It still has the layers
            that a device's own transformations would fuse or drop, so users can place them.
        affinities: layer to device; overrides the nodes' metadata.
        told: by device, the layers that it does not run. These devices are not asked about the
            network.
        asked: what the other devices are asked.

    Raises:
        InvalidArgument, FailedPrecondition: as `assign`. The error that cancelled `token`, if the
        plan is no longer wanted.
    """
    nodes = list(network.model.graph)
    layers = [layer_of(node) for node in nodes]
    verdicts = dict(told)
    for target in targets:
        if target.name not in verdicts:
            verdicts[target.name] = _reasons(network, target, token) if asked else {}
    by_name = {target.name: target for target in targets}
    cutter = Cutter(network)
    unknown = UnknownTypes(nodes, verdicts)

    def recheck(part: Part) -> Reasons:
        piece = cutter.piece(part)
        if piece is None or len(part.nodes) == len(nodes):
            return {}
        refused: Reasons = unknown.refused(part)
        if not refused and asked is Asked.PARTS and not unknown.crossing(part):
            refused = _reasons(piece.network, by_name[part.affinity], token)
        unknown.note(part.affinity, refused)
        return refused

    assignment = assign(
        layers,
        edges_between(nodes),
        [each.name for each in targets],
        verdicts,
        affinities,
        recheck=recheck,
        merge_islands=merge_islands,
    )
    unsupported = [*_unsupported(assignment, nodes, verdicts), *unknown.left(assignment.parts)]
    notes = (*assignment.notes, *_rounding(network, assignment.devices))
    return Plan(network, assignment.parts, assignment.devices, tuple(unsupported), notes)


def _reasons(network: Network, target: Target, token: CancelToken) -> Reasons:
    if token.error is not None:
        raise token.error
    return {layer.layer: layer.reason for layer in ask(target, network).unsupported}


def _unsupported(
    assignment: Assignment, nodes: Sequence[ir.Node], verdicts: Mapping[str, Reasons]
) -> Iterator[UnsupportedLayer]:
    """Each unsupported layer once, with the reason of each device. The layers in its bodies follow
    it."""
    by_layer: dict[str, dict[str, str]] = {}
    for layer in assignment.unsupported:
        by_layer.setdefault(layer.layer, {})[layer.device] = layer.reason
    for node in nodes:
        for each in walk([node]) if node.name in by_layer else ():
            name = each.name or ""
            around = f"inside of {node.name!r}, which is not run"
            reasons = by_layer.get(name) or {
                device: refused.get(name, around) for device, refused in verdicts.items()
            }
            said = (f"{device}: {why}" if device else why for device, why in reasons.items())
            yield UnsupportedLayer(name, each.op_type, "; ".join(said), ",".join(reasons))


def _names(node: ir.Node) -> Iterator[str]:
    """The layers of the network as loaded that the node and its bodies stand for."""
    for each in walk([node]):
        yield from origins(each)


def _housekeeping(graph: ir.Graph, places: Mapping[ir.Node, str]) -> Iterator[tuple[str, str]]:
    """Inputs and initialisers with the device of a layer that reads them, and outputs with the
    device of the layer that makes them."""
    for value in dict.fromkeys((*graph.inputs, *graph.initializers.values())):
        devices = (places.get(reader, "") for reader, _ in value.uses())
        device = next(filter(None, devices), "")
        if device:
            yield value.name or "", device
    for value in graph.outputs:
        producer = value.producer()
        if producer is not None and places.get(producer):
            yield value.name or "", places[producer]


def _rounding(network: Network, devices: Sequence[str]) -> tuple[str, ...]:
    """A note for a network that runs on several devices and quantises values by their own range.
    The devices' results differ in the last bit. If a value is rounded the other way, its quantised
    value differs by one step of 256."""
    kinds = (node.op_type for node in walk(network.model.graph))
    if len({*devices} - {""}) > 1 and any(kind.startswith("DynamicQuantize") for kind in kinds):
        return (
            "the network quantises what it computes, so differences in the last bit grow to a "
            "percent at most: results differ by as much from those of one device",
        )
    return ()
