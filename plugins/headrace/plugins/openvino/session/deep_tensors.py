"""Tensors that have more axes than kernels of OpenVINO's plugin for processors count with."""

from __future__ import annotations

from typing import Final

from headrace.plugins.openvino.graph.empty_tensors import bodies
from headrace.plugins.openvino.library import openvino
from headrace.runtime.errors import InvalidModel

_MOST_AXES: Final = 6
_MOVING: Final = frozenset(
    {
        *("Constant", "Parameter", "Result", "ShapeOf", "If", "Loop", "TensorIterator"),
        *("Broadcast", "Concat", "Gather", "GatherElements", "GatherND", "Pad", "Reshape"),
        *("ScatterElementsUpdate", "ScatterNDUpdate", "ScatterUpdate", "Slice", "Split"),
        *("Squeeze", "StridedSlice", "Tile", "Transpose", "Unsqueeze", "VariadicSplit"),
        *("Convert", "CumSum", "TopK"),
        *("ReduceL1", "ReduceL2", "ReduceLogicalAnd", "ReduceLogicalOr", "ReduceMax"),
        *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
    }
)
"""Operations with kernels that count all axes."""


def refuse_deep(model: openvino.Model) -> None:
    """Checks all operations of the model and its bodies. Where sizes are not known, the plugin
    keeps the kernel of an operation for all shapes. It also runs a kernel that it has made for at
    most six axes with more, and the kernel then computes a part of the result. The rest is what was
    in memory. No case shows it.

    Raises:
        InvalidModel: an operation has a tensor of more axes and of unknown size.
    """
    for operation in model.get_ops():
        for body in bodies(operation):
            refuse_deep(body)
        kind = operation.get_type_name()
        if kind not in _MOVING and any(map(_is_deep, [*operation.inputs(), *operation.outputs()])):
            raise InvalidModel(
                f"{kind} has a tensor of more than {_MOST_AXES} axes whose sizes are not known",
                field="model",
            )


def _is_deep(port: openvino.Input | openvino.Output) -> bool:
    shape = port.get_partial_shape()
    return bool(shape.is_dynamic and shape.rank.is_static and shape.rank.get_length() > _MOST_AXES)
