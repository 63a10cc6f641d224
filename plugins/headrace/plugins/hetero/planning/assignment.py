"""Decides which device runs which layer, and in which subgraphs. The code is pure.

A layer with an affinity goes to the device that the affinity names. Any other layer goes to the
first device of the list that supports it. Then the graph is partitioned. A layer that is alone in
its subgraph may join a neighbour's device.

Constants have no device of their own. They are in the parts that read them, and never cause a cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from headrace.plugins.hetero.planning.layers import TopLayer, pinned_layers
from headrace.plugins.hetero.planning.partition import Part, partition
from headrace.runtime.errors import FailedPrecondition, UnsupportedLayer

Reasons: TypeAlias = Mapping[str, str]
"""Layers that a device does not run, by name, and why."""

_SHOWN = 8  # layers that a note names
_ROUNDS = 8  # of merging; a layer that is still alone after them only costs copies
_ORPHAN = "a constant that only unsupported layers read"


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where each layer runs.

    Attributes:
        parts: in execution order; nodes are positions in the list of layers. A constant is in the
            first part that reads it, and must be repeated in the others.
        devices: the device of each layer; empty if no device runs it. Such a layer is in no part.
        notes: the decisions that differ from the list of devices, and why.
        unsupported: every layer that no device runs, once for each device, with its reason.
    """

    parts: tuple[Part, ...]
    devices: tuple[str, ...]
    notes: tuple[str, ...] = ()
    unsupported: tuple[UnsupportedLayer, ...] = ()


def assign(
    layers: Sequence[TopLayer],
    edges: Sequence[tuple[int, int]],
    devices: Sequence[str],
    verdicts: Mapping[str, Reasons],
    affinities: Mapping[str, str] | None = None,
    *,
    later: Mapping[str, Reasons] = MappingProxyType({}),
    merge_islands: bool = True,
) -> Assignment:
    """Assigns `layers` to `devices`.

    Args:
        edges: pairs (producer, reader) of positions in `layers`.
        devices: in order of preference.
        verdicts: for each device, the layers of the whole network that it does not run.
        affinities: layer name to device; overrides the layer's own affinity.
        later: for each device, the layers that it has refused once the layers around them were
            elsewhere. A device may support a layer only fused with another one.
        merge_islands: whether a layer alone in its subgraph joins a neighbour's device.

    Raises:
        InvalidArgument: an affinity names no layer, or no device of the list.
        FailedPrecondition: a device does not support a layer whose affinity names it.
        ValueError: the graph has a cycle.
    """
    pinned = pinned_layers(layers, devices, affinities or {})
    search = _Search(layers, edges, devices, verdicts, pinned, later)
    return search.answer(*search.partition(merge_islands))


class _Search:
    """Keeps what the devices have refused. Everything else is computed from it."""

    def __init__(
        self,
        layers: Sequence[TopLayer],
        edges: Sequence[tuple[int, int]],
        devices: Sequence[str],
        verdicts: Mapping[str, Reasons],
        pinned: Mapping[int, str],
        later: Mapping[str, Reasons],
    ) -> None:
        self._layers = layers
        self._devices = devices
        self._places = {layer.name: place for place, layer in enumerate(layers)}
        self._readers: list[list[int]] = [[] for _ in layers]
        self._sources: list[list[int]] = [[] for _ in layers]
        for source, reader in edges:
            self._readers[source].append(reader)
            self._sources[reader].append(source)
        # A constant that no layer reads is an output, and is treated like any other layer.
        self._constants = {
            place for place, layer in enumerate(layers) if layer.constant and self._readers[place]
        }
        self._nodes = [place for place in range(len(layers)) if place not in self._constants]
        number = {place: index for index, place in enumerate(self._nodes)}
        self._edges = [(number[a], number[b]) for a, b in edges if a in number and b in number]
        self._pinned = {place: device for place, device in pinned.items() if place in number}
        self._ignored = pinned.keys() - self._pinned.keys()
        self._refused: list[dict[str, str]] = [
            {
                device: verdicts[device][layer.name]
                for device in devices
                if layer.name in verdicts.get(device, {})
            }
            for layer in layers
        ]
        self._preferred = [self._home(place) for place in range(len(layers))]
        for device, reasons in later.items():
            for place, reason in self._located(reasons):
                why = f"not once the layers around it run elsewhere: {reason}"
                self._refused[place].setdefault(device, why)
        for place, device in self._pinned.items():
            self._check_pin(place, device)

    def partition(self, merge_islands: bool) -> tuple[tuple[Part, ...], dict[int, str]]:
        """The parts, and the layers that joined a neighbour's device instead of their own."""
        homes = [self._home(place) for place in range(len(self._layers))]
        parts = self._cut(homes)
        merged: dict[int, str] = {}
        stuck: set[int] = set()
        for _ in range(_ROUNDS if merge_islands else 0):
            moves = self._islands(parts, homes, stuck)
            tried = [moves.get(place, device) for place, device in enumerate(homes)]
            fewer = self._cut(tried) if moves else parts
            alone = {part.nodes[0] for part in fewer if len(part.nodes) == 1} & moves.keys()
            if alone:
                stuck |= alone
            elif len(fewer) < len(parts):
                parts, homes = fewer, tried
                merged |= moves
            else:
                break
        return self._with_constants(parts), merged

    def answer(self, parts: Sequence[Part], merged: Mapping[int, str]) -> Assignment:
        devices = [""] * len(self._layers)
        for part in parts:
            for place in part.nodes:
                devices[place] = part.affinity
        unsupported = [
            UnsupportedLayer(layer.name, layer.op_type, reason, device)
            for place, layer in enumerate(self._layers)
            if not devices[place]
            for device, reason in self._reasons(place)
        ]
        return Assignment(
            tuple(parts), tuple(devices), tuple(self._notes(devices, merged)), tuple(unsupported)
        )

    def _home(self, place: int) -> str:
        if place in self._pinned:
            return self._pinned[place]
        refused = self._refused[place]
        return next((device for device in self._devices if device not in refused), "")

    def _check_pin(self, place: int, device: str) -> None:
        reason = self._refused[place].get(device)
        if reason is not None:
            layer = self._layers[place]
            raise FailedPrecondition(
                f"layer {layer.name!r} ({layer.op_type}) has the affinity {device!r}, which does "
                f"not support it: {reason}; remove the affinity, or name another device",
                field=f"affinities[{layer.name!r}]",
                metadata={"layer": layer.name, "device": device},
            )

    def _cut(self, homes: Sequence[str]) -> tuple[Part, ...]:
        """The parts without constants. They include parts of layers that no device runs."""
        parts = partition(self._edges, [homes[place] for place in self._nodes], self._devices)
        nodes = self._nodes
        return tuple(
            Part(part.affinity, tuple(nodes[index] for index in part.nodes)) for part in parts
        )

    def _with_constants(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """The parts that a device runs. Each constant is in the first part that reads it."""
        run = [part for part in parts if part.affinity]
        owner = {place: index for index, part in enumerate(run) for place in part.nodes}
        members = [list(part.nodes) for part in run]
        for place in self._constants:
            reading = [owner[reader] for reader in self._readers[place] if reader in owner]
            if reading:
                members[min(reading)].append(place)
        return tuple(
            Part(part.affinity, tuple(sorted(nodes)))
            for part, nodes in zip(run, members, strict=True)
        )

    def _islands(
        self, parts: Sequence[Part], homes: Sequence[str], stuck: set[int]
    ) -> dict[int, str]:
        """The layers that are alone in their part, and the neighbour's device that each may join.
        Of several devices, it is the one that shares the most tensors with the layer. No layer
        joins a layer that moves itself."""
        moves: dict[int, str] = {}
        joined: set[int] = set()
        for part in parts:
            place = part.nodes[0]
            if len(part.nodes) > 1 or place in self._pinned or place in stuck or place in joined:
                continue
            around = [
                each
                for each in (*self._sources[place], *self._readers[place])
                if each not in self._constants and each not in moves
            ]
            tensors = Counter(homes[each] for each in around)
            ours = [device for device in self._devices if device not in self._refused[place]]
            device = max(ours, key=tensors.__getitem__, default="")
            if tensors[device] and device != homes[place]:
                moves[place] = device
                joined.update(each for each in around if homes[each] == device)
        return moves

    def _located(self, reasons: Reasons) -> Iterator[tuple[int, str]]:
        """The layers that are refused, also for a layer in one of their bodies, or for a constant
        that they read."""
        owners = {name: place for place, layer in enumerate(self._layers) for name in layer.inside}
        for name, reason in reasons.items():
            place = self._places.get(name, owners.get(name))
            if place in self._constants:
                for reader in self._readers[place]:
                    yield reader, f"it reads {name!r}: {reason}"
            elif place is not None:
                yield place, reason

    def _reasons(self, place: int) -> Iterator[tuple[str, str]]:
        if place in self._constants:
            yield "", _ORPHAN
        else:
            for device in self._devices:
                yield device, self._refused[place][device]

    def _notes(self, devices: Sequence[str], merged: Mapping[int, str]) -> Iterator[str]:
        groups: dict[tuple[str, str, bool], list[str]] = {}
        for place, layer in enumerate(self._layers):
            preferred, device = self._preferred[place], devices[place]
            if device and preferred != device and place not in self._constants:
                key = (preferred, device, place in merged)
                groups.setdefault(key, []).append(layer.name)
        for (preferred, device, alone), names in groups.items():
            why = (
                f"copying its tensors to {preferred} and back costs more than it saves there"
                if alone
                else f"{preferred} runs them only together with layers that are elsewhere"
            )
            yield f"moved from {preferred} to {device} ({why}): {_listed(names)}"
        names = [layer.name for place, layer in enumerate(self._layers) if place in self._ignored]
        if names:
            yield f"constants are wherever they are read; affinity not followed: {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
