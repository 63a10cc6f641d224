"""Compiles networks for OpenVINO's devices. An import of this module imports OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from headrace.plugins.openvino.backend.compilation import Compilation, read_stamp
from headrace.plugins.openvino.backend.core import Runtime
from headrace.plugins.openvino.backend.operations import EMPTY
from headrace.plugins.openvino.backend.sizes import (
    fixed_shapes,
    likely_shapes,
    sizing_inputs,
    with_sizes,
)
from headrace.plugins.openvino.executable_network import OpenVinoNetwork
from headrace.plugins.openvino.failures import why_not
from headrace.plugins.openvino.running.compiles import Compiles
from headrace.plugins.openvino.support import LayerSupport, known_limits, unsupported
from headrace.runtime.config.schema import Configuration
from headrace.runtime.errors import HeadraceError, UnsupportedLayer, UnsupportedLayers
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

        def whole(model: ir.Model) -> Mapping[str, str] | str | None:
            try:
                self.check(Network(model), device, properties)
            except UnsupportedLayers as error:
                return {each.layer: each.reason for each in error.layers}
            except HeadraceError as error:
                return why_not(error)
            return None

        capabilities = self.runtime.capabilities(device)
        return LayerSupport(network.model, self._trials[device], whole, capabilities)

    def unclaimed(
        self, network: Network, device: str, properties: Properties
    ) -> list[UnsupportedLayer]:
        """The layers that the device does not run."""
        support = self.support(network, device, properties)
        reasons = {node: why for node in network.model.graph if (why := support(node))}
        return unsupported(reasons)

    def refuse_unsupported(self, network: Network, device: str, name: str) -> None:
        """
        Raises:
            UnsupportedLayers: the network has layers that the device is known to compute wrongly.
                The error lists them, and calls the device `name`.
        """
        reasons = known_limits(network.model, self.runtime.capabilities(device))
        if reasons:
            raise UnsupportedLayers(name, unsupported(reasons))

    def check(
        self,
        network: Network,
        device: str,
        properties: Properties,
        token: CancelToken | None = None,
    ) -> Compilation | None:
        """Compiles a network once, to find out whether it compiles: with the sizes that it says, or
        with likely ones.

        Returns:
            The compilation, if the network says all sizes of its inputs.

        Raises:
            HeadraceError: it compiles with none of the sizes. See `compile`.
        """
        if sizing_inputs(network):
            return None  # nothing is known of their values
        if fixed_shapes(network) is not None:
            return self.compile(network, device, properties, token)
        failure: HeadraceError | None = None
        for likely in likely_shapes(network):
            try:
                self.compile(with_sizes(network, likely, {}), device, properties, token)
            except HeadraceError as error:
                if token is not None and token.error is not None:
                    raise
                if _depends_on_sizes(error):
                    return None
                failure = failure or error
            else:
                return None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # which keeps this frame, and the network with it
        return None

    def compile(
        self,
        network: Network,
        device: str,
        properties: Properties,
        token: CancelToken | None = None,
    ) -> Compilation:
        """
        Args:
            network: transformed, and with known sizes of its inputs.

        Raises:
            UnsupportedLayers: OPENVINO does not run some layers with these sizes.
            HeadraceError: see `failures.load_failure`; or the error that `token` was cancelled
                with.
        """
        converted = self.runtime.convert(network.model)
        if token is not None and token.error is not None:
            raise token.error  # the compilation cannot be stopped once it has started
        model = self.runtime.compile(converted.model, device, properties)
        compilation = Compilation(network, model, converted.bound)
        del converted
        release_memory()  # which the conversion used
        return compilation

    def restore(
        self, network: Network, native: bytes, device: str, properties: Properties
    ) -> Compilation:
        """Restores a network that was compiled and exported before.

        Raises:
            InvalidArgument: another version exported it.
            HeadraceError: see `failures.load_failure`.
        """
        bound, data = read_stamp(native)
        model = self.runtime.restore(data, device, properties)
        return Compilation(network, model, bound, native)

    def executable(
        self,
        network: Network,
        config: Configuration,
        executor: StreamsExecutor,
        share: int,
        compiles: Compiles,
        compile_with: Callable[[Network], Compilation],
        compilation: Compilation | None,
        unclaimed: Sequence[UnsupportedLayer],
    ) -> OpenVinoNetwork:
        """Makes the executable network. The arguments are those of `OpenVinoNetwork`."""
        return OpenVinoNetwork(
            network, config, executor, share, compiles, compile_with, compilation, unclaimed
        )

    def _trials_of(self, device: str) -> Trials:
        def ask(data: bytes) -> str | None:
            try:
                self.runtime.try_layer(data, device)
            except HeadraceError as error:
                return why_not(error)
            return None

        return Trials(ask)


def _depends_on_sizes(error: HeadraceError) -> bool:
    """Whether the layers are only refused for tensors that have elements with other sizes."""
    reasons = {each.reason for each in error.layers} if isinstance(error, UnsupportedLayers) else ()
    return reasons == {EMPTY}
