"""Tells whether two answers to one request are the same, by their types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.runtime.network.values import Array, Value

_OF_PRECISION: Final[Mapping[str, float]] = MappingProxyType(
    {"f64": 1e-9, "f32": 1e-3, "f16": 2e-2, "bf16": 5e-2}
)
_OF_TYPE: Final[Mapping[str, float]] = MappingProxyType({"float16": 1e-2, "bfloat16": 5e-2})
_EIGHT_BITS: Final = ("int8", "uint8")
_WHOLE: Final = 1.0
"""The relative difference of values that are not numbers of one shape: texts that differ, arrays of
other shapes, or NaN and a number."""


class Difference(NamedTuple):
    """
    Attributes:
        relative: the largest difference of two elements, divided by the largest element of its
            output; 0.0 if the answers are equal.
        why: the first output that differs, and by how much; empty if none does.
    """

    relative: float
    why: str


def difference(
    found: Mapping[str, Value], right: Mapping[str, Value], precision: str, whose: str = "CPU"
) -> Difference:
    """How an answer differs from the right one.

    Floating-point numbers may differ by 0.1 % of the output's largest in float32, by more or less
    where another precision was asked for. They must be infinite and NaN in the same places. An
    integer of 8 bits may differ by 1, because a half may be rounded either way. All else must be
    equal.

    Args:
        precision: in which the answer was computed: f64, f32, f16 or bf16.
        whose: has given the right answer, for the text.
    """
    each = [
        _of_value(f"output {name!r}", found.get(name, _MISSING), value, precision, whose)
        for name, value in right.items()
    ]
    return _together(each)


def differing(found: Mapping[str, Value], right: Mapping[str, Value], precision: str) -> str | None:
    """As `Difference.why` of CPU's answer; None if no output differs."""
    return difference(found, right, precision).why or None


def tells(inputs: Mapping[str, Value]) -> bool:
    """Whether a request can show that an answer is wrong. One of zeros alone, with which clients
    warm a network up, cannot: each floating-point input has to have different elements."""
    floats = (each for each in inputs.values() if isinstance(each, np.ndarray) and _is_real(each))
    return all(each.size < 2 or bool((each != each.flat[0]).any()) for each in floats)


_MISSING: Final[Any] = object()
_SAME: Final = Difference(0.0, "")


def _is_real(array: Array) -> bool:
    return array.dtype.kind not in "biu"


def _together(each: Iterable[Difference]) -> Difference:
    each = [_SAME, *each]
    return Difference(
        max(one.relative for one in each), next((one.why for one in each if one.why), "")
    )


def _of_value(name: str, found: Any, right: Any, precision: str, whose: str) -> Difference:
    if found is _MISSING:
        return Difference(_WHOLE, f"{name} is missing")
    if isinstance(right, list) and isinstance(found, list) and len(found) == len(right):
        both = enumerate(zip(found, right, strict=True))
        return _together(
            _of_value(f"{name}[{index}]", *pair, precision, whose) for index, pair in both
        )
    if found is None and right is None:
        return _SAME
    if any(isinstance(value, list) or value is None for value in (found, right)):
        return Difference(_WHOLE, f"{name} is {_kind(found)}, and {whose}'s is {_kind(right)}")
    relative, how = _of_array(np.asarray(found), np.asarray(right), precision, whose)
    return Difference(relative, f"{name} {how}" if how else "")


def _kind(value: Value) -> str:
    if value is None:
        return "absent"
    return f"a sequence of {len(value)}" if isinstance(value, list) else "a tensor"


def _of_array(answer: Any, right: Any, precision: str, whose: str) -> Difference:
    if answer.shape != right.shape or answer.dtype != right.dtype:
        how = f"is {answer.dtype}{answer.shape}, and {whose}'s is {right.dtype}{right.shape}"
        return Difference(_WHOLE, how)
    if right.dtype.kind in "OSU":
        count = sum(one != other for one, other in zip(_texts(answer), _texts(right), strict=True))
        how = f"differs from {whose}'s in {count} of {right.size} texts"
        return Difference(_WHOLE, how) if count else _SAME
    kind = str(right.dtype)
    if right.dtype.kind in "biu":
        most = 1 if kind in _EIGHT_BITS else 0
        wrong = answer.astype(np.int16) - right if most else answer != right
        count = int((np.abs(wrong) > most).sum())
        how = f"differs from {whose}'s in {count} of {right.size} integers" if count else ""
        if not wrong.any():
            return _SAME
        return Difference(_relative(answer.astype(float), right.astype(float))[0], how)
    if answer.dtype.kind != "c" and answer.dtype != np.float64:
        answer, right = answer.astype(np.float32), right.astype(np.float32)
    finite = np.isfinite(right)
    if not np.array_equal(answer[~finite], right[~finite], equal_nan=True):
        return Difference(_WHOLE, f"has no NaN or infinity where {whose}'s has")
    relative, error, largest = _relative(answer[finite], right[finite])
    if error <= largest * max(_OF_PRECISION[precision], _OF_TYPE.get(kind, 0.0)):
        return Difference(relative, "")
    how = f"differs from {whose}'s by {error:.3g}, and its largest number is {largest:.3g}"
    return Difference(relative, how)


def _relative(answer: Array, right: Array) -> tuple[float, float, float]:
    """The largest difference, relative and absolute, and the largest number."""
    largest = float(np.abs(right).max(initial=0.0))
    with np.errstate(over="ignore"):
        error = float(np.abs(answer - right).max(initial=0.0))
    relative = error / largest if largest else _WHOLE * (error > 0)
    return (relative if np.isfinite(relative) else _WHOLE), error, largest


def _texts(array: Array) -> Iterator[bytes]:
    # Element by element, so that other threads get their turns.
    for text in array.reshape(-1):
        yield text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
