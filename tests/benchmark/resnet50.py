"""ResNet-50 with random weights: 25.6 million of them, 8.2 GFLOP for an image of 224 x 224.

K. He et al., "Deep Residual Learning for Image Recognition", 2015, with the stride in the 3 x 3
convolutions as everybody has it since.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, width, first stride


class _Builder:
    """Nodes and weights; each method appends a layer and returns its output's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def weight(self, name: str, *shape: int, scale: float) -> str:
        values = self._random.standard_normal(shape, np.float32) * np.float32(scale)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def layer(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def conv(self, name: str, x: str, channels: tuple[int, int], kernel: int, stride: int) -> str:
        given, made = channels
        scale = (2 / (given * kernel * kernel)) ** 0.5
        weight = self.weight(f"{name}.weight", made, given, kernel, kernel, scale=scale)
        bias = self.weight(f"{name}.bias", made, scale=0.1)
        shape = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "strides": [stride] * 2}
        return self.layer("Conv", name, x, weight, bias, **shape)

    def block(self, name: str, x: str, channels: tuple[int, int], stride: int) -> str:
        given, width = channels
        y = self.conv(f"{name}.conv1", x, (given, width), 1, 1)
        y = self.layer("Relu", f"{name}.relu1", y)
        y = self.conv(f"{name}.conv2", y, (width, width), 3, stride)
        y = self.layer("Relu", f"{name}.relu2", y)
        y = self.conv(f"{name}.conv3", y, (width, 4 * width), 1, 1)
        if given != 4 * width or stride > 1:
            x = self.conv(f"{name}.shortcut", x, (given, 4 * width), 1, stride)
        # Halved, so that the sums of 16 blocks with random weights stay finite.
        y = self.layer("Mul", f"{name}.halve", self.layer("Add", f"{name}.add", y, x), "half")
        return self.layer("Relu", f"{name}.relu3", y)


def resnet50(batch: int = 1) -> onnx.ModelProto:
    """float32[batch, 3, 224, 224] "x" → float32[batch, 1000] "y"; blocks are called ``block0.``
    on."""
    build = _Builder()
    build.weights.append(numpy_helper.from_array(np.array(0.5, np.float32), "half"))
    y = build.layer("Relu", "stem.relu", build.conv("stem", "x", (3, 64), 7, 2))
    pool = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}
    y = build.layer("MaxPool", "stem.pool", y, **pool)
    given, number = 64, 0
    for blocks, width, first in STAGES:
        for index in range(blocks):
            y = build.block(f"block{number}", y, (given, width), first if not index else 1)
            given, number = 4 * width, number + 1
    y = build.layer("Flatten", "flatten", build.layer("GlobalAveragePool", "pool", y))
    weight = build.weight("dense.weight", given, 1000, scale=0.02)
    build.layer("Gemm", "y", y, weight)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 224, 224])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 1000])]
    graph = helper.make_graph(build.nodes, "resnet50", inputs, outputs, build.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
