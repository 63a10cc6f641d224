"""A device that computes zeros, and whose layers take what a test says."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.compiled_plugin import CompiledPlugin, Support
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, LayerProfile
from headrace.runtime.intake.provenance import origins
from headrace.runtime.network.network import Network


class PricedNetwork(ExecutableNetwork):
    """A network of fixed shapes."""

    def __init__(self, network: Network, config: Configuration, plugin: PricedPlugin) -> None:
        super().__init__(network, config, plugin.executor(config), streams=plugin.share(config))
        self._profile = [
            LayerProfile(
                node.name or "",
                node.op_type,
                plugin.name,
                "price",
                plugin.prices[node.name or ""],
                origins(node),
            )
            for node in network.model.graph
        ]

    def _infer(self, job: Job) -> None:
        if job.profile:
            job.layers = self._profile
        job.outputs = {
            port.name: np.zeros(port.fixed_shape or (), port.dtype.numpy()) for port in self.outputs
        }


class PricedPlugin(CompiledPlugin):
    """Supports the layers that have a price.

    Attributes:
        prices: the seconds of each layer, by name.
    """

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        super().__init__(name, services, config)
        self.prices: Mapping[str, float] = {}

    def _support(self, network: Network, config: Configuration) -> Support:
        return lambda node: None if node.name in self.prices else "no price"

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        return PricedNetwork(network, config, self)


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return PricedPlugin(name, services, config)


def priced(name: str) -> PluginSource:
    return PluginSource(name, lambda: create_plugin)
