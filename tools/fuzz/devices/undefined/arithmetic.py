"""Classes of values and operators for which ONNX leaves the results to the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tools.fuzz.devices.values import (
    bounds,
    has_nan,
    is_extreme,
    is_float,
    is_integer,
    is_subnormal,
    wide,
)

Array = np.ndarray[Any, Any]

_POINTWISE = """
Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr
BitwiseXor Ceil Concat Compress Cos Cosh DepthToSpace Div Equal Erf Exp Expand
Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity IsInf
IsNaN Less LessOrEqual Log Mul Neg NonZero Not Or Pad Pow Reciprocal Reshape Reverse
Round Shape Sign Sin Sinh Size Slice SpaceToDepth Split
Sqrt Squeeze Sub Tan Tanh Tile Transpose Trilu Unsqueeze Where Xor
"""
POINTWISE = frozenset(_POINTWISE.split())
"""Operators whose outputs for infinities and huge numbers follow from IEEE 754, element by element.
All others may compute in another order or range."""

_MOVING = """
Concat Compress DepthToSpace Expand Flatten Gather GatherElements GatherND Identity IsInf IsNaN Pad
Reshape Reverse Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where
"""
MOVING = frozenset(_MOVING.split())
"""Operators that pass elements on unchanged. ONNX does not say what others do with NaN."""

_INTEGER_ARITHMETIC = frozenset(["Abs", "Div", "Mod", "Neg", "Pow", "BitShift"])
_AVERAGING = ("Loss", "Mean", "Norm", "Pool")


def _extreme_floats(operators: set[str], values: list[Array]) -> str | None:
    if not operators <= POINTWISE | {"Constant"} and any(map(is_extreme, values)):
        return "NaN, infinite or huge numbers where the order of the arithmetic is open"
    return None


def _special(operators: set[str], values: list[Array]) -> str | None:
    if not operators <= MOVING | {"Constant"} and any(map(has_nan, values)):
        return "arithmetic with NaN"
    if not operators <= MOVING | {"Constant"} and any(map(is_subnormal, values)):
        return "arithmetic with subnormal numbers, which may count as zero"
    return None


def _casts(operators: set[str], values: list[Array]) -> str | None:
    if operators & {"Cast", "CastLike"} and any(map(is_extreme, values)):
        return "a cast of a number that the target type does not have"
    return None


def _power_too_far(operators: set[str], values: list[Array]) -> str | None:
    """Whether a power of an integer may be one that the integer's type does not have, or that is
    not exact in float64: the operator's text says nothing of either."""
    numbers = [each for each in values if each.dtype != object and each.size]
    for base in numbers if "Pow" in operators else []:
        if not is_integer(base.dtype):
            continue
        largest = float(np.abs(wide(base).astype(np.float64)).max())
        limit = min(bounds(base.dtype)[1], 2**53)
        exponents = [wide(each).astype(np.float64) for each in numbers if each is not base]
        with np.errstate(all="ignore"):
            if any((largest**each > limit).any() for each in exponents):
                return "a power that the type does not have"
    return None


def _in_floats(operators: set[str], values: list[Array]) -> str | None:
    """Shrink of integers adds a float attribute. ONNX's text does not say in which type."""
    if "Shrink" in operators and any(
        is_integer(each.dtype) and bool((np.abs(wide(each).astype(np.float64)) > 2**24).any())
        for each in values
    ):
        return "arithmetic with a float and an integer that float32 does not have"
    return None


def _integers(operators: set[str], values: list[Array]) -> str | None:
    if operators & _INTEGER_ARITHMETIC and any(
        is_integer(each.dtype) and bool((wide(each) <= 0).any()) for each in values
    ):
        return "a division of integers by zero, or a result that the type does not have"
    return None


def _reduced_too_far(operators: set[str], values: list[Array]) -> str | None:
    """Whether a sum or a product of integers may be one that the type does not have, or that is not
    exact in float64. ONNX does not say in which type it is computed, or what overflows become."""
    reductions = {each for each in operators if each.startswith("Reduce")}
    for each in values if reductions - {"ReduceMax", "ReduceMin"} else []:
        if not is_integer(each.dtype):
            continue
        sizes = np.abs(wide(each).astype(np.float64)).ravel()
        with np.errstate(over="ignore"):
            largest = float(sizes.sum())
            if operators & {"ReduceL2", "ReduceSumSquare"}:
                largest = float((sizes**2).sum())
            elif "ReduceProd" in operators:
                largest = float(np.maximum(sizes, 1).prod())
        if largest > min(bounds(each.dtype)[1], 2**53):
            return "a sum or a product of integers that is too large for the type"
    return None


def _least(operators: set[str], values: list[Array]) -> str | None:
    if "ReduceL1" in operators and any(
        is_integer(each.dtype) and bool((wide(each) == bounds(each.dtype)[0]).any())
        for each in values
        if each.dtype.kind != "u"
    ):
        return "the absolute value of the least integer, which the type does not have"
    return None


def _no_steps(operators: set[str], values: list[Array]) -> str | None:
    if operators & {"GRU", "LSTM", "RNN"} and any(each.size == 0 for each in values):
        return "a recurrent layer over no steps"
    return None


def _no_range(operators: set[str], values: list[Array]) -> str | None:
    if "DynamicQuantizeLinear" in operators and not any(each.any() for each in values):
        return "a quantisation of zeros alone, which any scale does"
    return None


def _long_condition(operators: set[str], values: list[Array]) -> str | None:
    conditions = [each.size for each in values if each.dtype == bool]
    if "Compress" not in operators or not conditions:
        return None
    if all(max(conditions) <= min(each.shape, default=0) for each in values):
        return None
    return "a Compress whose condition is longer than the axis"


def _inexact_bins(operators: set[str], values: list[Array]) -> str | None:
    """ONNX does not say whether edges in few bits are converted to mel in more."""
    if "MelWeightMatrix" in operators and any(
        each.dtype != object and is_float(each.dtype) and each.dtype.itemsize < 4 for each in values
    ):
        return "the bins of frequencies in a type of few bits"
    return None


def _empty_means(operators: set[str], values: list[Array]) -> str | None:
    averaging = any(word in each for word in _AVERAGING for each in operators)
    if averaging and any(each.size == 0 for each in values):
        return "a mean of no elements"
    return None


RULES: tuple[Callable[[set[str], list[Array]], str | None], ...] = (
    _extreme_floats,
    _special,
    _casts,
    _in_floats,
    _inexact_bins,
    _integers,
    _reduced_too_far,
    _least,
    _empty_means,
    _long_condition,
    _no_range,
    _no_steps,
    _power_too_far,
)
"""Each says why what the operators make of the values is not defined, or None."""
