"""How far outputs are from the reference's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tools.zoo.inputs import Array

# Errors are relative to the largest number of the reference's output. ONNX Runtime's own STFT is
# off by some 2e-4, so less than RIGHT cannot be asked for.
RIGHT = 1e-3
CLOSE = 5e-2
# A network may make rounding larger than that. There a device may be off by so many times what
# ONNX Runtime is off by after changes as small as rounding: few of these are tried, and a device
# adds up in other orders.
OWN_TIMES = 3.0
_LEAST = 1e-3  # what an output holds that is nearly zero everywhere is rounding


def mismatch(outputs: Mapping[str, Any], expected: Mapping[str, Array]) -> str:
    """In which names, types or ranks the outputs differ, which no rounding explains; "" if none."""
    if set(outputs) != set(expected):
        return f"outputs {sorted(outputs)}, not {sorted(expected)}"
    for name, value in expected.items():
        actual = np.asarray(outputs[name])
        if actual.dtype != value.dtype or actual.ndim != value.ndim:
            return f"{name}: {_text(actual)}, not {_text(value)}"
    return ""


def largest_error(outputs: Mapping[str, Any], expected: Mapping[str, Array]) -> tuple[float, str]:
    """The largest error of any output, and what is wrong with it.

    Args:
        outputs: without a `mismatch`.

    Returns:
        The error relative to the output's largest number, infinite where shapes or the places of
        NaN and infinity differ; and the output's name and its difference in words.
    """
    found = [(_error(np.asarray(outputs[name]), value), name) for name, value in expected.items()]
    (error, text), name = max(found, key=lambda each: each[0][0])
    return error, f"{name}: {text}"


def _text(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _error(actual: Array, expected: Array) -> tuple[float, str]:
    if actual.shape != expected.shape:
        return np.inf, f"{_text(actual)}, not {_text(expected)}"
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
    largest = np.abs(other).max()
    worst = np.abs(one - other).max()
    return float(worst / max(largest, _LEAST)), f"off by {worst:.2g}, the largest is {largest:.2g}"
