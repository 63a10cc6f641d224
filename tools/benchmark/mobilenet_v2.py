"""MobileNetV2 with random weights: 3.5 million of them, 0.6 GFLOP for an image of 224 x 224.

M. Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018.
"""

from __future__ import annotations

import onnx

from tools.benchmark.convolutions import Builder

# expansion, channels, blocks, first stride
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM, LAST = 32, 1280


def relu6(build: Builder, name: str, x: str) -> str:
    return build.layer("Clip", name, x, "zero", "six")


def block(
    build: Builder, name: str, x: str, channels: tuple[int, int], expansion: int, stride: int
) -> str:
    given, made = channels
    wide, y = given * expansion, x
    if expansion > 1:
        y = build.conv(f"{name}.expand", y, (given, wide), 1, 1)
        y = relu6(build, f"{name}.relu1", y)
    y = build.conv(f"{name}.depthwise", y, (wide, wide), 3, stride, depthwise=True)
    y = relu6(build, f"{name}.relu2", y)
    y = build.conv(f"{name}.project", y, (wide, made), 1, 1)
    return build.layer("Add", f"{name}.add", x, y) if given == made and stride == 1 else y


def mobilenet_v2(batch: int = 1, *, dtype: str = "float32") -> onnx.ModelProto:
    """dtype[batch, 3, 224, 224] "x" → float32[batch, 1000] "y"."""
    build = Builder()
    build.constant("zero", 0.0)
    build.constant("six", 6.0)
    y = relu6(build, "stem.relu", build.conv("stem", "x", (3, STEM), 3, 2))
    given, number = STEM, 0
    for expansion, channels, blocks, first in STAGES:
        for index in range(blocks):
            stride = first if not index else 1
            y = block(build, f"block{number}", y, (given, channels), expansion, stride)
            given, number = channels, number + 1
    y = relu6(build, "last.relu", build.conv("last", y, (given, LAST), 1, 1))
    return build.classifier("mobilenet_v2", y, LAST, batch, dtype=dtype)
