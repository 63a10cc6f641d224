"""A network split over devices: its subgraphs, and the requests that go through them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

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
from headrace.runtime.execution.job import Job, nobody_waits
from headrace.runtime.execution.ports import PortCheck
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.network.graph import RunningShape, RunningSubgraph
from headrace.runtime.network.network import Layer, Network, Port
from headrace.runtime.network.values import Value
from headrace.runtime.virtual.delegation import DeviceDelegation
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

    delegates = True

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
        self._counters: tuple[SubgraphCounters, ...] = ()
        self.notes_on_split: tuple[str, ...] = ()
        self.lasts = True
        self.placement = json.dumps({"candidates": [], "fastest_layers": {}})

    def open(self, place: Place) -> None:
        """As `ExecutableNetwork.open`. A load that measures splits has opened it before."""
        if not hasattr(self, "place"):
            super().open(place)
            self._delegate()

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self._counters = tuple(
            SubgraphCounters(counters.series, subgraph.number, subgraph.device)
            for subgraph in self._subgraphs
        )
        self._delegate()

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
        names = job.output_names
        flow = self._flow if names == self._all else self._flow_to(names)
        HeteroRequest(job, self._subgraphs, flow, self._constants, self._counters).start()

    def whole_failed(self, job: Job) -> None:
        """The device of the only subgraph has refused the caller's own job."""
        subgraph, error = self._subgraphs[0], job.error
        assert error is not None
        if isinstance(error, InvalidArgument) and job.token.error is None:
            job.reopen()
            job.may_run_inline = False  # this may be a stream's thread
            try:
                self._start(job)  # which can go on to the next device
            except Exception as raised:  # noqa: BLE001 - an accepted job has an outcome
                job.fail(raised)
        else:
            job.error = named_part(error, subgraph.number, 1, subgraph.device)

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
        self._delegation = None  # it refers to this network
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

    def _delegate(self) -> None:
        """Has the device of the only subgraph run requests as they are, if it runs all of them."""
        if len(self._subgraphs) != 1:
            return
        (only,) = self._subgraphs
        runs_all = {*self._all} <= {*only.ends.outputs}
        ports = {port.name for port in (*self.inputs, *self.defaults)}
        takes_all = ports <= only.defaults.union(only.ends.inputs)
        if runs_all and takes_all and only.executable.runs_jobs_of_others:
            self._delegation = _Whole(self, only.executable, self._counters)

    def _exported(self, exports: Iterable[SubgraphExport]) -> bytes:
        told = {"notes": self.notes_on_split, "placement": self.placement}
        return write_exports({**told_of(self.network), **told}, exports)

    def _flow_to(self, names: Sequence[str]) -> PartsFlow:
        return flow([subgraph.ends for subgraph in self._subgraphs], names)


class _Whole(DeviceDelegation):
    """The requests of a network that is on one device as a whole."""

    __slots__ = ("_network", "start")

    def __init__(
        self,
        network: HeteroNetwork,
        executable: ExecutableNetwork,
        counters: Sequence[SubgraphCounters],
    ) -> None:
        super().__init__(executable, partial(_count, counters))
        self._network = network
        self.start = executable._start

    def completed(self, job: Job) -> None:
        pass

    def failed(self, job: Job) -> None:
        self._network.whole_failed(job)


def _count(counters: Sequence[SubgraphCounters], runs: Collection[float]) -> None:
    for each in counters:
        each.observe_all(runs)


def _defaults(subgraphs: Sequence[LoadedSubgraph]) -> Iterable[Port]:
    """The inputs with a value in the network that each subgraph that reads them can replace."""
    ports = {port.name: port for subgraph in subgraphs for port in subgraph.executable.defaults}
    for subgraph in subgraphs:
        for name in subgraph.defaults - taken_by(subgraph.executable):
            ports.pop(name, None)
    return ports.values()
