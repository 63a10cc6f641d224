"""Writes updates at indices as ONNX defines it, into a new tensor. tinygrad's own ScatterND and
TensorScatter assign to their input, which may be a weight or the input of a captured kernel.

See https://onnx.ai/onnx/operators/onnx__ScatterND.html and onnx__TensorScatter.html.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

from tinygrad.tensor import Tensor

_REDUCED: Final[dict[str, Any]] = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, reduction: str = "none") -> Tensor:
    """A copy of the data with the updates. The last axis of the indices holds their coordinates."""
    depth, count = int(indices.shape[-1]), prod(indices.shape[:-1])
    shape = [int(size) for size in x.shape]
    sizes, width = shape[:depth], prod(shape[depth:])
    if not x.numel() or not count:
        return x
    row: Any = 0
    for index, size in zip(indices.reshape(count, depth).split(1, 1), sizes, strict=True):
        row = row * size + (index < 0).where(index + size, index)
    rows = row.expand(count, width)
    flat, source = x.reshape(prod(sizes), width), updates.reshape(count, width)
    if reduction == "none":
        return flat.scatter(0, rows, source).reshape(x.shape)
    return flat.scatter_reduce(0, rows, source, _REDUCED[reduction]).reshape(x.shape)


def tensor_scatter(
    cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    """A copy of the cache with the update along an axis. The update of each element of the batch
    starts at that element's index."""
    if not update.numel():
        return cache
    ones = [1] * cache.ndim
    steps, batch = list(ones), list(ones)
    steps[axis], batch[0] = int(update.shape[axis]), int(cache.shape[0])
    at = Tensor.arange(update.shape[axis]).reshape(steps)
    if write_indices is not None:
        at = at + write_indices.reshape(batch)
    if mode == "circular":
        at = at % int(cache.shape[axis])
    return cache.scatter(axis, at.expand(update.shape), update)
