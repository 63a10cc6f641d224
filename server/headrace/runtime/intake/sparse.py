"""Makes dense tensors of sparse ones, because no backend here computes with sparse weights.

https://onnx.ai/onnx/repo-docs/IR.html#serialized-sparse-tensors
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np

_AT_ONCE: Final = 65_536
"""Elements that are put in their places in one call, which lets no other thread run."""


def dense(values: Any, indices: Any, sizes: tuple[int, ...]) -> Any:
    """The elements of a tensor of these sizes, in one row: `values` at `indices`, and zeros.

    Args:
        values: one axis of any type.
        indices: int64, a position for each value: its place in the row, or its place on each axis.

    Raises:
        ValueError: the indices do not fit; says how.
    """
    if indices.dtype != np.int64 or indices.shape not in (
        values.shape,
        (*values.shape, len(sizes)),
    ):
        raise ValueError(
            f"indices {indices.dtype}{[*indices.shape]} for values {[*values.shape]} of "
            f"{len(sizes)} axes"
        )
    row = np.zeros(prod(sizes), values.dtype)
    last = -1
    for start in range(0, len(values), _AT_ONCE):
        part = indices[start : start + _AT_ONCE]
        if part.ndim > 1:
            if (part < 0).any() or (part >= sizes).any():
                raise ValueError("an index is out of bounds")
            part = np.ravel_multi_index(tuple(part.T), sizes)
        if part[0] <= last or part[-1] >= row.size or (np.diff(part) <= 0).any():
            raise ValueError("indices are out of bounds or do not ascend")
        row[part] = values[start : start + _AT_ONCE]
        last = int(part[-1])
    return row
