"""What the device in the server and the one that compiles for it have in common."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from headrace.plugins.openvino.config import SCHEMA
from headrace.plugins.openvino.transformations import TRANSFORMATIONS
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.compiled_plugin import CompiledPlugin
from headrace.runtime.intake.naming import name_layers
from headrace.runtime.intake.provenance import Transformation, tracked
from headrace.runtime.network.network import Network
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.transform.functions import inline_functions
from headrace.runtime.transform.options import NetworkOptions


class OpenVinoDevice(CompiledPlugin):
    """The configuration of both, and how both transform a network."""

    schema = SCHEMA
    compile_checks_support = True
    imports_native = True

    def transform_network(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> Network:
        """Transforms the network as every device does. Then inlines local functions, because
        OpenVINO has none. Inputs that have a default become constants, because no request gives
        them."""
        transformed = super().transform_network(network, config, options)
        model = transformed.model
        if model.functions:
            tracked(model, inline_functions)
            infer_types(model)
            name_layers(model.graph)
            transformed = Network(model, notes=transformed.notes)
        inputs = model.graph.inputs
        inputs[:] = [value for value in inputs if not value.is_initializer()]
        return transformed

    def _transformations(self, config: Configuration) -> Sequence[Transformation]:
        return TRANSFORMATIONS

    def _add_extension(self, functions: Sequence[ir.Function]) -> None:
        """Accepts any extension, because its functions are inlined."""
