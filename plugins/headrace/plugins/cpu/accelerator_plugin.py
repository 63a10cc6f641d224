"""The common part of devices whose networks share one process, with a provider for accelerators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from headrace.plugins.cpu.claims.accelerators import of_provider
from headrace.plugins.cpu.claims.apart import refused
from headrace.plugins.cpu.executable_network import AcceleratorNetwork
from headrace.plugins.cpu.session_plugin import SessionPlugin
from headrace.plugins.cpu.support import OnnxRuntimeTrials
from headrace.runtime.config import hints
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.compiled_plugin import Support
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import AS_IT_IS
from headrace.runtime.errors import UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.runtime.transform.functions import inline_functions
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult
from headrace.runtime.transform.transform import Transformation


class AcceleratorPlugin(SessionPlugin):
    """The base class of such devices. Strangers get no operators whose inputs are not checked, and
    nobody gets indices that neither the kernel nor `CheckedRuns` keeps within the data, which the
    runs of a sub-class must be. A sub-class sets `_trials_of`: the trials of layers on each device,
    by its id."""

    network_class = AcceleratorNetwork
    _trials_of: Mapping[str, OnnxRuntimeTrials]

    def query_network(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions = AS_IT_IS
    ) -> QueryResult:
        answer = super().query_network(network, config, options)
        for refusal in refused(self._complete(network), self.services.cache):
            if answer.supported_layers.pop(refusal.layer, None) is not None:
                answer.unsupported.append(refusal)
        return answer

    def load_network(self, load: Load) -> ExecutableNetwork:
        if kept_out := refused(self._complete(load.network), self.services.cache):
            raise UnsupportedLayers(self.name, kept_out)
        return super().load_network(load)

    @abstractmethod
    def _provider_name(self) -> str:
        """The name of the provider whose faults are known."""

    def _refusals(self, model: ir.Model) -> Support:
        return of_provider(self._provider_name(), model)

    def _transformations(self, config: Configuration) -> Sequence[Transformation]:
        return (inline_functions,)

    def _trials(self, config: Configuration) -> OnnxRuntimeTrials:
        return self._trials_of[self.device_id(config)]

    def _threads(self, config: Configuration, at_once: int) -> int:
        return 1  # for layers on the processor, which compute shapes

    def _shown(self, config: Configuration, at_once: int) -> Configuration:
        return hints.chosen(config, at_once, work=0)  # one thread for each run, as above
