"""A network in front of the network that a device has compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.network.graph import RunningShape, RunningSubgraph
from headrace.runtime.network.network import Layer


class NetworkInFront(ExecutableNetwork):
    """Is for its callers the network behind it, and decides in `_start` what becomes of a job. It
    admits and counts the jobs; those that run are started, not submitted, on the network behind.

    Args:
        inner: the compiled network. It is open, and is closed with this network.
        own: the configuration that the device does not know.
    """

    def __init__(self, inner: ExecutableNetwork, own: Configuration) -> None:
        super().__init__(inner.network, inner.config.joined(own))
        self.inner = inner
        self.place = inner.place
        self.counts_rows = inner.counts_rows
        self.on_streams = inner.on_streams
        self.process = inner.process  # type: ignore[misc]
        self.statistics = inner.statistics  # a device may count runs there
        self.inputs, self.outputs, self.defaults = inner.inputs, inner.outputs, inner.defaults
        self._check = inner._check
        self._request_shapes = inner._request_shapes  # which has those of a warm-up
        self._own = own

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.notes

    @property
    def runs(self) -> frozenset[tuple[str, str]]:  # type: ignore[override]
        return self.inner.runs

    @property
    def restored(self) -> bool:  # type: ignore[override]
        return self.inner.restored

    @property
    def loaded_from_cache(self) -> bool:  # type: ignore[override]
        return self.inner.loaded_from_cache

    @property
    def maps_weights(self) -> bool:  # type: ignore[override]
        return self.inner.maps_weights

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self.inner.count_as(name, counters)

    def set_config(self, changes: Mapping[str, str]) -> None:
        schema = self._own.schema
        own = self._own.changed({name: changes[name] for name in changes if name in schema})
        self.inner.set_config({name: changes[name] for name in changes if name not in schema})
        self._own = own
        self.config = self.inner.config.joined(own)
        self._configured()

    def layers(self) -> tuple[Layer, ...]:
        return self.inner.layers()

    def subgraphs(self) -> tuple[RunningSubgraph, ...]:
        return self.inner.subgraphs()

    def shapes(self) -> tuple[RunningShape, ...]:
        return self.inner.shapes()

    def unready(self) -> str:
        return self.inner.unready()

    def works(self, up: Mapping[str, bool]) -> bool:
        return self.inner.works(up)

    def random_layers(self) -> tuple[str, ...]:
        return self.inner.random_layers()

    def metrics(self) -> dict[str, Callable[[], ParameterValue]]:
        table: dict[str, Callable[[], ParameterValue]] = {
            **self.inner.metrics(),
            "SUPPORTED_METRICS": lambda: list(table),
            "SUPPORTED_CONFIG_KEYS": lambda: self.config.schema.names,
            **self._metrics(),
        }
        return table

    def _export(self) -> bytes:
        return self.inner.export()

    def _configured(self) -> None:
        """Follows a change of its own configuration."""
