"""Compiles networks for OpenVINO's devices. An import of this module imports OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx_ir as ir

from headrace.plugins.openvino.executable_network import RequestNetwork
from headrace.plugins.openvino.failures import why_not
from headrace.plugins.openvino.graph.checkpoint import add_checkpoints
from headrace.plugins.openvino.guards.guards import unstamped
from headrace.plugins.openvino.guards.shapes import Shapes
from headrace.plugins.openvino.library import openvino
from headrace.plugins.openvino.session.requests import Compiled, bind
from headrace.plugins.openvino.session.session import Runtime
from headrace.plugins.openvino.support import LayerSupport, known_limits, unsupported
from headrace.runtime.config.schema import Configuration
from headrace.runtime.errors import HeadraceError, UnsupportedLayers
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.network.network import Network
from headrace.runtime.system.allocator import release_memory
from headrace.runtime.transform.trials import Trials

Properties = Mapping[str, object]


class Compiler:
    """Compiles networks, and tells which layers a device runs. Thread-safe.

    Args:
        runtime: OpenVINO, with at least one device.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._trials = {device: self._trials_of(device) for device in runtime.devices}

    def support(self, network: Network, device: str, properties: Properties) -> LayerSupport:
        """Tells which layers of a transformed network the device runs."""

        def whole(model: ir.Model) -> str | None:
            try:
                self.compile(Network(model), device, properties)
            except HeadraceError as error:
                return why_not(error)
            return None

        capabilities = self.runtime.capabilities(device)
        return LayerSupport(network.model, self._trials[device], whole, capabilities)

    def refuse_unsupported(self, network: Network, device: str, name: str) -> None:
        """
        Raises:
            UnsupportedLayers: the network has layers that the device is known to compute wrongly.
                The error lists them, and calls the device `name`.
        """
        reasons = known_limits(network.model, self.runtime.capabilities(device))
        if reasons:
            raise UnsupportedLayers(name, unsupported(reasons))

    def compile(
        self,
        network: Network,
        device: str,
        properties: Properties,
        token: CancelToken | None = None,
    ) -> Compiled:
        """
        Raises:
            HeadraceError: see `failures.load_failure`; or the error that `token` was cancelled
                with.
        """
        compiled, _ = self._compile(network, device, properties, token)
        return compiled

    def compile_again(self, network: Network, device: str, properties: Properties) -> Compiled:
        """Compiles a network again after a run of it has failed. The result has `shapes`."""
        compiled, converted = self._compile(network, device, properties, None)
        inputs = [(port.name, port.index) for port in compiled.inputs]
        return replace(compiled, shapes=Shapes(converted, compiled.model, inputs))

    def restore(
        self, network: Network, native: bytes, device: str, properties: Properties
    ) -> Compiled:
        """Restores a network that was compiled and exported before. Raises the same errors as
        `compile`, and an error if the network was exported with other guards."""
        restored = self.runtime.restore(unstamped(native), device, properties)
        return bind(network, restored, None)

    def executable(
        self,
        network: Network,
        config: Configuration,
        executor: StreamsExecutor,
        share: int,
        compiled: Compiled,
        again: Callable[[], Compiled],
    ) -> RequestNetwork:
        """Makes the executable network. The arguments are those of `RequestNetwork`."""
        release_memory()  # the memory that the conversion used
        return RequestNetwork(network, config, executor, share, compiled, again)

    def _compile(
        self, network: Network, device: str, properties: Properties, token: CancelToken | None
    ) -> tuple[Compiled, openvino.Model]:
        model, checkpoints = add_checkpoints(network.model)
        converted = self.runtime.convert(model, checkpoints)
        if token is not None and token.error is not None:
            raise token.error  # the compilation cannot be stopped once it has started
        compiled = self.runtime.compile(converted, device, properties)
        return bind(network, compiled, checkpoints), converted

    def _trials_of(self, device: str) -> Trials:
        def ask(data: bytes) -> str | None:
            try:
                self.runtime.compile(self.runtime.read(data), device, {})
            except HeadraceError as error:
                return why_not(error)
            return None

        return Trials(ask)
