"""TEMPLATE with faults: a device that fails at a load, or in the middle of a request, when it is
told to."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plugins.template.config import SCHEMA
from headrace.plugins.template.executable_network import TemplateNetwork
from headrace.plugins.template.plugin import TemplatePlugin
from headrace.runtime.config.schema import ConfigSchema, Configuration, Key
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.compiled_plugin import CompiledPlugin
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.errors import InvalidArgument, Unavailable
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network

FAULTS = ("bug", "refusal", "down", "exit", "nothing")
FAULT = Key(
    "FAULT",
    str,
    "",
    "How requests fail once they have computed; empty: they do not.",
    choices=(*FAULTS, ""),
    scope="device",
)
LOADS = Key("LOADS", bool, True, "Whether networks can be loaded.", scope="device")


class FaultyNetwork(TemplateNetwork):
    def __init__(self, network: Network, config: Configuration, plugin: CompiledPlugin) -> None:
        super().__init__(network, config, plugin)
        self._plugin = plugin

    def _postprocess(self, job: Job) -> None:
        super()._postprocess(job)
        fault = self._plugin.config[FAULT]
        if fault == "bug":
            raise RuntimeError("the device is broken")
        if fault == "refusal":
            raise InvalidArgument("the device does not take these values", field="inputs")
        if fault == "down":
            raise Unavailable("the device is gone")
        if fault == "exit":
            raise SystemExit("the device ends the thread")
        if fault == "nothing":
            job.outputs = {}


class FaultyPlugin(TemplatePlugin):
    schema = ConfigSchema(*SCHEMA, FAULT, LOADS)

    def _compile(self, network: Network, config: Configuration, _: CancelToken) -> FaultyNetwork:
        if not self.config[LOADS]:
            raise Unavailable("the device has no room")
        return FaultyNetwork(network, config, self)


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return FaultyPlugin(name, services, config)
