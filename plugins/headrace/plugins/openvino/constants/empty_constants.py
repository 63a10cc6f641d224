"""Constants without elements, which OpenVINO's reader of ONNX reads as scalars.

No backend case of onnx shows this. The networks of ``graph/test_empty_tensors.py`` do.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from headrace.plugins.openvino.constants.values import constant, sizes_of
from headrace.runtime.intake.naming import bodies

_REASON: Final = "OpenVINO reads an empty constant as a scalar"


def reason(node: ir.Node) -> str | None:
    """Why the node would be wrong because of a constant without elements. None if it would be
    right."""
    return _REASON if any(map(_is_empty, _constants(node))) else None


def _constants(node: ir.Node) -> list[ir.Value | None]:
    """The inputs of the node, its outputs that the graph returns, and the outputs of its bodies.
    Leaves out inputs that are right when they are empty. An empty constant may mean all axes, no
    axes, or an input that is left out."""
    given = list(node.inputs)
    if node.op_type in ("Reshape", "Resize", "Upsample") or node.op_type.startswith("Reduce"):
        given = given[:1]
    elif node.op_type == "ConstantOfShape" or (node.op_type == "Concat" and _fit(node)):
        given = []
    returned = [value for value in node.outputs if value.is_graph_output()]
    return [*given, *returned, *(value for _, body in bodies(node) for value in body.outputs)]


def _fit(concat: ir.Node) -> bool:
    """Whether the tensors are known to fit each other. The backend leaves empty tensors out and
    does not check them."""
    shapes = [sizes_of(value) or [] for value in concat.inputs]
    ranks = {len(sizes) for sizes in shapes}
    if ranks == {1}:
        return True
    axis = concat.attributes.get_int("axis", 0)
    if len(ranks) > 1 or not -min(ranks) <= axis < min(ranks):
        return False
    for sizes in shapes:
        del sizes[axis]
    return None not in shapes[0] and all(sizes == shapes[0] for sizes in shapes)


def _is_empty(value: ir.Value | None) -> bool:
    tensor = constant(value)
    return tensor is not None and tensor.size == 0
