"""How far answers are off from the right ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def largest_difference(found: Mapping[str, Any], right: Mapping[str, Any]) -> float:
    """The largest difference of two elements, in units of the largest element of its output.
    Infinite for all that has no smaller one, such as other texts."""
    return max((_difference(found[name], value) for name, value in right.items()), default=0.0)


def _difference(found: Any, right: Any) -> float:
    if isinstance(right, list):
        if not isinstance(found, list) or len(found) != len(right):
            return math.inf
        return max(map(_difference, found, right), default=0.0)
    if right is None or right.dtype == object:
        return 0.0 if np.array_equal(found, right) else math.inf
    if found is None or found.shape != right.shape:
        return math.inf
    wide = np.complex128 if right.dtype.kind == "c" else np.float64
    found, right = found.astype(wide), right.astype(wide)
    finite = np.isfinite(right)
    if not np.array_equal(found[~finite], right[~finite], equal_nan=True):
        return math.inf
    if not np.isfinite(found[finite]).all():
        return math.inf
    error = float(np.abs(found[finite] - right[finite]).max(initial=0.0))
    largest = float(np.abs(right[finite]).max(initial=0.0))
    return error / largest if largest else math.inf if error else 0.0
