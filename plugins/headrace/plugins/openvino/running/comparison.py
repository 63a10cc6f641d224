"""Tells whether OpenVINO has answered a request as CPU did."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from headrace.runtime.network.values import Array, Value

_OF_PRECISION: Final[Mapping[str, float]] = MappingProxyType(
    {"f32": 1e-3, "f16": 2e-2, "bf16": 5e-2}
)
_OF_TYPE: Final[Mapping[str, float]] = MappingProxyType({"float16": 1e-2, "bfloat16": 5e-2})
_EIGHT_BITS: Final = ("int8", "uint8")


def differing(found: Mapping[str, Value], right: Mapping[str, Value], precision: str) -> str | None:
    """Which output differs, and by how much; None if none does.

    Floating-point numbers may differ by 0.1 % of the output's largest in float32, by more where
    less precision was asked for. They must be infinite and NaN in the same places. An integer of 8
    bits may differ by 1, because a half may be rounded either way. All else must be equal.

    Args:
        precision: in which OpenVINO computes: f32, f16 or bf16.
    """
    for name, expected in right.items():
        how = _difference(np.asarray(found[name]), np.asarray(expected), _OF_PRECISION[precision])
        if how is not None:
            return f"output {name!r} {how}"
    return None


def tells(inputs: Mapping[str, Value]) -> bool:
    """Whether a request can show that an answer is wrong. One of zeros alone, with which clients
    warm a network up, cannot: each floating-point input has to have different elements."""
    floats = (each for each in inputs.values() if isinstance(each, np.ndarray) and _is_real(each))
    return all(each.size < 2 or bool((each != each.flat[0]).any()) for each in floats)


def _is_real(array: Array) -> bool:
    return array.dtype.kind not in "biu"


def _difference(answer: Any, right: Any, tolerance: float) -> str | None:
    if answer.shape != right.shape or answer.dtype != right.dtype:
        return f"is {answer.dtype}{answer.shape}, and CPU's is {right.dtype}{right.shape}"
    kind = str(right.dtype)
    if right.dtype.kind in "biu":
        most = 1 if kind in _EIGHT_BITS else 0
        wrong = answer.astype(np.int16) - right if most else answer != right
        count = int((np.abs(wrong) > most).sum())
        return f"differs from CPU's in {count} of {right.size} integers" if count else None
    if answer.dtype != np.float64:
        answer, right = answer.astype(np.float32), right.astype(np.float32)
    finite = np.isfinite(right)
    if not np.array_equal(answer[~finite], right[~finite], equal_nan=True):
        return "has no NaN or infinity where CPU's has"
    answer, right = answer[finite], right[finite]
    largest = np.abs(right).max(initial=0.0)
    error = np.abs(answer - right).max(initial=0.0)
    if error <= largest * max(tolerance, _OF_TYPE.get(kind, 0.0)):
        return None
    return f"differs from CPU's by {error:.3g}, and its largest number is {largest:.3g}"
