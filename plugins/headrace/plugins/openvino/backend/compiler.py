"""Compiles networks for OpenVINO's devices. An import of this module imports OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plugins.openvino.backend.compilation import Compilation, read_stamp
from headrace.plugins.openvino.backend.core import Runtime
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network

Properties = Mapping[str, object]


class Compiler:
    """Compiles networks. Thread-safe.

    Args:
        runtime: OpenVINO, with at least one device.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

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
        return Compilation(network, model, converted.bound)

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
