"""ResNet-50 with random weights: 25.6 million of them, 8.2 GFLOP for an image of 224 x 224.

K. He et al., "Deep Residual Learning for Image Recognition", 2015, with the stride in the 3 x 3
convolutions as everybody has it since.
"""

from __future__ import annotations

import onnx

from tools.benchmark.convolutions import Builder

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, width, first stride


def block(build: Builder, name: str, x: str, channels: tuple[int, int], stride: int) -> str:
    given, width = channels
    y = build.conv(f"{name}.conv1", x, (given, width), 1, 1)
    y = build.layer("Relu", f"{name}.relu1", y)
    y = build.conv(f"{name}.conv2", y, (width, width), 3, stride)
    y = build.layer("Relu", f"{name}.relu2", y)
    y = build.conv(f"{name}.conv3", y, (width, 4 * width), 1, 1)
    if given != 4 * width or stride > 1:
        x = build.conv(f"{name}.shortcut", x, (given, 4 * width), 1, stride)
    # Halved, so that the sums of 16 blocks with random weights stay finite.
    y = build.layer("Mul", f"{name}.halve", build.layer("Add", f"{name}.add", y, x), "half")
    return build.layer("Relu", f"{name}.relu3", y)


def resnet50(batch: int = 1, *, dtype: str = "float32") -> onnx.ModelProto:
    """dtype[batch, 3, 224, 224] "x" → float32[batch, 1000] "y"; blocks are called ``block0.``
    on."""
    build = Builder()
    build.constant("half", 0.5)
    y = build.layer("Relu", "stem.relu", build.conv("stem", "x", (3, 64), 7, 2))
    pool = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}
    y = build.layer("MaxPool", "stem.pool", y, **pool)
    given, number = 64, 0
    for blocks, width, first in STAGES:
        for index in range(blocks):
            name, stride = f"block{number}", first if not index else 1
            y = block(build, name, y, (given, width), stride)
            given, number = 4 * width, number + 1
    return build.classifier("resnet50", y, given, batch, dtype=dtype)
