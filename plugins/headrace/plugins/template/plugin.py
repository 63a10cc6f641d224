"""The device: what it is called, what it can do, and which layers it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from headrace.plugins.template.config import SCHEMA, THROUGHPUT_STREAMS
from headrace.sdk import (
    CancelToken,
    CompiledPlugin,
    Configuration,
    ExecutableNetwork,
    Metric,
    Network,
    Support,
    Transformation,
)


class TemplatePlugin(CompiledPlugin):
    schema = SCHEMA
    full_name = "Template Device Full Name"
    architecture = "TEMPLATE"
    backend_version = f"onnx {onnx.__version__}"
    capabilities = ("FP32", "HARDWARE_CONVOLUTION")  # no other device knows the second one

    def _device_ids(self) -> list[str]:
        return ["0"]

    def _default_streams(self) -> int:
        return self.config[THROUGHPUT_STREAMS]

    def _metrics(self) -> Mapping[str, Metric]:
        return {"ONNX_OPSET": lambda _: onnx.defs.onnx_opset_version()}

    def _transformations(self, config: Configuration) -> Sequence[Transformation]:
        from headrace.plugins.template.transformations import TRANSFORMATIONS

        return TRANSFORMATIONS

    def _support(self, network: Network, config: Configuration) -> Support:
        from headrace.plugins.template.executable_network import Evaluator

        functions = [ir.to_proto(function) for function in network.model.functions.values()]

        def reason_against(node: ir.Node) -> str | None:
            outputs = [ir.to_proto(value) for value in node.outputs if value.name]
            graph = onnx.GraphProto(name="layer", output=outputs)
            ir.serde.serialize_node_into(graph.node.add(), node)  # a copy would take long
            try:
                Evaluator(graph, opsets=network.model.opset_imports, functions=functions)
            except Exception as error:  # noqa: BLE001 - each operator refuses in its own way
                return str(error).partition("\n")[0]
            return None

        return reason_against

    def _compile(
        self, network: Network, config: Configuration, _: CancelToken
    ) -> ExecutableNetwork:
        from headrace.plugins.template.executable_network import TemplateNetwork

        return TemplateNetwork(network, config, self)
