"""Compiles networks for OpenVINO's devices. An import of this module imports OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from headrace.plugins.openvino.backend.compilation import Compilation, read_stamp
from headrace.plugins.openvino.backend.core import Runtime
from headrace.plugins.openvino.backend.sizes import inferred_anew, likely_shapes, sizing_inputs
from headrace.plugins.openvino.claims.unclaimed import UNKNOWN_AXES, unclaimed
from headrace.plugins.openvino.executable_network import OpenVinoNetwork
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network

Properties = Mapping[str, object]


class Compiler:
    """Compiles networks, and tells which layers a device claims. Thread-safe.

    Args:
        runtime: OpenVINO, with at least one device.
    """

    executable = OpenVinoNetwork

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def unclaimed(self, network: Network, device: str) -> dict[ir.Node, str]:
        """The layers of a transformed network that the device does not run, each with the reason.
        Compiles nothing.

        A number of axes may follow from sizes, as behind a Squeeze without axes. Then likely sizes
        tell it.
        """
        given = sizing_inputs(network)
        capabilities = self.runtime.capabilities(device)

        def judged(model: ir.Model) -> dict[ir.Node, str]:
            return unclaimed(model, device, given, capabilities)

        found = judged(network.model)
        if not any(UNKNOWN_AXES in why for why in found.values()):
            return found
        for likely in likely_shapes(network):
            sized = inferred_anew(network, likely).model
            twins = dict(zip(sized.graph, network.model.graph, strict=True))
            again = {twins[node]: why for node, why in judged(sized).items()}
            if len(again) < len(found):
                found = again
        return found

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
