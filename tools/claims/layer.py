"""A layer with values for its inputs: what is tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """
    Attributes:
        seed: the case or text that it was made from.
        way: how it was made from it, a word for each step.
        opset: the version of the operator's set.
        inputs: a value for each input; None for one that is absent.
        constants: the places of the inputs that are constants.
        expected: the outputs by name, if they are known without ONNX Runtime.
    """

    seed: str
    node: onnx.NodeProto = field(repr=False)
    opset: int
    inputs: tuple[Array | None, ...] = field(repr=False)
    constants: frozenset[int] = frozenset()
    way: str = ""
    expected: Mapping[str, Array] | None = field(default=None, repr=False)

    def changed(self, way: str, **changes: Any) -> Layer:
        return replace(self, way=f"{self.way} {way}".strip(), **{"expected": None, **changes})

    @property
    def operator(self) -> str:
        node = self.node
        return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)

    @property
    def feeds(self) -> dict[str, Array]:
        """The values of the inputs that are not constants, by name."""
        return {
            f"input{at}": value
            for at, value in enumerate(self.inputs)
            if value is not None and at not in self.constants
        }

    def model(self) -> onnx.ModelProto:
        """The network of this layer alone. Its inputs have the sizes of their values."""
        made = onnx.ModelProto(ir_version=10)
        graph = made.graph
        graph.name = "layer"
        node = graph.node.add()
        node.CopyFrom(self.node)
        node.name = "layer"
        names = [f"input{at}" if value is not None else "" for at, value in enumerate(self.inputs)]
        node.input[:] = names
        for at, (name, value) in enumerate(zip(names, self.inputs, strict=True)):
            if value is None:
                continue
            if at in self.constants:
                graph.initializer.append(onnx.numpy_helper.from_array(value, name))
            else:
                kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
                graph.input.append(onnx.helper.make_tensor_value_info(name, kind, value.shape))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
        made.opset_import.add(domain=node.domain, version=self.opset)
        if node.domain:
            made.opset_import.add(domain="", version=21)
        return made

    def attribute(self, name: str) -> Any:
        for each in self.node.attribute:
            if each.name == name:
                return onnx.helper.get_attribute_value(each)
        return None

    def with_attribute(self, name: str, value: Any) -> onnx.NodeProto:
        """A copy of the node with another value of an attribute; None and an empty list take it
        away."""
        node = onnx.NodeProto()
        node.CopyFrom(self.node)
        kept = [each for each in node.attribute if each.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        if value not in (None, []):
            node.attribute.append(onnx.helper.make_attribute(name, value))
        return node


def dtype_of(value: Array) -> ir.DataType:
    return ir.DataType.from_numpy(value.dtype)
