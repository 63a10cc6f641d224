"""The device's graph transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx_ir as ir

from headrace.runtime.intake.naming import value_names, walk
from headrace.runtime.intake.provenance import Transformation
from headrace.runtime.network.constants import const_tensor

_BOUNDS_ARE_INPUTS: Final = 11


def _changing(change: Callable[[ir.Node], bool]) -> Transformation:
    def transform(model: ir.Model) -> bool:
        changed = [change(node) for node in list(walk(model.graph))]
        return any(changed)

    return transform


def still_dropout(node: ir.Node) -> bool:
    """Changes a Dropout that drops nothing to an Identity. If its mask is used, removes its other
    inputs instead. OpenVINO's model of a Dropout loses names, and then its values cannot be told
    apart."""
    if node.op_type != "Dropout" or node.domain not in ("", "ai.onnx"):
        return False
    if len(node.inputs) > 2 and node.inputs[2] is not None and not _is_false(node.inputs[2]):
        return False
    changed = len(node.inputs) > 1
    node.resize_inputs(1)
    masks = node.outputs[1:]
    if any(mask.uses() or mask.is_graph_output() for mask in masks):
        return changed
    node.resize_outputs(1)
    node.op_type = "Identity"
    node.attributes.clear()
    return True


def _is_false(value: ir.Value) -> bool:
    tensor = const_tensor(value)
    return tensor is not None and not tensor.numpy().any()


def bound_clips(model: ir.Model) -> bool:
    """Gives a Clip the ends of its type for the bounds that it lacks. OpenVINO looks for them too,
    but also if it has not read the layer before and so does not know the type. Then it ends the
    process."""
    version = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))
    found = [node for node in walk(model.graph) if _lacks_bounds(node)]
    if version < _BOUNDS_ARE_INPUTS or not found:
        return False
    names = value_names(model)
    for node in found:
        data = node.inputs[0]
        assert data is not None
        assert data.dtype is not None
        assert node.graph is not None
        dtype = data.dtype.numpy()
        info: Any = ml_dtypes.finfo if data.dtype.is_floating_point() else ml_dtypes.iinfo
        ends = info(dtype)
        node.resize_inputs(3)
        for at, end in ((1, ends.min), (2, ends.max)):
            if node.inputs[at] is None:
                name = names.fresh(f"{node.name}/bound")
                bound = ir.Value(name=name, type=data.type, shape=ir.Shape([]))
                value = ir.tensor(np.array(end, dtype), name=name)
                constant = ir.node("Constant", [], {"value": value}, outputs=[bound], name=name)
                node.graph.insert_before(node, constant)
                node.replace_input_with(at, bound)
    return True


def _lacks_bounds(node: ir.Node) -> bool:
    if node.op_type != "Clip" or node.domain not in ("", "ai.onnx") or not node.inputs:
        return False
    data, *bounds = node.inputs
    known = data is not None and data.dtype is not None
    return known and (len(bounds) < 2 or None in bounds)


TRANSFORMATIONS: Final = (
    _changing(still_dropout),
    bound_clips,
)
