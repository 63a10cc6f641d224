"""The server's side of a network whose device lives in a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import Unavailable
from headrace.runtime.execution.execution_timeout import Patience
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.ports import PortCheck
from headrace.runtime.execution.stages import Dispatcher
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.isolation.server.dispatcher import WorkerDispatcher
from headrace.runtime.isolation.server.host import WorkerHost
from headrace.runtime.isolation.server.telemetry import Telemetry
from headrace.runtime.isolation.server.worker_network import WorkerNetwork
from headrace.runtime.isolation.wire.descriptions import (
    of_network,
    parameter_from_json,
)
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.metrics.series import SeriesSnapshot
from headrace.runtime.network.graph import RunningShape
from headrace.runtime.network.network import Layer, Network, Port, layer_from_json, port_from_json
from headrace.runtime.system.buffers import joined

_OURS: Final = frozenset(
    (
        "SUPPORTED_METRICS",
        "SUPPORTED_CONFIG_KEYS",
        "NETWORK_NAME",
        "OPTIMAL_NUMBER_OF_INFER_REQUESTS",
        "EXECUTION_DEVICES",
        "LOADED_FROM_CACHE",
        "NOTES",
    )
)
"""Metrics that the server's side answers."""
_PATIENCE_SECONDS: Final = 2.0
"""How long a run may go on after its EXECUTION_TIMEOUT has cancelled it. Then its worker is
killed."""
_EXPORT_SECONDS: Final = 300.0
"""How long an export may take."""
_BRIEF_PORTS: Final = 64
"""The messages of a network with more inputs and outputs are not brief."""


class IsolatedNetwork(ExecutableNetwork):
    """Each job takes one of the device's streams. The stream's thread waits for the worker's
    answer, unless the job is dispatched.

    Args:
        network: the network as the caller gave it.
        worker_network: the network in the worker.
        facts: what the worker said about the network.
        telemetry: the worker's counters.
    """

    process: ClassVar[str] = "worker"
    inputs_may_change = True  # the worker gets a copy, and nobody looks at values before

    def __init__(
        self,
        network: Network,
        config: Configuration,
        executor: StreamsExecutor,
        streams: int,
        host: WorkerHost,
        worker_network: WorkerNetwork,
        facts: Mapping[str, Any],
        telemetry: Telemetry,
    ) -> None:
        asked = of_network(config)
        chosen = {key: text for key, text in facts["config"].items() if asked.get(key) != text}
        shown = config.schema.resolve(config.explicit_strings(), chosen)
        super().__init__(network, shown, executor, streams=streams)
        self._asked = config
        self._host = host
        self._telemetry = telemetry
        self._end_series: Callable[[], None] | None = None
        self._worker_network = worker_network
        # The worker knows the ports, because it runs preprocessing and the device's own passes.
        self.inputs = tuple(map(port_from_json, facts["inputs"]))
        self.outputs = tuple(map(port_from_json, facts["outputs"]))
        self.defaults = tuple(map(port_from_json, facts["defaults"]))
        self._check = PortCheck(self.inputs, self.outputs, self.defaults)
        self._metric_names = tuple(facts["metrics"])
        self.maps_weights = facts["maps_weights"] is True

    def load_config(self) -> dict[str, str]:
        """The part of the configuration that a load takes, without what the worker has chosen."""
        return of_network(self._asked)

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self._end_series = counters.series.add(self._series)

    def submit(self, job: Job) -> None:
        """As `ExecutableNetwork.submit`.

        Raises:
            Unavailable: the worker is being restarted. The error has the delay for a retry.
        """
        if job.ticket is None and not self._closed:
            try:
                self._host.worker()
            except Unavailable:
                self.place.counters.refuse("device_down")
                raise
        super().submit(job)

    def set_config(self, changes: Mapping[str, str]) -> None:
        self.config.changed(changes)  # checks the changes before the worker gets them
        self._call("network_config", changes=dict(changes))
        self._asked = self._asked.changed(changes)
        super().set_config(changes)

    def shapes(self) -> tuple[RunningShape, ...]:
        told, number = self._telemetry.counts(), self._worker_network.number
        return () if told is None or number is None else told.shapes.get(number, ())

    def _infer(self, job: Job) -> None:
        self._host.run(self._worker_network, job)

    def _dispatcher(self) -> Dispatcher | None:
        ports = (*self.inputs, *self.outputs)
        is_brief = len(ports) <= _BRIEF_PORTS and all(map(_is_array, self.outputs))
        return WorkerDispatcher(self._host, self._worker_network, is_brief=is_brief)

    def patience(self) -> Patience:
        return Patience(_PATIENCE_SECONDS, lambda _: self._worker_network.kill())

    def _export(self) -> bytes:
        _, files = self._host.ask(self._worker_network, "export", _EXPORT_SECONDS)
        return joined(files[:1])

    def _layers(self) -> tuple[Layer, ...]:
        return tuple(map(layer_from_json, self._call("layers")))

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        own = (name for name in self._metric_names if name not in _OURS)
        return {name: partial(self._metric, name) for name in own}

    def _metric(self, name: str) -> ParameterValue:
        return parameter_from_json(self._call("network_metric", name=name))

    def _call(self, method: str, **arguments: Any) -> Any:
        result, _ = self._host.ask(self._worker_network, method, **arguments)
        return result

    def _series(self) -> Iterable[SeriesSnapshot]:
        """The series that the plugin counts for this network in the worker."""
        told, number = self._telemetry.counts(), self._worker_network.number
        return () if told is None or number is None else told.series.get(number, ())

    def _close(self) -> None:
        if self._end_series is not None:
            self._end_series()
            self._end_series = None
        self._host.unload(self._worker_network)


def _is_array(port: Port) -> bool:
    """Whether the port's values are numbers alone, in one array."""
    return port.kind == "tensor" and not port.dtype.is_string()
