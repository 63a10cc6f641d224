"""Plans where each layer of a network runs. A query answers with the plan; a load follows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from headrace.plugins.hetero.planning.assignment import Assignment, Reasons, assign
from headrace.plugins.hetero.planning.cut import walk
from headrace.plugins.hetero.planning.groups import LayerGroup, kept_together, quantised
from headrace.plugins.hetero.planning.layers import TopLayer, edges_between, layer_of
from headrace.plugins.hetero.planning.partition import Part
from headrace.plugins.hetero.planning.unknown_types import separated, unknown
from headrace.runtime.errors import EndedWorker, UnsupportedLayer
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.intake.provenance import origins
from headrace.runtime.network.network import Network
from headrace.runtime.transform.query import QueryResult, Subgraph
from headrace.runtime.virtual.members import Target


class Answers:
    """What the devices of a list say of a network. Each is asked at most once, about the whole
    network.

    Args:
        network: with preprocessing and types, otherwise untransformed. It still has the layers
            that a device's own transformations would fuse or drop, so users can place them.
        token: if it is cancelled, its error is raised instead of another question.

    Attributes:
        verdicts: for each device that was asked, in order of preference, the layers that it does
            not run.
        later: by device, the layers that it has refused since, when it loaded a part.
        ended: the devices that get nothing because their worker processes ended, and why.
    """

    def __init__(self, network: Network, targets: Sequence[Target], token: CancelToken) -> None:
        self.network = network
        self.verdicts: dict[str, Reasons] = {}
        self.later: dict[str, dict[str, str]] = {}
        self.ended: dict[str, str] = {}
        self._unasked = list(targets)
        self._token = token

    def ask_next(self) -> bool:
        """Asks the next device of the list. Returns False if all have answered."""
        if not self._unasked:
            return False
        if self._token.error is not None:
            raise self._token.error
        target = self._unasked.pop(0)
        if target.name not in self.ended:
            try:
                answer = target.plugin.query_network(self.network, target.config, target.options)
                reasons: Reasons = {each.layer: each.reason for each in answer.unsupported}
            except EndedWorker as error:
                self.ended[target.name] = error.message
        if target.name in self.ended:
            reasons = self._all(self.ended[target.name])
        self.verdicts[target.name] = reasons
        return True

    def refusals(self) -> dict[str, frozenset[str]]:
        """The layers that each device which was asked does not run."""
        return {
            device: frozenset((*reasons, *self.later.get(device, ())))
            for device, reasons in self.verdicts.items()
        }

    def end(self, device: str, why: str) -> None:
        """Notes that the device's worker process ended while it loaded a part. The device gets
        nothing of this network: each further try might end the process again, and with it the
        networks that other callers have loaded there."""
        self.ended[device] = why
        if device in self.verdicts:
            self.verdicts[device] = self._all(why)

    def refuse(
        self, device: str, part: Iterable[ir.Node], layers: Iterable[UnsupportedLayer]
    ) -> bool:
        """Notes that the device has refused layers when it loaded a part: some run a layer only
        together with others. If it refuses only what it has added itself, as a conversion of an
        input, it has refused the part. Returns whether this is news."""
        known = self.later.setdefault(device, {})
        refused = {layer.layer: layer.reason for layer in layers}
        if refused.keys().isdisjoint(node.name or "" for node in self.network.nodes()):
            why = next(iter(refused.values()), "it does not take the subgraph")
            refused = {node.name or "": why for node in part}
        news = {name: why for name, why in refused.items() if name not in known}
        known.update(news)
        return bool(news) and device in self.verdicts

    def _all(self, why: str) -> Reasons:
        return dict.fromkeys(self.network.layer_names, why)


@dataclass(frozen=True, slots=True)
class Plan:
    """A network's parts in execution order, and notes on them.

    Attributes:
        devices: the device of each node of the network's graph; empty if no device runs the node.
        unsupported: each unsupported layer once, with the reasons of all devices.
        lacks_device: whether a device got nothing because its worker process ended.
    """

    network: Network
    parts: tuple[Part, ...]
    devices: tuple[str, ...]
    unsupported: tuple[UnsupportedLayer, ...]
    notes: tuple[str, ...]
    lacks_device: bool

    @property
    def has_affinities(self) -> bool:
        """Whether the author has chosen the device of a layer."""
        return any(layer_of(node).affinity for node in self.network.model.graph)

    def layers(self) -> list[TopLayer]:
        """The layers of the network's top level, in the order of its nodes."""
        return [layer_of(node) for node in self.network.model.graph]

    def nodes_of(self, number: int) -> list[ir.Node]:
        """The nodes of a part, which are counted from 1."""
        nodes = list(self.network.model.graph)
        return [nodes[index] for index in self.parts[number - 1].nodes]

    def query_result(self) -> QueryResult:
        """The plan as a query result. It names layers of the network as it was given, without the
        layers that preprocessing adds."""
        result = QueryResult(unsupported=list(self.unsupported), notes=self.notes)
        refused = {layer.layer for layer in self.unsupported}
        nodes = list(self.network.model.graph)
        for node, device in zip(nodes, self.devices, strict=True):
            for name in names_of(node):
                if name not in refused:
                    result.supported_layers[name] = device
        for part in self.parts:
            names = (name for index in part.nodes for name in names_of(nodes[index]))
            result.subgraphs.append(Subgraph(part.affinity, tuple(names)))
        places = dict(zip(nodes, self.devices, strict=True))
        result.housekeeping.update(_housekeeping(self.network.model.graph, places))
        return result


def plan(answers: Answers, affinities: Mapping[str, str], *, merge_islands: bool) -> Plan:
    """Assigns the layers of a network to the devices of a list. It asks them in order, until each
    layer has a device. If an affinity is given, it asks all of them.

    Args:
        affinities: layer to device; overrides the nodes' metadata.

    Raises:
        InvalidArgument, FailedPrecondition: as `assign`. The error that cancelled the token of the
        answers, if the plan is no longer wanted.
    """
    network, nodes = answers.network, list(answers.network.model.graph)
    layers = [layer_of(node) for node in nodes]
    names = [layer.name for layer in layers]
    computing = {layer.name for layer in layers if not layer.constant}
    asks_all = bool(affinities) or any(layer.affinity for layer in layers)
    edges = edges_between(nodes)
    chosen = {place for place, layer in enumerate(layers) if _is_chosen(layer, affinities)}
    inseparable = unknown(nodes)
    fused = (group for group in quantised(nodes, edges) if chosen.isdisjoint(group.layers))
    groups = [*inseparable, *fused]
    verdicts, later = _together(names, groups, answers)
    while asks_all or computing.intersection(*_refusals(verdicts, later)) or not verdicts:
        if not answers.ask_next():
            break
        verdicts, later = _together(names, groups, answers)
    assignment = assign(
        layers,
        edges,
        [*verdicts],
        verdicts,
        affinities,
        later=later,
        merge_islands=merge_islands,
    )
    unsupported = [
        *_unsupported(assignment, nodes, verdicts),
        *separated(nodes, inseparable, assignment.parts),
    ]
    notes = (*assignment.notes, *_rounding(network, assignment.devices))
    return Plan(
        network,
        assignment.parts,
        assignment.devices,
        tuple(unsupported),
        notes,
        lacks_device=bool(answers.ended),
    )


def _is_chosen(layer: TopLayer, affinities: Mapping[str, str]) -> bool:
    """Whether the author or the caller has chosen the layer's device."""
    return bool(layer.affinity) or layer.name in affinities


def _together(
    names: Sequence[str], groups: Sequence[LayerGroup], answers: Answers
) -> tuple[Mapping[str, Reasons], Mapping[str, Reasons]]:
    """For each device, the layers that it does not run as it has answered about the whole network,
    and those that it has refused since."""
    verdicts = kept_together(names, groups, answers.verdicts)
    if not answers.later:
        return verdicts, {}
    both = {device: {**verdicts[device], **answers.later.get(device, {})} for device in verdicts}
    later = {
        device: {name: why for name, why in reasons.items() if name not in verdicts[device]}
        for device, reasons in kept_together(names, groups, both).items()
    }
    return verdicts, later


def _refusals(verdicts: Mapping[str, Reasons], later: Mapping[str, Reasons]) -> list[set[str]]:
    """For each device, the layers that it does not run."""
    return [{*reasons, *later.get(device, ())} for device, reasons in verdicts.items()]


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


def names_of(node: ir.Node) -> Iterator[str]:
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
