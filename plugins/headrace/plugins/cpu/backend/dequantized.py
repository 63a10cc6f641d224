"""Finds the layers that made floats of quantised numbers.

ONNX Runtime computes a layer between a DequantizeLinear and a QuantizeLinear with integers. Before,
it moves quantisation over layers that move numbers only, and drops layers that do nothing. So a
product may become one of integers although a Reshape stands in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import onnx_ir as ir

from headrace.plugins.cpu.backend.inserter import constant
from headrace.runtime.intake.naming import walk

DOMAINS: Final = ("", "ai.onnx", "com.microsoft")
_MOVING: Final = (
    "Cast",
    "Dropout",
    "Expand",
    "Flatten",
    "Identity",
    "MaxPool",
    "Reshape",
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
_MULTIPLYING: Final = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def dequantized(nodes: Iterable[ir.Node]) -> Mapping[ir.Value, ir.Node]:
    """The DequantizeLinear that values come from, its own output included.

    Args:
        nodes: those of a graph, in its order.
    """
    found: dict[ir.Value, ir.Node] = {}
    for node in nodes:
        if node.domain not in DOMAINS or not node.inputs:
            continue
        source = node.inputs[0]
        if node.op_type == "DequantizeLinear":
            found[node.outputs[0]] = node
        elif node.op_type in _MOVING and source in found:
            found[node.outputs[0]] = found[source]
    return found


def products(model: ir.Model) -> Iterator[tuple[ir.DataType | None, ir.Node]]:
    """For each product of two values that are dequantised: the quantised type of the first, and the
    DequantizeLinear of the second."""
    made = dequantized(walk(model.graph))
    for node in walk(model.graph):
        if node.op_type in _MULTIPLYING and node.domain in DOMAINS and len(node.inputs) > 1:
            first, second = (
                made.get(value) if value is not None else None for value in node.inputs[:2]
            )
            if first is not None and second is not None and first.inputs[0] is not None:
                yield first.inputs[0].dtype, second


def same_steps(one: ir.Node, other: ir.Node) -> bool:
    """Whether two layers are known to quantise, or dequantise, with one scale and zero point."""
    for at in (1, 2):
        first, second = (
            node.inputs[at] if at < len(node.inputs) else None for node in (one, other)
        )
        if first is second:
            continue
        known = [constant(value) if value is not None else None for value in (first, second)]
        if known[0] is None or known[1] is None:
            return False
        left, right = (tensor.numpy() for tensor in known if tensor is not None)
        if left.dtype != right.dtype or left.shape != right.shape or (left != right).any():
            return False
    return True
