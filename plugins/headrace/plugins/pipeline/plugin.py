"""The PIPELINE device: networks whose layers are other networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from headrace.plugins.pipeline import loading
from headrace.plugins.pipeline.config import SCHEMA
from headrace.plugins.pipeline.executable_network import MAX_LAYERS
from headrace.plugins.pipeline.running.step import ports_of_network
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import DEVICE_ID
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import AS_IT_IS
from headrace.runtime.errors import HeadraceError, InvalidArgument, UnsupportedLayer
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.description import PipelineStep
from headrace.runtime.pipelines.model import plan_in
from headrace.runtime.pipelines.ports import StepPorts, ports_of
from headrace.runtime.system.asker import current_asker
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult, Subgraph
from headrace.runtime.virtual.plugin import VirtualPlugin


class PipelinePlugin(VirtualPlugin):
    """Loads pipelines: networks that `headrace.runtime.pipelines` makes of descriptions. A step is
    a layer. What it runs is a network of the server, or a model of its own on another device."""

    schema = SCHEMA
    full_name = "Runs several networks behind one name"

    def query_network(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions = AS_IT_IS
    ) -> QueryResult:
        """Says which device runs which step, and which layer of its network."""
        self._refuse_options(options)
        self._configured(config, ignore_unknown=True)
        plan, models = plan_in(network)
        answer = QueryResult()
        ports: dict[str, StepPorts] = {}
        for step in plan.steps:
            try:
                ports[step.name] = self._ask(step, models, answer)
            except HeadraceError as error:
                operator = step.network or step.model
                answer.unsupported.append(UnsupportedLayer(step.name, operator, error.message))
        if len(ports) < len(plan.steps):
            return answer
        try:
            return replace(answer, typed=loading.typed(network, ports_of(plan, ports)))
        except InvalidArgument as error:
            return replace(answer, notes=(f"{error.field}: {error.message}",))

    def load_network(self, load: Load) -> ExecutableNetwork:
        self._refuse_options(load.options)
        config = self._configured(load.config)
        return self._opened(load, config, partial(loading.load_steps, load, config, self.services))

    # -- inside --

    def _configured(
        self, config: Mapping[str, str], *, ignore_unknown: bool = False
    ) -> Configuration:
        return self._own_configuration(config, (), ignore_unknown=ignore_unknown)

    def _refuse_options(self, options: NetworkOptions) -> None:
        for field, given in (
            ("inputs", options.inputs),
            ("outputs", options.outputs),
            ("affinities", options.affinities),
        ):
            if given:
                raise InvalidArgument(
                    f"a pipeline takes no {field}: load the network of a step with them",
                    field=field,
                )

    def _ask(
        self, step: PipelineStep, models: Mapping[str, Buffer], answer: QueryResult
    ) -> StepPorts:
        """Adds what a step's network runs on. Returns what the network takes and gives."""
        if step.network:
            networks = self.services.networks
            assert networks is not None
            with loading.entry_of(step, current_asker().owner, networks) as entry:
                assert entry.executable is not None
                layers = {layer.name: layer.device for layer in entry.executable.layers()}
                self._supported(step, entry.executable.place.device, layers, answer)
                return ports_of_network(entry.executable)
        device = loading.device_of(step, self.services)
        load = loading.load_of(step, models[step.name], device, CancelToken())
        found = self.services.devices.plugin(device.type).query_network(
            load.network, load.config, load.options
        )
        if found.unsupported:
            answer.unsupported.extend(
                each._replace(layer=f"{step.name}/{each.layer}") for each in found.unsupported
            )
            first = found.unsupported[0]
            reason = f"{len(found.unsupported)} of its layers are not supported; {first.reason}"
            answer.unsupported.append(UnsupportedLayer(step.name, step.model, reason))
        else:
            place = self._place_of(device, load.config)
            layers = {
                layer: place if on == str(device) else on
                for layer, on in found.supported_layers.items()
            }
            self._supported(step, place, layers, answer)
        return StepPorts(load.network.inputs, load.network.outputs, load.network.defaults)

    def _place_of(self, device: DeviceName, config: Mapping[str, str]) -> str:
        """The device as networks that are loaded name it, with its number."""
        ids = self.services.devices.available()[device.type]
        chosen = config.get(DEVICE_ID.name) or next(iter(ids), "")
        return f"{device.type}.{chosen}" if chosen and not device.members else str(device)

    def _supported(
        self, step: PipelineStep, device: str, layers: Mapping[str, str], answer: QueryResult
    ) -> None:
        inner = {f"{step.name}/{layer}": on for layer, on in layers.items()}
        if len(inner) > MAX_LAYERS - len(answer.supported_layers):
            inner = {}
        answer.supported_layers.update({step.name: device, **inner})
        answer.subgraphs.append(Subgraph(device, (step.name, *inner), step.name))
