"""Inserts this plugin's own layers into the graph before another layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from headrace.runtime.intake.naming import Names
from headrace.runtime.network.constants import const_tensor

AXES_AS_INPUTS = {"ReduceMean": 18, "ReduceSum": 13, "Unsqueeze": 13}
"""The first operator set in which each operator takes its axes as an input."""


def opset_of(model: ir.Model) -> int:
    """The version of ONNX's own operator set that the model imports, under either of its names."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))


def constant(value: ir.Value) -> ir.TensorProtocol | None:
    """The value's tensor if no run can change it, or None."""
    return None if value.is_graph_input() else const_tensor(value)


class LayerInserter:
    """Puts layers before `node`, in its graph.

    Args:
        names: the names of the network's values, so that new names are unique.
        suffix: follows the node's name in the names of the new layers.
        opset: the version of ONNX's operator set that the network uses.
    """

    def __init__(self, node: ir.Node, names: Names, suffix: str, opset: int) -> None:
        self.node = node
        self.names = names
        self.suffix = suffix
        self.opset = opset

    def constant(self, numbers: npt.ArrayLike) -> ir.Value:
        # `ir.tensor`, and an attribute of a type that is not told, ask many protocols.
        tensor = ir.Tensor(np.asarray(numbers))
        given = ir.AttrTensor("value", tensor)
        return self.layer("Constant", value=given, type=ir.TensorType(tensor.dtype))

    def layer(
        self,
        op_type: str,
        *inputs: ir.Value,
        type: ir.TypeProtocol | None = None,
        shape: ir.Shape | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """Adds a layer and returns its output. Its type is that of the first input, if none is
        given."""
        name = self.names.fresh(f"{self.node.name}{self.suffix}")
        if op_type == "Shape":
            type = ir.TensorType(ir.DataType.INT64)
        output = ir.Value(name=name, type=type or inputs[0].type, shape=shape)
        self.place(ir.node(op_type, inputs, attributes, outputs=[output], name=name))
        return output

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        kind = ir.TensorType(dtype)
        return self.layer("Cast", value, type=kind, shape=value.shape, to=dtype.value)

    def over(self, op_type: str, value: ir.Value, axes: list[int], **attributes: Any) -> ir.Value:
        """Adds a layer that takes axes, as an input or an attribute, as the operator set asks."""
        if self.opset >= AXES_AS_INPUTS[op_type]:
            return self.layer(op_type, value, self.constant(axes), **attributes)
        return self.layer(op_type, value, axes=axes, **attributes)

    def place(self, node: ir.Node) -> None:
        assert self.node.graph is not None
        self.node.graph.insert_before(self.node, node)
