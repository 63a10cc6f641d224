"""Tensors without elements, of which OpenVINO gets some wrong.

No case of onnx shows it: the networks of ``tests/unit/test_openvino_empty_tensors.py`` do.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from headrace.plugins.openvino.values import constant, input_of, sizes_of
from headrace.runtime.naming import bodies

_CONSTANT: Final = "the backend takes a constant without elements for a scalar"
_RECURRENT: Final = ("GRU", "LSTM", "RNN")


def reason(node: ir.Node) -> str | None:
    """Why the node would be wrong for a tensor without elements; None if it would not."""
    if any(map(_is_empty, _constants(node))):
        return _CONSTANT
    given = sizes_of(input_of(node, 0))
    if node.op_type == "Hardmax" and (given is None or None in given or 0 in given):
        return "of a tensor without elements the backend's output is not initialised"
    if node.op_type in _RECURRENT and given is not None and 0 in given:
        return "of a sequence without elements the backend makes one"
    if node.op_type == "Reshape" and given is not None and 0 in given:
        return _reshape(node, given)
    if node.op_type == "Expand":
        return _expand(node)
    return None


def _constants(node: ir.Node) -> list[ir.Value | None]:
    """The values that the node or what it holds takes or gives where an empty one is no sign for
    all axes, for none, or for an input that is left out."""
    given = list(node.inputs)
    if node.op_type in ("Reshape", "Resize", "Upsample") or node.op_type.startswith("Reduce"):
        given = given[:1]
    elif node.op_type in ("Concat", "ConstantOfShape"):
        given = []
    returned = [value for value in node.outputs if value.is_graph_output()]
    return [*given, *returned, *(value for _, body in bodies(node) for value in body.outputs)]


def _is_empty(value: ir.Value | None) -> bool:
    tensor = constant(value)
    return tensor is not None and tensor.size == 0


def _reshape(node: ir.Node, given: list[int | None]) -> str | None:
    """ONNX takes no such pattern, and OpenVINO's output is not initialised."""
    pattern = constant(input_of(node, 1))
    if pattern is None:  # it is held against the elements when the network runs
        return None
    zeros = node.attributes.get_int("allowzero", 0) == 1
    for at, size in enumerate(pattern.numpy().tolist()):
        if size == -1 or (size == 0 and (zeros or given[at : at + 1] == [0])):
            return None
    return "the backend makes elements of a tensor that has none"


def _expand(node: ir.Node) -> str | None:
    wanted = input_of(node, 1)
    if sizes_of(wanted) == [0]:
        return "the backend does not expand to the shape of a scalar"
    shape = constant(wanted)
    if shape is not None and 0 in shape.numpy():
        return "the backend leaves one element where the shape has none"
    return None
