"""How far outputs are from the reference's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.zoo.inputs import Array

# Errors are relative to the range of the reference's output. ONNX Runtime's own STFT is off by
# some 2e-4, so less than RIGHT cannot be asked for.
RIGHT = 1e-3
CLOSE = 5e-2
# A network may make rounding larger than that. There a device may be off by so many times what
# ONNX Runtime's own answer is off by after a change that only rounding should see.
OWN_TIMES = 10.0
_LEAST_RANGE = 1e-3  # an output that is nearly the same everywhere is rounding


def largest_error(outputs: Mapping[str, Any], expected: Mapping[str, Array]) -> tuple[float, str]:
    """The largest error of any output, and what is wrong with it.

    Returns:
        The error relative to the output's range, infinite where names, types, shapes or the places
        of NaN and infinity differ; and the output's name and its difference in words.
    """
    if set(outputs) != set(expected):
        return np.inf, f"outputs {sorted(outputs)}, not {sorted(expected)}"
    found = [(_error(outputs[name], value), name) for name, value in expected.items()]
    (error, text), name = max(found, key=lambda each: each[0][0])
    return error, f"{name}: {text}"


def _error(actual: Any, expected: Array) -> tuple[float, str]:
    actual = np.asarray(actual)
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return np.inf, (
            f"{actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
        )
    if expected.size == 0:
        return 0.0, "empty"
    if expected.dtype.kind != "f":  # classes and lengths: how many of them are others
        others = np.count_nonzero(actual != expected)
        return others / expected.size, f"{others} of {expected.size} elements are others"
    one, other = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return np.inf, "NaN and infinity are at other places"
    if not np.isfinite(one[finite]).all():
        return np.inf, "NaN or infinity, where the reference has numbers"
    if not finite.any():
        return 0.0, "no numbers"
    one, other = one[finite], other[finite]
    # A single number has no range but its own size.
    scale = max(np.ptp(other), np.abs(other).max() if other.size == 1 else 0.0, _LEAST_RANGE)
    worst = np.abs(one - other).max()
    return float(worst / scale), f"off by {worst:.2g} in a range of {scale:.2g}"
