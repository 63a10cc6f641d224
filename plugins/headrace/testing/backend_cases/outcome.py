"""The result of a case, and whether its outputs are right."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_BFLOAT16_RTOL = 2.0**-6  # two units in the last place, as onnx's own runner allows


class CaseOutcome(enum.Enum):
    PASSED = "passed"
    RANDOM = "random"  # right except for numbers that ONNX leaves to the backend
    REFUSED = "refused"
    WRONG = "wrong"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class Result:
    """One case's outcome.

    Attributes:
        claimed: whether the device said in a query that it runs every layer.
        reason: the kind of the fault or refusal, which is the same each time; empty if it passed.
        detail: the error, or how outputs differ; empty if there is nothing to say.
    """

    case: str
    outcome: CaseOutcome
    claimed: bool
    reason: str = ""
    detail: str = ""

    @property
    def is_fault(self) -> bool:
        """Refusing is allowed, and random numbers are; anything else but passing, where the device
        claims to run it, is not, and wrong outputs never are."""
        if self.outcome in (CaseOutcome.PASSED, CaseOutcome.RANDOM):
            return False
        return self.claimed or self.outcome is not CaseOutcome.REFUSED


def difference(
    actual: Mapping[str, Any], expected: Mapping[str, Any], rtol: float, atol: float
) -> tuple[str, str] | None:
    """The first difference, its kind and its text; None if there is none."""
    for name, value in expected.items():
        if name not in actual:
            return "no output", f"{name} is missing"
        why = _differs(actual[name], value, rtol, atol, name)
        if why is not None:
            return why
    return None


def same_form(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether both have the same outputs, dtypes and shapes. Numbers may differ."""
    why = difference(actual, expected, np.inf, np.inf)
    return why is None or why[0] == "values"


def _differs(
    actual: Any, expected: Any, rtol: float, atol: float, name: str
) -> tuple[str, str] | None:
    if isinstance(expected, list):
        if not isinstance(actual, list):
            return "type", f"{name} is a {type(actual).__name__}, not a sequence"
        if len(actual) != len(expected):
            return "shape", f"{name} has {len(actual)} elements, not {len(expected)}"
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            why = _differs(one, other, rtol, atol, f"{name}[{index}]")
            if why is not None:
                return why
        return None
    if expected is None or not isinstance(actual, np.ndarray):
        same = expected is None and actual is None
        return None if same else ("type", f"{name} is a {type(actual).__name__}")
    if actual.shape != expected.shape:
        return "shape", f"{name} has shape {actual.shape}, not {expected.shape}"
    if expected.dtype == object:
        same = [*map(_text, actual.ravel())] == [*map(_text, expected.ravel())]
        return None if same else ("values", f"{name} is {actual}, not {expected}")
    if actual.dtype != expected.dtype:
        return "dtype", f"{name} has dtype {actual.dtype}, not {expected.dtype}"
    if expected.dtype.name == "bfloat16":
        rtol = max(rtol, _BFLOAT16_RTOL)
    one, other = _wide(actual), _wide(expected)
    with np.errstate(all="ignore"):
        close = np.isclose(one, other, rtol=rtol, atol=atol, equal_nan=True)
        if close.all():
            return None
        off = ~close if one.dtype.kind == "b" else np.abs(one - other)
    worst = off[~close & np.isfinite(off)].max(initial=0)
    count = close.size - np.count_nonzero(close)
    return "values", f"{name}: {count} of {close.size} elements differ, by up to {worst:.3g}"


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements in a type that NumPy can compare without rounding them."""
    if array.dtype.kind in "biuc" or array.dtype == np.float64:
        return array
    return array.astype(np.float64)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
