"""Which layers onnx can be asked about, when types are inferred."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from headrace.runtime.network.ranks import MAX_RANK

SMALL_BYTES: Final = 4096
"""Constants up to this size take part in the inference: shapes are computed from them."""

_MAX_NUMBERS: Final = 4096
"""The most numbers in an attribute of a layer that onnx is asked about."""

_LISTS: Final = (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS)
_LEAST: Final = {"axis": -MAX_RANK, "batch_dims": 0}
"""The least axis, and the least number of axes. Below that, and above the highest rank, onnx reads
beyond the shapes of some layers' inputs and ends the process."""


def is_askable(node: ir.Node) -> bool:
    """Whether the node's attributes are small. If they are not, onnx's result may be large. And
    whether its axes are those that a tensor can have."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            if attribute.as_tensor().nbytes > SMALL_BYTES:
                return False
        elif attribute.type == ir.AttributeType.INT:
            if name in _LEAST and not _LEAST[name] <= attribute.as_int() <= MAX_RANK:
                return False
        elif attribute.type in _LISTS and len(attribute.value) > _MAX_NUMBERS:
            return node.domain != ""  # trees of ai.onnx.ml are long but do not affect shapes
    return True
