"""A network split over devices: its subgraphs, and the requests that go through them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.plugins.hetero.config import PLACEMENT, TARGET_FALLBACK
from headrace.plugins.hetero.running.request import HeteroRequest, named_part
from headrace.plugins.hetero.running.subgraph import (
    LoadedSubgraph,
    SubgraphExport,
    write_exports,
)
from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.device.executable_network import ExecutableNetwork, Place
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.execution.job import Job, Outcome, nobody_waits
from headrace.runtime.execution.ports import PortCheck
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.network.graph import RunningShape, RunningSubgraph
from headrace.runtime.network.network import Layer, Network, Port
from headrace.runtime.network.values import Value
from headrace.runtime.virtual.entries import told_of
from headrace.runtime.virtual.flow import PartsFlow, flow
from headrace.runtime.virtual.networks import (
    execution_devices,
    optimal_requests,
    set_known,
    taken_by,
)
from headrace.runtime.virtual.parts_request import copied
from headrace.runtime.virtual.subgraph_counters import SubgraphCounters


class HeteroNetwork(ExecutableNetwork):
    """A network that HETERO split. It owns no streams: each subgraph runs on its device's streams.

    Args:
        network: the whole network.
        subgraphs: in execution order; they are closed with the network.
        constants: outputs that no subgraph computes.

    Attributes:
        placement: the metric PLACEMENT, a JSON text: the splits that the load has measured.
        notes_on_split: what the plan of the split notes.
        lasts: whether the next start may split the network the same. It may not if a device got
            nothing because its worker process ended, or if not all splits could be measured.
    """

    def __init__(
        self,
        network: Network,
        config: Configuration,
        subgraphs: Sequence[LoadedSubgraph],
        constants: Mapping[str, Value],
    ) -> None:
        super().__init__(network, config)
        self._subgraphs = tuple(subgraphs)
        self.defaults = tuple(_defaults(subgraphs))
        self._check = PortCheck(self.inputs, self.outputs, self.defaults)
        self._constants = dict(constants)
        self._all = tuple(port.name for port in self.outputs)
        self._flow = self._flow_to(self._all)
        self._takes = self._gives = frozenset[str]()
        if len(subgraphs) == 1:
            self._takes = subgraphs[0].defaults.union(subgraphs[0].ends.inputs)
            self._gives = frozenset(subgraphs[0].ends.outputs)
        self._counters: tuple[SubgraphCounters, ...] = ()
        self.notes_on_split: tuple[str, ...] = ()
        self.lasts = True
        self.placement = json.dumps({"candidates": [], "fastest_layers": {}})

    def open(self, place: Place) -> None:
        """As `ExecutableNetwork.open`. A load that measures splits has opened it before."""
        if not hasattr(self, "place"):
            super().open(place)

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self._counters = tuple(
            SubgraphCounters(counters.series, subgraph.number, subgraph.device)
            for subgraph in self._subgraphs
        )

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Changes the subgraphs' keys too."""
        super().set_config(changes)
        for subgraph in self._subgraphs:
            set_known(subgraph.executable, changes)
            subgraph.others.set_config(changes)

    def compute(self, job: Job) -> None:
        """As `ExecutableNetwork.compute`. The subgraphs run one after the other."""
        names = job.output_names or self._all
        flow = self._flow_to(names)
        values, reads = dict(job.inputs), dict(flow.reads)
        for at, subgraph in enumerate(self._subgraphs):
            if not flow.outputs[at]:
                continue
            wanted = (*subgraph.ends.inputs, *subgraph.defaults)
            part = Job(
                {name: values[name] for name in wanted if name in values},
                nobody_waits,
                output_names=flow.outputs[at],
                token=job.token,
                profile=job.profile,
            )
            subgraph.executable.compute(part)
            values.update(part.outputs)
            job.layers += subgraph.profile(part.layers)
            for name in flow.handed[at]:
                reads[name] -= 1
                if not reads[name]:
                    del values[name]
        job.outputs = {name: self._value(name, values, job) for name in names}

    def _value(self, name: str, made: Mapping[str, Value], job: Job) -> Value:
        if name in made and name not in job.inputs:
            return made[name]
        return copied(job.inputs[name] if name in job.inputs else self._constants[name])

    def subgraphs(self) -> tuple[RunningSubgraph, ...]:
        makers = {
            name: subgraph.number for subgraph in self._subgraphs for name in subgraph.ends.outputs
        }
        return tuple(
            RunningSubgraph(
                subgraph.number,
                subgraph.device,
                subgraph.layers,
                dict(sorted(Counter(makers.get(name, 0) for name in subgraph.ends.inputs).items())),
            )
            for subgraph in self._subgraphs
        )

    def is_settled(self) -> bool:
        return all(subgraph.executable.is_settled() for subgraph in self._subgraphs)

    def shapes(self) -> tuple[RunningShape, ...]:
        return tuple(
            shape._replace(shape=f"subgraph {subgraph.number}: {shape.shape}")
            for subgraph in self._subgraphs
            for shape in subgraph.executable.shapes()
        )

    # -- hooks --

    def _start(self, job: Job) -> None:
        whole = self._gives and job.span is None and self._gives.issuperset(job.output_names)
        if whole and job.inputs.keys() <= self._takes:
            job.observe(self._whole_ended)
            self._subgraphs[0].executable.start(job)
        else:
            self._split(job)

    def _whole_ended(self, job: Job) -> None:
        """The device of the only subgraph has settled the caller's own job, so that HETERO adds
        next to nothing to what the device takes. The caller hears of it after this."""
        subgraph, error = self._subgraphs[0], job.error
        if error is None and (error := job.lacks_outputs()) is not None:
            job.outputs, job.outcome = {}, Outcome.FAILED
        if error is None:
            for each in self._counters:
                each.observe(job.finished - job.started, 0)
            if job.layers:
                job.layers = subgraph.profile(job.layers)
        elif isinstance(error, InvalidArgument) and job.token.error is None:
            job.reopen()
            job.may_run_inline = False  # this may be a stream's thread
            try:
                self._split(job)  # which can go on to the next device
            except Exception as raised:  # noqa: BLE001 - an accepted job has an outcome
                job.fail(raised)
        else:
            job.error = named_part(error, subgraph.number, 1, subgraph.device)

    def _split(self, job: Job) -> None:
        names = job.output_names
        flow = self._flow if names == self._all else self._flow_to(names)
        HeteroRequest(job, self._subgraphs, flow, self._constants, self._counters).start()

    def split(self) -> bytes:
        """What `export` gives without the subgraphs' own bytes, which their devices cache. Nothing
        if it does not last."""
        if not self.lasts:
            return b""
        return self._exported(subgraph.export(b"") for subgraph in self._subgraphs)

    def _export(self) -> bytes:
        return self._exported(
            subgraph.export(subgraph.executable.export()) for subgraph in self._subgraphs
        )

    def _close(self) -> None:
        for subgraph in self._subgraphs:
            subgraph.executable.close()
            subgraph.others.close()
        self._constants = {}

    def _layers(self) -> tuple[Layer, ...]:
        return tuple(layer for subgraph in self._subgraphs for layer in subgraph.executed())

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {
            "HETERO_NUMBER_OF_SUBGRAPHS": lambda: len(self._subgraphs),
            TARGET_FALLBACK.name: lambda: self.config[TARGET_FALLBACK],
            PLACEMENT.name: lambda: self.placement,
        }

    def _optimal_number_of_infer_requests(self) -> int:
        """The number of requests that the devices together run at once, because each device may
        work on another request."""
        most: dict[str, int] = {}
        for subgraph in self._subgraphs:
            most[subgraph.device] = max(
                optimal_requests(subgraph.executable), most.get(subgraph.device, 1)
            )
        return max(1, sum(most.values()))

    def _execution_devices(self) -> list[str]:
        return execution_devices(subgraph.executable for subgraph in self._subgraphs)

    def works(self, up: Mapping[str, bool]) -> bool:
        return all(subgraph.executable.works(up) for subgraph in self._subgraphs)

    # -- inside --

    def _exported(self, exports: Iterable[SubgraphExport]) -> bytes:
        told = {"notes": self.notes_on_split, "placement": self.placement}
        return write_exports({**told_of(self.network), **told}, exports)

    def _flow_to(self, names: Sequence[str]) -> PartsFlow:
        return flow([subgraph.ends for subgraph in self._subgraphs], names)


def _defaults(subgraphs: Sequence[LoadedSubgraph]) -> Iterable[Port]:
    """The inputs with a value in the network that each subgraph that reads them can replace."""
    ports = {port.name: port for subgraph in subgraphs for port in subgraph.executable.defaults}
    for subgraph in subgraphs:
        for name in subgraph.defaults - taken_by(subgraph.executable):
            ports.pop(name, None)
    return ports.values()
