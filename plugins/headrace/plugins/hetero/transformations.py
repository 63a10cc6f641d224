"""What is done to a network before it is cut: no layer comes, goes, or gets another name."""

from __future__ import annotations

import onnx_ir as ir

from headrace.runtime.intake.naming import walk


def name_types_of_casts(model: ir.Model) -> bool:
    """Makes each CastLike a Cast to the type that it would have read off its second input.

    Of that input nothing but the type is read, yet it would count as a result that the layer waits
    for. Where the two are on different devices, it would be handed over for nothing, and a subgraph
    that makes it and reads it too would be cut in two around the cast. In a part that computes
    float16 in float32, that cut rounds what neither device rounds: the scores of
    test_attention_4d_causal_fp16_expanded, off by two units in the last place then.

    The two operators have come and changed together, so either has the other's attributes.
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
