"""Computes Attention as ONNX defines it. tinygrad's own function differs from ONNX: it masks before
softcap, starts causal masks at the first key even if there are past keys, repeats shared heads in
another order, and returns NaN for a row that is masked completely.

Shapes are (batch, heads, length, size), or (batch, length, heads * size). See
https://onnx.ai/onnx/operators/onnx__Attention.html.
"""

from __future__ import annotations

from functools import reduce
from math import inf
from operator import and_, sub

from tinygrad.dtype import dtypes
from tinygrad.nn.onnx import OnnxDataType
from tinygrad.tensor import Tensor

_CAPPED_OR_RAW = (0, 1)
_MASKED = 2


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    left_window_size: int = -1,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The operator's four outputs: the result, all keys and all values (with past ones), scores."""
    flat = q.ndim == 3
    if flat:
        q, k, v = _split(q, q_num_heads), _split(k, kv_num_heads), _split(v, kv_num_heads)
    past = 0
    if past_key is not None and past_value is not None:
        past = int(past_key.shape[2])
        k, v = past_key.cat(k, dim=2), past_value.cat(v, dim=2)
    keys, values = k, v
    shared = int(q.shape[1]) // int(k.shape[1])
    if shared > 1:
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    root = (int(q.shape[3]) ** -0.5 if scale is None else scale) ** 0.5
    scores = (q * root) @ (k * root).transpose(-1, -2)
    if softcap > 0:
        scores = (scores / softcap).tanh() * softcap
    bias = _bias(
        scores, attn_mask, nonpad_kv_seqlen, past, is_causal, left_window_size, right_window_size
    )
    masked = scores + bias
    wide = masked.cast(dtypes.double) if softmax_precision == OnnxDataType.DOUBLE else masked
    closed = bias.max(-1, keepdim=True) == -inf
    weights = closed.where(0, wide.softmax(-1)).cast(q.dtype)
    result = weights @ v
    if flat:
        result = result.transpose(1, 2).flatten(2)
    if qk_matmul_output_mode in _CAPPED_OR_RAW:
        return result, keys, values, scores
    return result, keys, values, masked if qk_matmul_output_mode == _MASKED else weights


def _split(x: Tensor, heads: int) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _bias(
    scores: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    past: int,
    is_causal: int,
    left: int,
    right: int,
) -> Tensor:
    """The bias to add to the scores. It is minus infinity where a query may not see a key."""
    queries, keys = int(scores.shape[2]), int(scores.shape[3])
    key = Tensor.arange(keys).reshape(1, keys)
    # The position of the first query among the keys. The last query is at the last valid key.
    offset = past if lengths is None else lengths.reshape(-1, 1, 1, 1) - queries
    ahead = sub(key - Tensor.arange(queries).reshape(queries, 1), offset)
    allowed = [ahead <= ahead] if not is_causal else [ahead <= 0]
    if left >= 0:
        allowed.append(ahead >= -left)
    if right >= 0:
        allowed.append(ahead <= right)
    if lengths is not None:
        allowed.append(key < lengths.reshape(-1, 1, 1, 1))
    bias: Tensor | float = 0.0
    if mask is not None:
        missing = keys - int(mask.shape[-1])
        is_bool = mask.dtype == dtypes.bool
        if missing:
            sides = ((0, 0),) * (mask.ndim - 1) + ((0, missing),)
            mask = mask.pad(sides, value=0 if is_bool else -inf)
        if is_bool:
            allowed.append(mask)
        else:
            bias = mask
    visible: Tensor = reduce(and_, allowed)
    return visible.where(bias, -inf).cast(scores.dtype)
