"""A device whose compiled networks can be exported, and that counts what it compiled."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.metrics import Metric
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from tests.support.hook_plugin import Copies, HookPlugin

_COMPILED = b"compiled: "


class ExportingNetwork(Copies):
    """Its native bytes are its layers' names, and as many more as it is padded with."""

    def __init__(self, *arguments: object, native: Callable[[], bytes], streams: int) -> None:
        super().__init__(*arguments, streams=streams)  # type: ignore[arg-type]
        self._native = native

    def _export(self) -> bytes:
        return self._native()


class ExportingPlugin(HookPlugin):
    """
    Attributes:
        imported: the native bytes that were taken, in order.
        takes: called with native bytes before they are; may raise.
        exports: makes a network's native bytes.
        padding_bytes: how many more there are of them.
    """

    imports_native = True
    compile_checks_support = True

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        super().__init__(name, services, config)
        self.imported: list[bytes] = []
        self.takes: Callable[[bytes], object] = lambda _: None
        self.exports: Callable[[Network], bytes] = self._named
        self.padding_bytes = 0

    def _named(self, network: Network) -> bytes:
        names = ",".join(network.layer_names)
        return _COMPILED + names.encode() + b"\0" * self.padding_bytes

    def _add_extension(self, functions: Sequence[ir.Function]) -> None:
        """Takes any."""

    def _metrics(self) -> Mapping[str, Metric]:
        return {"COMPILED": lambda _: len(self.compiled)}

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> ExportingNetwork:
        self.on_compile(token)
        made = self._make_network(network, config)
        self.compiled.append(made)
        return made

    def _import(
        self, network: Network, native: bytes, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        self.takes(native)
        if not native.startswith(_COMPILED):
            raise FailedPrecondition("these are not this device's bytes")
        self.imported.append(native)
        return self._make_network(network, config)

    def _make_network(self, network: Network, config: Configuration) -> ExportingNetwork:
        return ExportingNetwork(
            network,
            config,
            self.executor(config),
            native=lambda: self.exports(network),
            streams=self.share(config),
        )


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """A device whose networks the server's cache keeps."""
    return ExportingPlugin(name, services, config)


@plugin_api(1)
def create_large(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """The same, with 256 KiB of native bytes for each network."""
    plugin = ExportingPlugin(name, services, config)
    plugin.padding_bytes = 2**18
    return plugin


@plugin_api(1)
def create_gated(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """A device that says that it compiles, by a file called after its process in the folder that
    the variable ``TEST_GATE`` names, and goes on when nobody has the file ``gate`` in there locked.
    """
    folder = Path(os.environ["TEST_GATE"])

    def wait(_: CancelToken) -> None:
        (folder / f"compiles-{os.getpid()}").touch()
        with (folder / "gate").open() as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)

    plugin = ExportingPlugin(name, services, config)
    plugin.on_compile = wait
    return plugin
