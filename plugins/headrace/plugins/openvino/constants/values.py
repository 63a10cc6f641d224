"""Facts about the values that a layer reads, as far as they are known before a run."""

from __future__ import annotations

import onnx_ir as ir

from headrace.runtime.network.constants import const_tensor


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """An input of the node; None if it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def sizes_of(value: ir.Value | None) -> list[int | None] | None:
    """The sizes of the value's dimensions, as far as they are known."""
    if value is None or value.shape is None:
        return None
    return [size if isinstance(size, int) else None for size in value.shape]


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The value's tensor, if the value is a constant that no caller can change."""
    if value is None or value.is_graph_input():
        return None
    return const_tensor(value)
