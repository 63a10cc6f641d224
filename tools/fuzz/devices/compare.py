"""Whether two answers are the same, as far as arithmetic in few bits can be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.testing.backend_cases.outcome import difference
from tools.fuzz.devices.answer import Large
from tools.fuzz.devices.values import is_float

TOLERANCES = {"float64": 1e-6, "float32": 2e-3, "float16": 2e-2, "bfloat16": 6e-2}
"""The largest error of a right answer by type, relative to the largest finite element. It is wide:
the fuzzer looks for answers that are wrong, and not for ones that are inexact."""

_FEW_BITS = 0.26
_CANCELLED = 1e-3  # of an error that is allowed: about ten steps of the type
_SMALLEST = 1e-37  # a backend may take denormal numbers for 0


def differs(
    actual: Mapping[str, Any],
    expected: Mapping[str, Any],
    *,
    steps: int = 0,
    noise: float = 0.0,
    least: float = 0.0,
) -> tuple[str, str] | None:
    """The first difference, its kind and its text; None if there is none.

    Args:
        steps: by how much integers may differ.
        noise: the largest number of which a part may have cancelled out.
        least: the relative error that floats may have in any case.
    """
    for name, value in expected.items():
        if isinstance(value, Large) or isinstance(actual.get(name), Large):
            other = actual.get(name)
            if not isinstance(value, Large) or not isinstance(other, Large):
                return "shape", f"{name} is large in one answer and not in the other"
            if (value.shape, value.dtype) != (other.shape, other.dtype):
                return "shape", f"{name} has shape {other.shape}, not {value.shape}"
            continue
        relative, absolute = tolerance(value, steps, least)
        if relative:
            absolute = max(absolute, _CANCELLED * relative * noise)
        with np.errstate(all="ignore"):
            found = difference(actual, {name: value}, relative, absolute)
        if found is not None:
            return found
    return None


def error_of(dtype: np.dtype[Any]) -> float:
    """The relative error that a float of the type may have."""
    return TOLERANCES.get(dtype.name, _FEW_BITS)


def tolerance(value: Any, steps: int = 0, least: float = 0.0) -> tuple[float, float]:
    """The relative and the absolute error that elements of the value may have."""
    if isinstance(value, list):
        both = [tolerance(each, steps, least) for each in value] or [(0.0, 0.0)]
        return max(relative for relative, _ in both), max(absolute for _, absolute in both)
    if not isinstance(value, np.ndarray) or value.dtype == object or value.dtype == bool:
        return 0.0, 0.0
    if not is_float(value.dtype) and value.dtype.kind != "c":
        return 0.0, float(steps)
    relative = max(error_of(value.dtype), least)
    with np.errstate(all="ignore"):
        wide = np.abs(value if value.dtype.kind == "c" else value.astype(np.float64))
    scale = float(wide[np.isfinite(wide)].max(initial=0.0))
    return relative, relative * min(scale, 1e300) + _SMALLEST
