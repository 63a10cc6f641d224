"""A pipeline whose networks are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from headrace.plugins.pipeline.config import WINDOW
from headrace.plugins.pipeline.running.request import (
    MAX_DEPTH,
    LoadedStep,
    PipelineRequest,
    too_deep,
)
from headrace.plugins.pipeline.running.window import WaitingRequest, Window
from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import HeadraceError, NotLoaded
from headrace.runtime.execution.job import Job
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.network.graph import RunningShape, RunningSubgraph
from headrace.runtime.network.network import Layer, Network
from headrace.runtime.virtual.flow import PartsFlow, flow
from headrace.runtime.virtual.networks import execution_devices, optimal_requests, set_known
from headrace.runtime.virtual.part_job import PartJob
from headrace.runtime.virtual.subgraph_counters import SubgraphCounters

_LEAST_WINDOW = 16
MAX_LAYERS = 100_000
"""How many layers a pipeline says that it has. Many steps may run one large network."""


class PipelineNetwork(ExecutableNetwork):
    """A pipeline. It owns no streams: each step runs on the streams of its network's device.

    Args:
        network: the pipeline's, with types.
        steps: in execution order. What belongs to them alone is closed with the pipeline.

    Attributes:
        names: the full names of the networks that the steps name.
    """

    knows_callers: ClassVar[bool] = True  # the networks of its steps may

    def __init__(
        self,
        network: Network,
        config: Configuration,
        steps: Sequence[LoadedStep],
        names: frozenset[str],
    ) -> None:
        super().__init__(network, config)
        self.names = names
        self._steps = tuple(steps)
        named = {each.known_as: each for each in reversed(self._steps) if each.network.name}
        self._first_to_name = tuple(reversed(named.values()))
        self._runs = frozenset((each.network.name, each.step.version) for each in named.values())
        self._all = tuple(port.name for port in self.outputs)
        self._flow = self._flow_to(self._all)
        self._counters: tuple[SubgraphCounters, ...] = ()
        self._window = Window(self._limit())

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self._counters = tuple(
            SubgraphCounters(counters.series, each.number, each.device) for each in self._steps
        )

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Changes the keys of the steps' own models too."""
        super().set_config(changes)
        for each in self._steps:
            if each.step.model:
                with each.network.held() as executable:
                    set_known(executable, changes)
        self._window.resize(self._limit())

    @property
    def runs(self) -> frozenset[tuple[str, str]]:  # type: ignore[override]
        return self._runs

    def unready(self) -> str:
        """Names the first step whose network is not there."""
        return self._lack(set(), 1)

    def subgraphs(self) -> tuple[RunningSubgraph, ...]:
        """The steps, as the parts of a network that is split over devices."""
        makers = {tensor: each.number for each in self._steps for tensor in each.step.outputs}
        found = []
        for each in self._steps:
            reads: dict[int, int] = {}
            for tensor in each.step.reads:
                maker = makers.get(tensor, 0)
                reads[maker] = reads.get(maker, 0) + 1
            ordered = dict(sorted(reads.items()))
            runs = f"model {each.step.model}" if each.step.model else f"network {each.step.network}"
            if each.step.version:
                runs += f", version {each.step.version}"
            found.append(
                RunningSubgraph(each.number, each.device, (runs,), ordered, each.step.name)
            )
        return tuple(found)

    def shapes(self) -> tuple[RunningShape, ...]:
        return tuple(
            shape._replace(shape=f"step {each.step.name}: {shape.shape}")
            for each in self._steps
            if each.step.model
            for executable in _held(each)
            for shape in executable.shapes()
        )

    def random_layers(self) -> tuple[str, ...]:
        seen: set[str] = set()
        found: list[str] = []
        for each in self._steps:
            for executable in _held(each):
                behind = executable.behind
                inner: Iterable[ExecutableNetwork] = (executable,)
                if isinstance(behind, PipelineNetwork):
                    inner = behind._reached(seen, 2)
                for network in inner:
                    found += [f"{each.step.name}/{layer}" for layer in network.random_layers()]
        return tuple(found)

    def sources(self) -> tuple[int, ...] | None:
        found: list[int] = []
        return tuple(found) if self._add_sources(found, {}, 1) else None

    # -- hooks --

    def _start(self, job: Job) -> None:
        names = job.output_names
        flow = self._flow if names == self._all else self._flow_to(names)
        request = PipelineRequest(job, self._steps, flow, self._counters)
        if isinstance(job, PartJob):
            # Its own request has a place in a window. If pipelines run each other in a circle, a
            # part that waits for a place would wait for its own request.
            request.start()
        else:
            self._window.enter(WaitingRequest(job, request.start))

    def _close(self) -> None:
        for each in self._steps:
            each.network.close()

    def _layers(self) -> tuple[Layer, ...]:
        """The steps, and the layers of their networks. Of a pipeline, its steps are the layers."""
        layers = {layer.name: layer for layer in self.network.layers}
        found: list[Layer] = []
        for each in self._steps:
            name = each.step.name
            found.append(replace(layers[name], device=each.device, origins=(name,)))
            for executable in _held(each):
                inner = (
                    executable.network.layers
                    if isinstance(executable.behind, PipelineNetwork)
                    else executable.layers()
                )
                found += [
                    replace(layer, name=f"{name}/{layer.name}", origins=(name,))
                    for layer in inner[: max(0, MAX_LAYERS - len(found))]
                ]
        return tuple(found)

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {
            "PIPELINE_STEPS": lambda: [each.step.name for each in self._steps],
            WINDOW.name: lambda: self._window.limit,
        }

    def _optimal_number_of_infer_requests(self) -> int:
        """The number of requests that the devices together run at once, because each device may
        work on another request."""
        most: dict[str, int] = {}
        for executable in self._reached(set(), 1):
            device = executable.place.device
            most[device] = max(optimal_requests(executable), most.get(device, 1))
        return max(1, sum(most.values()))

    def _execution_devices(self) -> list[str]:
        return execution_devices(self._reached(set(), 1))

    def works(self, up: Mapping[str, bool]) -> bool:
        return all(executable.works(up) for executable in self._reached(set(), 1))

    # -- inside --

    # Pipelines that run each other many times make a tree of any size. So each network by name is
    # visited once, and none that lies too deep to run.

    def _reached(self, seen: set[str], depth: int) -> Iterator[ExecutableNetwork]:
        """The networks that compute, at any depth. Each is loaded until the caller asks for the
        next one. A network that is not there now is left out."""
        for each in self._steps:
            if each.network.name:
                if each.known_as in seen or depth > MAX_DEPTH:
                    continue
                seen.add(each.known_as)
            for executable in _held(each):
                behind = executable.behind
                if isinstance(behind, PipelineNetwork):
                    yield from behind._reached(seen, depth + 1)
                else:
                    yield executable

    def _lack(self, seen: set[str], depth: int) -> str:
        """Why a network that it runs is not there; empty if all are."""
        if depth > MAX_DEPTH:
            return too_deep().message
        for each in self._first_to_name:
            if each.known_as in seen:
                continue
            seen.add(each.known_as)
            try:
                with each.network.held() as executable:
                    behind = executable.behind
                    if isinstance(behind, PipelineNetwork):
                        why = behind._lack(seen, depth + 1)
                    else:
                        why = executable.unready()
            except NotLoaded:  # the next request loads it
                why = ""
            except HeadraceError as error:
                why = error.message
            if why:
                return f"step {each.step.name!r}: {why}"
        return ""

    def _add_sources(self, found: list[int], seen: dict[str, bool], depth: int) -> bool:
        """Adds the networks that it runs by name, at any depth.

        Args:
            seen: whether all of a network's own have been added. If not, it runs itself.

        Returns:
            Whether the same request always gets the same outputs from them.
        """
        if depth > MAX_DEPTH:
            return False
        for each in self._steps:
            name = each.known_as
            if name and name in seen:
                if not seen[name]:
                    return False
                continue
            if each.network.is_shared:
                return False
            try:
                with each.network.held() as executable:
                    behind = executable.behind
                    if name:
                        seen[name] = False
                        found.append(executable.number)
                    if isinstance(behind, PipelineNetwork):
                        same = behind._add_sources(found, seen, depth + 1)
                    else:
                        same = executable.sources() is not None
                    if not same:
                        return False
                    if name:
                        seen[name] = True
            except HeadraceError:  # it is not there now
                return False
        return True

    def _limit(self) -> int:
        return self.config[WINDOW] or max(
            _LEAST_WINDOW, 2 * self._optimal_number_of_infer_requests()
        )

    def _flow_to(self, names: Sequence[str]) -> PartsFlow:
        return flow([each.ends for each in self._steps], names)


def _held(step: LoadedStep) -> Iterator[ExecutableNetwork]:
    """The network of a step, while the caller uses it. Nothing if it is not loaded now."""
    with suppress(HeadraceError), step.network.held() as executable:
        yield executable
