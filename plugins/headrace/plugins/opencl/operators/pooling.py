"""Pooling with indices. ONNX counts them in the whole tensor, tinygrad in each channel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from tinygrad.nn.onnx import onnx_ops
from tinygrad.tensor import Tensor

_PLANE: Final = 2
_POOL: Final[Any] = onnx_ops["MaxPool"]


def max_pool(x: Tensor, storage_order: int = 0, **attributes: Any) -> tuple[Tensor, Tensor]:
    """The maxima, and the index of each maximum in the data of shape (batch, channels, *space).

    Args:
        storage_order: 1: indices count columns first. This works for two axes in space only.
    """
    pooled, indices = _POOL(x, **attributes)
    batch, channels, *space = (int(size) for size in x.shape)
    if storage_order and len(space) == _PLANE:
        height, width = space
        indices = indices % width * height + indices // width
    first = Tensor.arange(batch * channels).reshape(batch, channels, *(1 for _ in space))
    return pooled, indices + first * prod(space)


def max_unpool(
    x: Tensor,
    indices: Tensor,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """A tensor of zeros with the data at the positions that the indices name."""
    batch, channels, *space = (int(size) for size in x.shape)
    axes = len(space)
    pads, strides = pads or [0] * 2 * axes, strides or [1] * axes
    margins = [pads[at] + pads[at + axes] for at in range(axes)]
    sizes = [
        (size - 1) * stride - margin + kernel
        for size, stride, margin, kernel in zip(space, strides, margins, kernel_shape, strict=True)
    ]
    count = prod(sizes)
    at = indices.reshape(batch, channels, 1, -1) % count
    hit = Tensor.arange(count).reshape(1, 1, count, 1) == at
    # Windows that overlap may have found the same maximum.
    found = hit.where(x.reshape(batch, channels, 1, -1), x.dtype.min).max(3)
    return hit.any(3).where(found, 0).reshape(batch, channels, *sizes)
