"""Transforms a network before it is cut. No layer is added, removed or renamed."""

from __future__ import annotations

import onnx_ir as ir

from headrace.runtime.intake.naming import walk


def name_types_of_casts(model: ir.Model) -> bool:
    """Replaces each CastLike with a Cast to the type of its second input.

    A CastLike reads only the type of that input, but the layer would still wait for the input's
    value. If the two layers are on different devices, the value would be copied for no use. A
    subgraph that both makes the value and reads the cast's result would be cut in two around the
    cast. In a part that computes float16 in float32, such a cut rounds a value that neither device
    rounds by itself. The scores of test_attention_4d_causal_fp16_expanded were then wrong by two
    units in the last place.

    Each version of CastLike came with a version of Cast, so each has the other's attributes.
    """
    casts = [(node, dtype) for node in walk(model.graph) if (dtype := _type_like(node)) is not None]
    for node, dtype in casts:
        node.op_type = "Cast"
        node.resize_inputs(1)
        node.attributes["to"] = ir.AttrInt64("to", dtype.value)
    return bool(casts)


def _type_like(node: ir.Node) -> ir.DataType | None:
    """The type that a CastLike casts to; None if it is not known."""
    if node.op_type != "CastLike" or node.domain not in ("", "ai.onnx"):
        return None
    like = node.inputs[1]
    return None if like is None else like.dtype


TRANSFORMATIONS = (name_types_of_casts,)
