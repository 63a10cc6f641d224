"""Keeps layers together that cannot be separated, because a tensor of unknown type cannot be an
input of a network.

Type inference does not know the results of operators outside of ONNX that have no function. The
layers at both ends of such a tensor have to be on one device. If one layer cannot run on the other
layer's device, that device refuses the other layer too. The other layer then goes to the next
device of the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from headrace.plugins.hetero.planning.assignment import Reasons
from headrace.plugins.hetero.planning.cut import is_constant, outer_reads
from headrace.plugins.hetero.planning.partition import Part
from headrace.runtime.errors import UnsupportedLayer


class _Tensor(NamedTuple):
    """A tensor of unknown type; `source` and `reader` are positions in the graph."""

    name: str
    source: int
    reader: int


class UnknownTypes:
    """Finds the layers that devices refuse because of unknown types.

    Args:
        nodes: the network's graph.
        verdicts: for each device, the layers of the whole network that it refuses anyway.
    """

    def __init__(self, nodes: Sequence[ir.Node], verdicts: Mapping[str, Reasons]) -> None:
        self._nodes = nodes
        self._refused = {device: set(reasons) for device, reasons in verdicts.items()}
        self._tensors = tuple(_unknown(nodes))

    def note(self, device: str, names: Iterable[str]) -> None:
        """Notes that the device does not run these layers in the subgraph that it would get."""
        self._refused[device].update(names)

    def crossing(self, part: Part) -> bool:
        """Whether a tensor of unknown type enters or leaves the part. Such a part is no network, so
        no device can be asked about it. A device in another process could not even read it."""
        return any(True for _ in self._crossing(part))

    def refused(self, part: Part) -> dict[str, str]:
        """The layers that a part cannot keep, and why."""
        reasons: dict[str, str] = {}
        for name, inside, outside in self._crossing(part):
            other = self._name(outside)
            runs_somewhere = not all(other in names for names in self._refused.values())
            if other in self._refused[part.affinity] and runs_somewhere:
                reasons[self._name(inside)] = (
                    f"the type of {name!r} is not known, so it cannot be separated from "
                    f"{other!r}, which is elsewhere"
                )
        return reasons

    def left(self, parts: Sequence[Part]) -> list[UnsupportedLayer]:
        """The layers that still read a tensor of unknown type from another part."""
        numbers = {place: number for number, part in enumerate(parts) for place in part.nodes}
        readers: dict[str, UnsupportedLayer] = {}
        for name, source, reader in self._tensors:
            if {source, reader} <= numbers.keys() and numbers[source] != numbers[reader]:
                layer = self._name(reader)
                readers[layer] = UnsupportedLayer(
                    layer,
                    self._nodes[reader].op_type,
                    f"it reads {name!r}, whose type is not known, from another subgraph; give "
                    f"{self._name(source)!r} and {layer!r} one affinity",
                    parts[numbers[reader]].affinity,
                )
        return list(readers.values())

    def _crossing(self, part: Part) -> Iterator[tuple[str, int, int]]:
        """Each tensor of unknown type that enters or leaves the part, with its layer inside of the
        part and its layer outside."""
        members = set(part.nodes) if self._tensors else set()
        for name, source, reader in self._tensors:
            if source in members and reader not in members:
                yield name, source, reader
            elif reader in members and source not in members:
                yield name, reader, source

    def _name(self, place: int) -> str:
        return self._nodes[place].name or ""


def _unknown(nodes: Sequence[ir.Node]) -> Iterator[_Tensor]:
    places: dict[ir.Node | None, int] = {node: place for place, node in enumerate(nodes)}
    for reader, node in enumerate(nodes):
        for value in dict.fromkeys(outer_reads([node])):
            source = places.get(value.producer(), reader)
            if value.type is None and source != reader and not is_constant(nodes[source]):
                yield _Tensor(value.name or "", source, reader)
