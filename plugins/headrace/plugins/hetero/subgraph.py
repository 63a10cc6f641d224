"""A part of a network, loaded on its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.plugins.hetero.container import Frame
from headrace.plugins.hetero.flow import Ends
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.job import LayerProfile
from headrace.runtime.network.network import Layer


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A part of a network, loaded on its device.

    Attributes:
        number: from 1, in execution order.
        device: as the list names it.
        layers: its nodes in the network's graph; of constants only those that are outputs.
        architecture, backend_version: the device's, for an export.
        origins: of its layers, by name: the layers of the network as loaded. Preprocessing stands
            for none.
    """

    number: int
    device: str
    executable: ExecutableNetwork
    ends: Ends
    layers: tuple[str, ...]
    architecture: str
    backend_version: str
    origins: Mapping[str, tuple[str, ...]]

    def profile(self, layers: Sequence[LayerProfile]) -> list[LayerProfile]:
        """What its layers cost, in terms of the whole network."""
        return [
            replace(layer, subgraph=self.number, origins=self._origins(layer.origins))
            for layer in layers
        ]

    def executed(self) -> list[Layer]:
        """The graph that its device runs, in terms of the whole network."""
        return [
            replace(layer, origins=self._origins(layer.origins))
            for layer in self.executable.layers()
        ]

    def export(self) -> Frame:
        return Frame(
            self.device,
            self.layers,
            self.ends,
            self.architecture,
            self.backend_version,
            self.executable.export(),
        )

    def _origins(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(origin for name in names for origin in self.origins.get(name, ()))
