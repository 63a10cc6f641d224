"""Computes small values that depend only on constants and shapes. They never reach the device.

A corrected version of onnx's reference computes them exactly, so that `Reshape` and similar
operators know their target shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import onnx
import onnx_ir as ir

from headrace.plugins.opencl.backend import operators
from headrace.plugins.opencl.backend.values import Value
from headrace.runtime.network.reference.evaluator import CorrectedEvaluator

HOST_ELEMENTS: Final = 4096
"""Most elements of a value on the host. Larger values are always computed on the device."""

_ASK_NO_VALUES: Final = frozenset({"Shape", "Size"})


class HostLayers:
    """Computes nodes of one model on the host. For one thread."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = dict(opsets)
        self._references: dict[ir.Node, CorrectedEvaluator] = {}

    def __call__(self, node: ir.Node, values: Sequence[Value]) -> list[Value]:
        """The node's outputs. Raises whatever onnx's reference raises."""
        reference = self._references.get(node)
        if reference is None:
            reference = self._references[node] = self._reference(node)
        feeds = {
            value.name or "": given
            for value, given in zip(node.inputs, values, strict=True)
            if value is not None
        }
        with np.errstate(all="ignore"):
            outputs = reference.run(None, feeds)
        named = dict(zip(reference.output_names, outputs, strict=True))
        return [np.asarray(named[output.name]) if output.name else None for output in node.outputs]

    def _reference(self, node: ir.Node) -> CorrectedEvaluator:
        proto = ir.to_proto(node)
        inputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(proto.input) if name]
        outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
        graph = onnx.helper.make_graph([proto], "layer", inputs, outputs)
        return CorrectedEvaluator(graph, opsets=self._opsets)


def are_known(values: Sequence[Value]) -> bool:
    """Whether all inputs of a node are on the host or absent, and have few elements in total."""
    sizes = [value.size for value in values if isinstance(value, np.ndarray)]
    absent = sum(value is None for value in values)
    return len(sizes) + absent == len(values) and sum(sizes) <= HOST_ELEMENTS


def known_inputs(model: ir.Model) -> set[str]:
    """Names of the graph's inputs whose values the host must know before a run, because shapes,
    axes, conditions and the like are computed from them."""
    needed: set[ir.Value] = set()
    for node in reversed(list(_bodies_first(model.graph))):
        wanted = [node.inputs[at] for at in operators.host_inputs(node) if at < len(node.inputs)]
        decides = any(output in needed for output in node.outputs)
        if decides and node.op_type not in _ASK_NO_VALUES:
            wanted = [*node.inputs, *(output for body in _bodies(node) for output in body.outputs)]
        needed |= {value for value in wanted if value is not None}
    return {value.name or "" for value in model.graph.inputs if value in needed}


def _bodies_first(graph: ir.Graph) -> Iterator[ir.Node]:
    for node in graph:
        for body in _bodies(node):
            yield from _bodies_first(body)
        yield node


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
