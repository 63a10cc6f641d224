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
    given, axes = map(node.attributes.get, ("num_scan_inputs", "scan_input_axes"))
    if node.op_type != "Scan" or given is None or given.is_ref():
        return None
    count = given.as_int()
    at -= len(node.inputs) - count
    if not 0 <= at < count or (axes is not None and (axes.is_ref() or at >= len(axes.value))):
        return None
    axis = axes.as_ints()[at] if axes is not None else 0
    if not -shape.rank() <= axis < shape.rank():
        return None
    sizes = list(shape)
    del sizes[axis]
    return ir.Shape(sizes)
