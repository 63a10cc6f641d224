"""Layers that tinygrad computes differently from ONNX, though it has a function for the operator.

The faults were found by running onnx's backend test cases against tinygrad 0.14. Such a layer is
refused, and HETERO has another device compute it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import onnx_ir as ir

_TRAINING: Final = "ai.onnx.preview.training"
_LAST_AXIS_ALONE: Final = 13  # before, a Softmax is over all axes from `axis` on
_LEAST_RESIZED: Final = 3
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


def reason(node: ir.Node, opset: int) -> str | None:
    """The reason why the device does not run the node. None if there is no reason."""
    if node.domain == _TRAINING:
        return "tinygrad assigns to the inputs of operators that train"
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _OTHERWISE:
        return f"tinygrad computes some {node.op_type} in another way than ONNX"
    rule = _RULES.get(node.op_type)
    return rule(node, opset) if rule is not None else None


def _resize(node: ir.Node, _: int) -> str | None:
    """Found by test_resize_tf_crop_and_resize*, *_antialias, *_scales_*_align_corners and *_axes_*.
    tinygrad resizes all axes but the first two, whatever the layer's axes are."""
    attributes, rank = node.attributes, _rank(node)
    if "axes" in attributes or (rank is not None and rank < _LEAST_RESIZED):
        return "Resize of other axes than all behind the first two"
    mode = attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize":
        return f"Resize with {mode}"
    if attributes.get_int("antialias", 0):
        return "Resize with antialias"
    by_scales = len(node.inputs) < 4 or node.inputs[3] is None
    if mode == "align_corners" and by_scales:
        return "Resize by scales with align_corners"
    return None


def _batch_normalization(node: ir.Node, _: int) -> str | None:
    if node.attributes.get_int("training_mode", 0):
        return "BatchNormalization that trains"
    return None if node.attributes.get_int("spatial", 1) else "BatchNormalization of each pixel"


def _max_pool(node: ir.Node, _: int) -> str | None:
    """ONNX counts indices in the whole tensor, tinygrad in each channel."""
    wanted = len(node.outputs) > 1 and bool(node.outputs[1].name)
    return "MaxPool with indices" if wanted else None


def _dropout(node: ir.Node, _: int) -> str | None:
    return "Dropout that trains" if len(node.inputs) > 2 and node.inputs[2] is not None else None


def _gather_nd(node: ir.Node, _: int) -> str | None:
    """A kernel would read past the end of the data: see `index_bounds`."""
    indices = node.inputs[1]
    given = indices is not None and indices.is_graph_input()
    return "coordinates that a request gives are not checked" if given else None


def _softmax(node: ir.Node, opset: int) -> str | None:
    rank, axis = _rank(node), node.attributes.get_int("axis", 1)
    if opset >= _LAST_AXIS_ALONE or (rank is not None and axis in (-1, rank - 1)):
        return None
    return f"{node.op_type} of set {opset} over another axis than the last one"


def _rank(node: ir.Node) -> int | None:
    data = node.inputs[0]
    return None if data is None or data.shape is None else data.shape.rank()


_RULES: Final[dict[str, Callable[[ir.Node, int], str | None]]] = {
    **dict.fromkeys(["LogSoftmax", "Softmax"], _softmax),
    "BatchNormalization": _batch_normalization,
    "Dropout": _dropout,
    "GatherND": _gather_nd,
    "MaxPool": _max_pool,
    "Resize": _resize,
}
