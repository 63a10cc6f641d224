"""A device that computes elsewhere: each request takes a while and none of this machine's time."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from headrace.runtime.config.schema import ConfigSchema, Configuration, Key
from headrace.runtime.config.standard_keys import STANDARD_KEYS
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.compiled_plugin import CompiledPlugin, Support
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network

RUN_SECONDS = Key(
    "RUN_SECONDS", float, 0.02, "What a request takes.", unit="seconds", scope="device"
)


class SlowedNetwork(ExecutableNetwork):
    """Gives zeros of the declared shapes, which have to be fixed."""

    def __init__(self, network: Network, config: Configuration, plugin: CompiledPlugin) -> None:
        super().__init__(network, config, plugin.executor(config), streams=plugin.share(config))
        self._seconds = plugin.config[RUN_SECONDS]
        self._zeros = {
            port.name: np.zeros([int(size or 0) for size in port.shape or ()], port.dtype.numpy())
            for port in self.outputs
        }

    def _infer(self, job: Job) -> None:
        time.sleep(self._seconds)
        job.outputs = {name: self._zeros[name].copy() for name in job.output_names}


class SlowedPlugin(CompiledPlugin):
    schema = ConfigSchema(*STANDARD_KEYS, RUN_SECONDS)

    def _support(self, network: Network, config: Configuration) -> Support:
        return lambda _: None

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        return SlowedNetwork(network, config, self)


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return SlowedPlugin(name, services, config)
