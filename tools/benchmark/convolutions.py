"""Convolutional networks with random weights, built layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

IMAGE = (3, 224, 224)
CLASSES = 1000


class Builder:
    """Nodes and weights; each method appends a layer and returns its output's name."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def constant(self, name: str, value: float) -> str:
        self._weights.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def weight(self, name: str, *shape: int, scale: float) -> str:
        values = self._random.standard_normal(shape, np.float32) * np.float32(scale)
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def layer(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def conv(
        self,
        name: str,
        x: str,
        channels: tuple[int, int],
        kernel: int,
        stride: int,
        *,
        depthwise: bool = False,
    ) -> str:
        """A convolution from and to so many channels; a depthwise one has a kernel for each."""
        given, made = channels
        inputs = 1 if depthwise else given
        scale = (2 / (inputs * kernel * kernel)) ** 0.5
        weight = self.weight(f"{name}.weight", made, inputs, kernel, kernel, scale=scale)
        bias = self.weight(f"{name}.bias", made, scale=0.1)
        shape = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "strides": [stride] * 2}
        group = {"group": given} if depthwise else {}
        return self.layer("Conv", name, x, weight, bias, **shape, **group)

    def classifier(
        self, name: str, y: str, channels: int, batch: int, *, dtype: str = "float32"
    ) -> onnx.ModelProto:
        """The network from "x" to the classes of `y`, with the last layers appended.

        Args:
            dtype: of "x". uint8 is scaled to values from 0 to 1 before the first layer.
        """
        y = self.layer("Flatten", "flatten", self.layer("GlobalAveragePool", "pool", y))
        weight = self.weight("dense.weight", channels, CLASSES, scale=0.02)
        self.layer("Gemm", "y", y, weight)
        if dtype == "uint8":
            self._scale_first()
        kind = TensorProto.UINT8 if dtype == "uint8" else TensorProto.FLOAT
        inputs = [helper.make_tensor_value_info("x", kind, [batch, *IMAGE])]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, CLASSES])]
        graph = helper.make_graph(self._nodes, name, inputs, outputs, self._weights)
        opset = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8)

    def _scale_first(self) -> None:
        for node in self._nodes:
            node.input[:] = ["scaled" if name == "x" else name for name in node.input]
        cast = helper.make_node("Cast", ["x"], ["cast"], "cast", to=TensorProto.FLOAT)
        divisor = self.constant("divisor", 255.0)
        self._nodes[:0] = [cast, helper.make_node("Div", ["cast", divisor], ["scaled"], "scaled")]
