"""A device whose hooks a test sets, and one that fails in ways that no device should."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.compiled_plugin import CompiledPlugin, Support
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network
from headrace.runtime.transform.transform import Transformation

SECRET = "what only the log may say"


class Copies(ExecutableNetwork):
    """Gives every output the first input."""

    closed = 0

    def _infer(self, job: Job) -> None:
        (value, *_) = job.inputs.values()
        job.outputs = dict.fromkeys(job.output_names, value)

    def _close(self) -> None:
        self.closed += 1


class HookPlugin(CompiledPlugin):
    """Supports every layer. Keeps what it compiled in `compiled`.

    Attributes:
        on_compile: called before a network is made.
        on_support: called for each query, with the transformed network.
        passes: the device's transformations.
    """

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        super().__init__(name, services, config)
        self.compiled: list[Copies] = []
        self.on_compile: Callable[[CancelToken], object] = lambda _: None
        self.on_support: Callable[[Network], object] = lambda _: None
        self.passes: Sequence[Transformation] = ()

    def _device_ids(self) -> list[str]:
        return ["0", "1"]

    def _transformations(self, config: Configuration) -> Sequence[Transformation]:
        return self.passes

    def _support(self, network: Network, config: Configuration) -> Support:
        self.on_support(network)
        return lambda node: "no kernel" if node.op_type == "Strange" else None

    def _compile(self, network: Network, config: Configuration, token: CancelToken) -> Copies:
        self.on_compile(token)
        made = Copies(network, config, self.executor(config), streams=self.share(config))
        self.compiled.append(made)
        return made


def _raise(_: CancelToken) -> None:
    raise RuntimeError(SECRET)


@plugin_api(1)
def create_failing(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """A device whose every load ends in a RuntimeError that says `SECRET`."""
    plugin = HookPlugin(name, services, config)
    plugin.on_compile = _raise
    return plugin


@plugin_api(1)
def create_exiting(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """A device whose every load raises SystemExit."""
    plugin = HookPlugin(name, services, config)
    plugin.on_compile = lambda _: exit(SECRET)
    return plugin
