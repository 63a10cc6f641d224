"""Rules for operators that tinygrad has, but computes differently from ONNX or not at all.

The faults were found by running onnx's backend test cases against tinygrad 0.14. Each rule names
the case that shows its fault. A rule is as narrow as the fault. If a rule depends on something that
is not known before a run, the layer is refused, because its result could be wrong without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import onnx_ir as ir

_IMAGE_AXES: Final = 4
_TRAINING: Final = "ai.onnx.preview.training"


def reason(node: ir.Node) -> str | None:
    """The reason why the device does not run the node. None if there is no reason."""
    if node.domain == _TRAINING:
        return "tinygrad assigns to the inputs of operators that train"
    if node.domain not in ("", "ai.onnx"):
        return None
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


def _upsample(node: ir.Node) -> str | None:
    """tinygrad takes centres of pixels, and before Resize ONNX takes their corners."""
    mode = node.attributes.get_string("mode", "nearest")
    return f"Upsample by mode {mode}" if mode != "nearest" else None


def _batch_normalization(node: ir.Node) -> str | None:
    """tinygrad takes means over the axes of an image, whatever the rank is."""
    given = node.inputs[0]
    image = given is not None and given.shape is not None and len(given.shape) == _IMAGE_AXES
    if node.attributes.get_int("training_mode", 0) and not image:
        return "BatchNormalization that trains, of another rank than 4"
    return None if node.attributes.get_int("spatial", 1) else "BatchNormalization of each pixel"


def _mod(node: ir.Node) -> str | None:
    """Found by test_mod_float*_fmod_0*."""
    value = node.inputs[0]
    floating = value is not None and value.dtype is not None and value.dtype.is_floating_point()
    if floating and not node.attributes.get_int("fmod", 0):
        return "Mod of floating point numbers with the sign of the divisor"
    return None


def _non_zero(node: ir.Node) -> str | None:
    """tinygrad asks for a compiler of the processor where the input has no axes."""
    value = node.inputs[0]
    known = value is not None and value.shape is not None and len(value.shape) > 0
    return None if known else "NonZero of a single number, or of an input of unknown rank"


def _by_reciprocal(_: ir.Node) -> str | None:
    """Found by test_dynamicquantizelinear. tinygrad computes x / scale as x times the rounded
    reciprocal of scale. Sometimes that product is on the other side of a half, and rounds to
    another integer."""
    return "quotients are not rounded as in ONNX"


def _max_pool(node: ir.Node) -> str | None:
    """Indices with storage_order=1 are corrected for images only."""
    given, wanted = node.inputs[0], len(node.outputs) > 1 and bool(node.outputs[1].name)
    image = given is not None and given.shape is not None and len(given.shape) == _IMAGE_AXES
    by_columns = node.attributes.get_int("storage_order", 0) == 1
    if wanted and by_columns and not image:
        return "MaxPool with indices by columns of another rank than 4"
    return None


def _max_unpool(node: ir.Node) -> str | None:
    """Found by test_maxunpool_export_with_output_shape: tinygrad takes the indices for those of the
    output."""
    given = len(node.inputs) > 2 and node.inputs[2] is not None
    return "MaxUnpool into another shape than the pooled one" if given else None


def _per_axis(*positions: int) -> Callable[[ir.Node], str | None]:
    """Found by test_convinteger_with_padding: tinygrad takes scales or zero points of the channels
    for those of the columns. The test shows it for the weights of ConvInteger. The code of the
    other operators is the same."""

    def rule(node: ir.Node) -> str | None:
        for at in positions:
            value = node.inputs[at] if at < len(node.inputs) else None
            if value is not None and not _is_one(value):
                return f"{node.op_type} with scales or zero points of each channel"
        return None

    return rule


def _is_one(value: ir.Value) -> bool:
    return value.shape is not None and all(size == 1 for size in value.shape)


_RULES: Final[dict[str, Callable[[ir.Node], str | None]]] = {
    "BatchNormalization": _batch_normalization,
    "ConvInteger": _per_axis(2, 3),
    "DynamicQuantizeLinear": _by_reciprocal,
    "MatMulInteger": _per_axis(2, 3),
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
    "Mod": _mod,
    "NonZero": _non_zero,
    "QLinearConv": _per_axis(1, 2, 4, 5),
    "QLinearMatMul": _per_axis(1, 2, 4, 5),
    "Resize": _resize,
    "Upsample": _upsample,
}
