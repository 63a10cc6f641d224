"""Infers ranks that operators define and onnx does not infer.

If a size is not known, onnx infers no shape for some outputs, although their rank is certain. After
such an output no rank is known, and a device can only guess whether it supports the layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import onnx_ir as ir

from headrace.runtime.network.constants import const_tensor

MAX_RANK: Final = 64
"""NumPy's highest rank."""

TOO_DEEP: Final = f"the output would have more than {MAX_RANK} axes"

_LISTS: Final = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Unsqueeze": 1}
"""By operator: the input with a number for each axis of the output, or for each added axis."""

_ATTRIBUTES: Final = {
    "RandomNormal": "shape",
    "RandomUniform": "shape",
    "Reshape": "shape",
    "Unsqueeze": "axes",
}
"""By operator: an attribute that is such a list, in some operator sets."""

_AS_INPUT: Final = frozenset(
    (
        "Attention",
        "CenterCropPad",
        "ConvInteger",
        "ConvTranspose",
        "GroupNormalization",
        "MaxUnpool",
        "Pad",
        "QLinearConv",
    )
)
"""Operators whose first output has as many axes as their first input."""

_ALIKE: Final = (("ai.onnx.ml", "Imputer"), ("ai.onnx.ml", "Normalizer"), ("ai.onnx.ml", "Scaler"))
"""Operators of ai.onnx.ml whose output has as many axes as their input."""

_ALWAYS: Final = {
    "BlackmanWindow": 1,
    "HammingWindow": 1,
    "HannWindow": 1,
    "MelWeightMatrix": 2,
    "STFT": 4,
}


def give_ranks(nodes: Iterable[ir.Node]) -> bool:
    """Gives a rank to the first outputs of `nodes` if the rank is certain. It does so only for
    outputs with a known type and no shape.

    Returns:
        Whether any output was given a rank.
    """
    given = False
    for node in nodes:
        value = node.outputs[0] if node.outputs else None
        if value is None or value.type is None or value.shape is not None:
            continue  # a shape without a type says nothing
        rank = _rank(node)
        if rank is not None and rank <= MAX_RANK:
            value.shape = ir.Shape([None] * rank)
            given = True
    return given


def exceeds(node: ir.Node) -> bool:
    """Whether the node is known to list more axes for its output than any tensor has. A backend
    that infers shapes would need memory for each of them, and a list's length may double with each
    layer."""
    if node.domain not in ("", "ai.onnx"):
        return False
    at = _LISTS.get(node.op_type, len(node.inputs))
    value = node.inputs[at] if at < len(node.inputs) else None
    tensor = const_tensor(value) if value is not None else None
    shape = tensor.shape if tensor is not None else value.shape if value is not None else None
    count = shape[0] if shape is not None and shape.rank() == 1 else 0
    attribute = _ATTRIBUTES.get(node.op_type)
    listed = node.attributes.get_ints(attribute, ()) if attribute is not None else ()
    return max(len(listed), count if isinstance(count, int) else 0) > MAX_RANK


def _rank(node: ir.Node) -> int | None:
    source = node.inputs[0] if node.inputs else None
    if node.op_identifier()[:2] in _ALIKE:
        return None if source is None or source.shape is None else source.shape.rank()
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in ("ConstantOfShape", "Reshape"):
        return _length(node, _LISTS[node.op_type])
    if source is None or source.shape is None:
        return _ALWAYS.get(node.op_type)
    if node.op_type in ("Expand", "Unsqueeze"):
        count = _length(node, _LISTS[node.op_type])
        if count is None:
            return None
        rank = source.shape.rank()
        return rank + count if node.op_type == "Unsqueeze" else max(rank, count)
    if node.op_type in _AS_INPUT or (node.op_type.startswith("Reduce") and _keeps_axes(node)):
        return source.shape.rank()
    return _ALWAYS.get(node.op_type)


def _length(node: ir.Node, at: int) -> int | None:
    """The length of the list of integers that an input is; None if it is not known."""
    value = node.inputs[at] if at < len(node.inputs) else None
    shape = value.shape if value is not None else None
    length = shape[0] if shape is not None and shape.rank() == 1 else None
    return length if isinstance(length, int) else None


def _keeps_axes(node: ir.Node) -> bool:
    keeps = node.attributes.get("keepdims")
    return keeps is None or (not keeps.is_ref() and keeps.as_int() != 0)
