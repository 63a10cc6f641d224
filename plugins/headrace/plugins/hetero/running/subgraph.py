"""A part of a network on its device: its export, its counters and its errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.plugins.hetero.running.others import Others
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import FailedPrecondition, HeadraceError, InvalidArgument
from headrace.runtime.execution.job import LayerProfile
from headrace.runtime.network.network import Layer
from headrace.runtime.virtual.exports import ExportFormat, MemberExport
from headrace.runtime.virtual.flow import Ends

_FORMAT: Final = ExportFormat(b"\x89HETERO\r\n\x1a\n", 4, "the subgraphs'")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubgraphExport(MemberExport):
    """What an export keeps of a subgraph.

    If its device exports nothing, `layers` and `ends` say how to cut the subgraph's network out of
    the whole network again, and the device compiles it. So the export has the weights only once.

    Attributes:
        layers: the names of its nodes in the network's graph.
        told: as `told_of` tells of its network.
    """

    layers: tuple[str, ...]
    ends: Ends
    told: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedSubgraph:
    """A part of a network, loaded on its device.

    Attributes:
        number: from 1, in execution order.
        device: as the list names it.
        layers: the names of its nodes in the network's graph, with only those constants that are
            outputs.
        architecture, backend_version: the device's, for an export.
        told: as `told_of` tells of its network.
        others: the devices that run it if its own device refuses the values of a request.
        defaults: the inputs that have a value in its network.
    """

    number: int
    device: str
    executable: ExecutableNetwork
    ends: Ends
    layers: tuple[str, ...]
    architecture: str
    backend_version: str
    told: Mapping[str, Any]
    others: Others = field(default_factory=Others)
    defaults: frozenset[str] = frozenset()

    def profile(self, layers: Sequence[LayerProfile]) -> list[LayerProfile]:
        """The profiles of its layers, with the layer names of the whole network."""
        return [
            replace(layer, subgraph=self.number, origins=self._origins(layer.origins))
            for layer in layers
        ]

    def executed(self) -> list[Layer]:
        """The graph that its device runs, with the layer names of the whole network."""
        return [
            replace(layer, origins=self._origins(layer.origins))
            for layer in self.executable.layers()
        ]

    def export(self, native: bytes) -> SubgraphExport:
        """Its export with these bytes of its device."""
        return SubgraphExport(
            self.device,
            self.architecture,
            self.backend_version,
            native,
            layers=self.layers,
            ends=self.ends,
            told=self.told,
        )

    def _origins(self, names: Sequence[str]) -> tuple[str, ...]:
        origins = self.told["origins"]
        return tuple(origin for name in names for origin in origins.get(name, ()))


def write_exports(whole: Mapping[str, Any], exports: Iterable[SubgraphExport]) -> bytes:
    """The bytes of the subgraphs' exports in their order, after what is told of the network."""
    facts = ((_facts(exported), exported.native) for exported in exports)
    return _FORMAT.write([(dict(whole), b""), *facts])


def read_exports(native: bytes) -> tuple[Mapping[str, Any], tuple[SubgraphExport, ...]]:
    """Reads what `write_exports` wrote. Raises as `ExportFormat.read`."""
    whole, *exports = _FORMAT.read(native, _export) or ({},)
    return whole, tuple(exports)


def _facts(exported: SubgraphExport) -> dict[str, Any]:
    return {
        "device": exported.device,
        "layers": exported.layers,
        "told": exported.told,
        "inputs": exported.ends.inputs,
        "outputs": exported.ends.outputs,
        "architecture": exported.architecture,
        "backend_version": exported.backend_version,
    }


def _export(facts: Mapping[str, Any], native: bytes) -> Any:
    """A subgraph's export, or what is told of the network."""
    if "device" not in facts:
        return facts
    return SubgraphExport(
        device=str(facts["device"]),
        layers=tuple(map(str, facts["layers"])),
        told=facts["told"],
        ends=Ends(tuple(map(str, facts["inputs"])), tuple(map(str, facts["outputs"]))),
        architecture=str(facts["architecture"]),
        backend_version=str(facts["backend_version"]),
        native=native,
    )


def not_the_callers(error: HeadraceError, passed_on: Iterable[str]) -> HeadraceError:
    """The error to raise to the caller. If the error is about a tensor that another subgraph made,
    the result is another error that does not blame an input, because the caller did not give the
    tensor. Any other error stays as it is.

    Args:
        passed_on: the tensors that the subgraph got from other subgraphs.
    """
    fields = [f"inputs[{name!r}]" for name in passed_on]
    if not isinstance(error, InvalidArgument) or error.field not in fields:
        return error
    other = FailedPrecondition(
        f"{error.message} (another subgraph made this tensor; give its layers another device)",
        metadata=error.metadata,
    )
    other.__cause__ = error
    return other
