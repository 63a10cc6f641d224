"""The device's graph transformations."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx_ir as ir

from headrace.runtime.intake.naming import value_names, walk
from headrace.runtime.intake.provenance import Transformation
from headrace.runtime.network.constants import const_tensor

_LEAST_NORMAL: Final = 2.0**-126
_MAX_REPEATS: Final = 8
_BOUNDS_ARE_INPUTS: Final = 11
_AXES_ARE_INPUTS: Final = MappingProxyType({"ReduceL2": 18, "ReduceSum": 13})


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


def divide_by_norms(model: ir.Model) -> bool:
    """Computes an LpNormalization of float32 by a norm and a division. OpenVINO adds 1e-7 below the
    root or to the sum, so that short vectors get shorter still: by 3 % from a length of 1e-3."""
    version = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))
    found = [node for node in walk(model.graph) if _is_normalization(node)]
    if version < _MAX_REPEATS or not found:
        return False
    names = value_names(model)
    for node in found:
        data = node.inputs[0]
        assert data is not None

        def layer(op_type: str, *inputs: ir.Value, node: ir.Node = node, **given: Any) -> ir.Value:
            name = names.fresh(f"{node.name}/norm")
            output = ir.Value(name=name)
            new = ir.node(op_type, inputs, given, outputs=[output], name=name)
            assert node.graph is not None
            node.graph.insert_before(node, new)
            return output

        axes = [node.attributes.get_int("axis", -1)]
        reduced = "ReduceSum" if node.attributes.get_int("p", 2) == 1 else "ReduceL2"
        terms = layer("Abs", data) if reduced == "ReduceSum" else data
        if version >= _AXES_ARE_INPUTS[reduced]:
            norm = layer(reduced, terms, layer("Constant", value=ir.tensor(axes)))
        else:
            norm = layer(reduced, terms, axes=axes)
        least = layer("Constant", value=ir.tensor(np.array(_LEAST_NORMAL, np.float32)))
        node.op_type = "Div"
        node.resize_inputs(2)
        node.replace_input_with(1, layer("Max", norm, least))
        node.attributes.clear()
    return True


def _is_normalization(node: ir.Node) -> bool:
    if node.op_type != "LpNormalization" or node.domain not in ("", "ai.onnx"):
        return False
    data = node.inputs[0]
    known = node.attributes.get_int("p", 2) in (1, 2)  # `claims` has no others
    return known and data is not None and data.dtype == ir.DataType.FLOAT


TRANSFORMATIONS: Final = (
    _changing(still_dropout),
    bound_clips,
    divide_by_norms,
)
