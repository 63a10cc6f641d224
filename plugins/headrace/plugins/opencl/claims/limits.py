"""Operators that tinygrad has, but computes differently from ONNX or not at all.

The faults were found by running onnx's backend test cases against tinygrad 0.14. Such a layer is
refused, and HETERO has another device compute it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import onnx_ir as ir

_TRAINING: Final = "ai.onnx.preview.training"
_OTHERWISE: Final = frozenset(
    (
        "ArgMin",  # the smallest integer
        "Attention",  # masks
        "LpNormalization",  # norms of zeros
        "CenterCropPad",  # odd sizes
        "Upsample",  # corners of pixels
        "ConvInteger",  # zero points of axes
        "MatMulInteger",  # zero points of axes
        "QLinearConv",  # zero points of axes
        "QLinearMatMul",  # zero points of axes
        "DynamicQuantizeLinear",  # quotients are rounded otherwise
        "Mod",  # signs
        "Hardmax",
        "MaxUnpool",  # indices count in the whole tensor
        "NonZero",  # of a single number
        "ScatterND",  # they assign to their input
        "TensorScatter",  # they assign to their input
    )
)


def reason(node: ir.Node) -> str | None:
    """The reason why the device does not run the node. None if there is no reason."""
    if node.domain == _TRAINING:
        return "tinygrad assigns to the inputs of operators that train"
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _OTHERWISE:
        return f"tinygrad computes some {node.op_type} in another way than ONNX"
    rule = _RULES.get(node.op_type)
    return rule(node) if rule is not None else None


def _resize(node: ir.Node) -> str | None:
    """Found by test_resize_tf_crop_and_resize*, *_antialias and *_scales_*_align_corners."""
    attributes = node.attributes
    mode = attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize":
        return f"Resize with {mode}"
    if attributes.get_int("antialias", 0):
        return "Resize with antialias"
    by_scales = len(node.inputs) < 4 or node.inputs[3] is None
    if mode == "align_corners" and by_scales:
        return "Resize by scales with align_corners"
    return None


def _batch_normalization(node: ir.Node) -> str | None:
    if node.attributes.get_int("training_mode", 0):
        return "BatchNormalization that trains"
    return None if node.attributes.get_int("spatial", 1) else "BatchNormalization of each pixel"


def _max_pool(node: ir.Node) -> str | None:
    """ONNX counts indices in the whole tensor, tinygrad in each channel."""
    wanted = len(node.outputs) > 1 and bool(node.outputs[1].name)
    return "MaxPool with indices" if wanted else None


_RULES: Final[dict[str, Callable[[ir.Node], str | None]]] = {
    "BatchNormalization": _batch_normalization,
    "MaxPool": _max_pool,
    "Resize": _resize,
}
