"""A device that a test holds up, breaks and mends while requests run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.compiled_plugin import CompiledPlugin, Support
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.errors import NotInstalled
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network


class MoodyNetwork(ExecutableNetwork):
    """Gives every output the sum of the inputs."""

    def __init__(self, network: Network, config: Configuration, plugin: MoodyPlugin) -> None:
        super().__init__(network, config, plugin.executor(config), streams=plugin.share(config))
        self._plugin = plugin
        self.closed = 0

    def set_config(self, changes: Mapping[str, str]) -> None:
        self._plugin.on_set_config(changes)
        super().set_config(changes)

    def _infer(self, job: Job) -> None:
        self._plugin.jobs.append(job)
        self._plugin.on_infer(job)
        total: Any = sum(value for value in job.inputs.values())
        names = () if self._plugin.gives_nothing else job.output_names
        job.outputs = dict.fromkeys(names, total)

    def _export(self) -> bytes:
        return self._plugin.name.encode()

    def _close(self) -> None:
        self.closed += 1


class MoodyPlugin(CompiledPlugin):
    """Supports every layer but `Strange`, on one stream.

    Attributes:
        on_compile: called before a network is made.
        on_infer: called before a request computes, on the device's stream.
        on_set_config: called before a network's configuration changes, with the changes.
        compiled: the networks made, and `imported` the bytes that some were made of.
        jobs: those that it was given.
        gives_nothing: whether requests get no outputs.
    """

    imports_native = True

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        super().__init__(name, services, config)
        self.on_compile: Callable[[CancelToken], object] = lambda _: None
        self.on_infer: Callable[[Job], object] = lambda _: None
        self.on_set_config: Callable[[Mapping[str, str]], object] = lambda _: None
        self.compiled: list[MoodyNetwork] = []
        self.imported: list[bytes] = []
        self.jobs: list[Job] = []
        self.gives_nothing = False

    def breaks(self, error: Exception) -> None:
        """From now on every request raises this."""

        def fail(_: Job) -> None:
            raise error

        self.on_infer = fail

    def refuses(self, error: Exception) -> None:
        """From now on every load raises this."""

        def fail(_: CancelToken) -> None:
            raise error

        self.on_compile = fail

    def mends(self) -> None:
        self.on_infer = lambda _: None
        self.on_compile = lambda _: None

    def _default_streams(self) -> int:
        return 1

    def _support(self, network: Network, config: Configuration) -> Support:
        return lambda node: "no kernel" if node.op_type == "Strange" else None

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        self.on_compile(token)
        if token.error is not None:
            raise token.error
        self.compiled.append(MoodyNetwork(network, config, self))
        return self.compiled[-1]

    def _import(
        self, network: Network, native: bytes, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        self.imported.append(native)
        return self._compile(network, config, token)


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return MoodyPlugin(name, services, config)


@plugin_api(1)
def create_missing(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    raise OSError("no driver")


@plugin_api(1)
def create_absent(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    raise NotInstalled("install its extra")


def moody(name: str, **config: str) -> PluginSource:
    return PluginSource(name, lambda: create_plugin, config)


def missing(name: str) -> PluginSource:
    return PluginSource(name, lambda: create_missing)


def absent(name: str) -> PluginSource:
    return PluginSource(name, lambda: create_absent)
