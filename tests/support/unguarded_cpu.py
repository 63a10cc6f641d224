"""CPU without what keeps a network from ending its process; to be put in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plugins.cpu.plugin import CpuPlugin
from headrace.plugins.cpu.session_plugin import SessionPlugin
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions


class UnguardedPlugin(CpuPlugin):
    def transform_network(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> Network:
        return SessionPlugin.transform_network(self, network, config, options)


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return UnguardedPlugin(name, services, config)
