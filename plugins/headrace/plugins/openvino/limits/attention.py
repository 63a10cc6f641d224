"""Attention that OpenVINO accepts but computes differently. `limits` has the other layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from headrace.plugins.openvino.constants.values import input_of, sizes_of

_PRECISIONS: Final = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.DOUBLE,
    ir.DataType.BFLOAT16,
)


def _attention(node: ir.Node, version: int) -> str | None:
    """test_attention_local_window, test_attention_bidirectional_window: windows are ignored.
    test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal: before operator set 24
    the causal mask counts from the first key. The backend counts from the first new key.
    test_attention_4d_causal_padded_kv_bf16: wrong on processors without bfloat16. No case has one
    key in a first request and many in a later one."""
    attributes = node.attributes
    windows = [attributes.get(f"{side}_window_size") for side in ("left", "right")]
    if any(size is not None and size.as_int() >= 0 for size in windows):
        return "OpenVINO ignores the attention window"
    scale = attributes.get_float("scale", 1.0)
    if scale == 0:  # only if `transformations` are switched off
        return "OpenVINO takes a scale of 0 for the default"
    if scale < 0:
        return "OpenVINO multiplies by a negative scale, and ONNX multiplies by its root"
    if attributes.get_int("softmax_precision", 1) not in _PRECISIONS:
        return "softmax_precision is not a floating-point type, and OpenVINO ignores it"
    ranks = {len(sizes) for at in range(3) if (sizes := sizes_of(input_of(node, at))) is not None}
    if len(ranks) > 1:
        return "OpenVINO reshapes a query, a key or a value of another rank than the others have"
    for at, name in enumerate(("q_num_heads", "kv_num_heads")):
        sizes = sizes_of(input_of(node, at)) or []
        if len(sizes) == 4 and attributes.get_int(name, sizes[1]) != sizes[1]:
            return f"OpenVINO ignores {name}, and the tensor's number of heads may differ"
    causal = attributes.get_int("is_causal", 0)
    if version < 24 and causal and input_of(node, 4) is not None:
        return "after past keys, OpenVINO uses the causal mask of operator set 24"
    keys = [sizes_of(input_of(node, at)) for at in (1, 4) if input_of(node, at) is not None]
    known = all(sizes and len(sizes) > 1 and sizes[-2] is not None for sizes in keys)
    if not causal and input_of(node, 3) is None and not known:
        return "after a request with one key, OpenVINO does not divide by the sum of more keys"
    if _has_wide_mask(node):
        return "OpenVINO cuts off the columns of a mask that is wider than its keys"
    query = input_of(node, 0)
    dtype = query.dtype if query is not None else None
    if causal and input_of(node, 6) is not None and dtype in (None, ir.DataType.BFLOAT16):
        return "if all keys of a query are masked, OpenVINO averages all values in bfloat16"
    return None


def _has_wide_mask(node: ir.Node) -> bool:
    """Whether an Attention's mask is known to be wider than its keys. `guards` finds it if a width
    is not known before a run. No case has such a mask."""
    key, mask, past = (sizes_of(input_of(node, at)) for at in (1, 3, 4))
    keys = [each[-2] for each in (key, past) if each is not None and len(each) > 1]
    width = mask[-1] if mask else None
    known = [each for each in keys if each is not None]
    complete = len(known) == 1 + (input_of(node, 4) is not None)
    return complete and width is not None and width > sum(known)


ATTENTION: Final[Mapping[str, Callable[[ir.Node, int], str | None]]] = MappingProxyType(
    {"Attention": _attention}
)
