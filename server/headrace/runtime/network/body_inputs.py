"""What a body of a layer gets as its inputs, where the layer's own inputs tell."""

from __future__ import annotations

import onnx_ir as ir


def input_type(node: ir.Node, at: int, outer: ir.Value | None) -> ir.TypeProtocol | None:
    """The type of a body's input, if an input of the layer determines it."""
    if node.op_type == "Loop" and at < 2:
        return ir.TensorType((ir.DataType.INT64, ir.DataType.BOOL)[at])
    if outer is None or node.op_type not in ("Loop", "Scan", "SequenceMap"):
        return None
    if node.op_type == "SequenceMap" and isinstance(outer.type, ir.SequenceType):
        return outer.type.elem_type
    return outer.type


def slice_shape(node: ir.Node, at: int, shape: ir.Shape) -> ir.Shape | None:
    """The shape of a body's input, if it is a slice of an input of the layer."""
    count = node.attributes.get("num_scan_inputs")
    if node.op_type != "Scan" or count is None:
        return None
    at -= len(node.inputs) - count.as_int()
    axes = node.attributes.get("scan_input_axes")
    given = axes.as_ints() if axes is not None else [0] * count.as_int()
    if not 0 <= at < len(given) or not -shape.rank() <= given[at] < shape.rank():
        return None
    sizes = list(shape)
    del sizes[given[at]]
    return ir.Shape(sizes)
