"""Values that networks meet rarely: extreme numbers, NaN, ties, and tensors of other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Generator = np.random.Generator

FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, -1e-40, 1e10, -1e10, 3e38, np.nan, np.inf, -np.inf)
INTEGERS = (0, 1, -1, 2, -2, 3, 7, 100, 2**30, -(2**30), 2**31 - 1, -(2**31), 2**40, -(2**40))
_HUGE = 1e6
_FINE = 2.0**-23
_STEPS = 64
TEXTS = ("", " ", "a", "ß→漢字", "\n", "0", "nan", "-1", "a" * 300)


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (dtype.kind == "V" and not _is_integer(dtype))


def is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or _is_integer(dtype)


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.name in ("int2", "uint2", "int4", "uint4")


def bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The smallest and largest number of an integer type."""
    info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


def has_nan(array: Array) -> bool:
    if array.dtype == object or not is_float(array.dtype):
        return False
    return bool(np.isnan(wide(array).astype(np.float64)).any())


def is_extreme(array: Array) -> bool:
    """Whether a float is NaN, infinite, huge, or so small that it may be taken for zero."""
    if array.dtype == object or not is_float(array.dtype) or not array.size:
        return False
    numbers = wide(array).astype(np.float64)
    tiny = (numbers != 0) & (np.abs(numbers) < 1e-30)
    return bool((~np.isfinite(numbers) | (np.abs(numbers) > _HUGE) | tiny).any())


def is_subnormal(array: Array) -> bool:
    """Whether a float is nearer to zero than the normal numbers of float32. Processors may be set
    to take such numbers for zero."""
    if array.dtype == object or not is_float(array.dtype):
        return False
    size = np.abs(wide(array).astype(np.float64))
    return bool(((size > 0) & (size < np.finfo(np.float32).tiny)).any())


def wide(array: Array) -> Array:
    """The numbers in a type that NumPy computes with: float64 for types of ml_dtypes."""
    with np.errstate(all="ignore"):
        return array if array.dtype.kind in "iuf" else array.astype(np.float64)


def resized(array: Array, shape: Sequence[int]) -> Array:
    """The array's elements, repeated or cut to another shape; zeros if it has none."""
    if not array.size:
        return np.full(shape, "" if array.dtype == object else 0, array.dtype)
    for axis, size in enumerate(shape):
        array = array.take(np.arange(size) % array.shape[axis], axis)
    return array


def rounded(array: Array, rng: Generator) -> Array:
    """The numbers, if they are floats, each moved by about one step of their type, and all by some
    more, in the steps of float32. So sums of many equal numbers are rounded differently too."""
    if array.dtype == object or not is_float(array.dtype):
        return array
    info: Any = ml_dtypes.finfo(array.dtype)  # type: ignore[no-untyped-call]
    step = float(info.eps)
    together = min(step, _FINE) * rng.integers(-_STEPS, _STEPS + 1)
    apart = step * rng.choice([-1.0, 1.0], size=array.shape)
    with np.errstate(all="ignore"):
        moved = array.astype(np.float64) * (1 + together + apart)
        return np.asarray(moved.astype(array.dtype))


def changed(array: Array, rng: Generator, sizes: Sequence[int] = ()) -> Array:
    """The array with other values in some or in all places, with the same shape and type.

    Args:
        sizes: dimensions near which indices are interesting.
    """
    return np.asarray(_changed(array, rng, sizes)) if array.size else array


def _changed(array: Array, rng: Generator, sizes: Sequence[int]) -> Array:
    way = rng.integers(5)
    if way == 0:
        return _as(np.full(array.shape, _extreme(array.dtype, rng, sizes), object), array.dtype)
    if way == 1:
        return array.ravel()[rng.integers(array.size, size=array.size)].reshape(array.shape)
    if way == 2:
        return _random(array, rng)
    flat = array.astype(object).ravel()
    count = 1 if way == 3 else int(rng.integers(1, array.size + 1))
    for at in rng.choice(array.size, count, replace=False):
        flat[at] = _extreme(array.dtype, rng, sizes)
    return _as(flat.reshape(array.shape), array.dtype)


def _random(array: Array, rng: Generator) -> Array:
    found: Array = array
    if array.dtype.kind == "b":
        found = rng.integers(2, size=array.shape).astype(bool)
    elif is_integer(array.dtype):
        low, high = bounds(array.dtype)
        if low < -(2**8) or high > 2**8:
            low, high = max(low, -5), 6
        found = rng.integers(low, high, size=array.shape, endpoint=True).astype(array.dtype)
    elif array.dtype.kind != "O":
        with np.errstate(all="ignore"):
            scale = rng.choice([0.1, 1, 10])
            found = (rng.standard_normal(array.shape) * scale).astype(array.dtype)
    return found


def _extreme(dtype: np.dtype[Any], rng: Generator, sizes: Sequence[int]) -> Any:
    if dtype.kind == "O":
        return TEXTS[rng.integers(len(TEXTS))]
    if dtype.kind == "b":
        return bool(rng.integers(2))
    if not is_integer(dtype):
        return FLOATS[rng.integers(len(FLOATS))]
    low, high = bounds(dtype)
    near = [sign * size + by for size in sizes for sign in (1, -1) for by in (-1, 0)]
    known = [each for each in (*INTEGERS, *near, low, high) if low <= each <= high]
    # Half of them are near a dimension, because most others are refused at once.
    if near and rng.integers(2):
        known = [each for each in near if low <= each <= high] or known
    return known[rng.integers(len(known))]


def _as(array: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):
        if dtype.kind == "V":
            return array.astype(np.int64 if _is_integer(dtype) else np.float32).astype(dtype)
        return array.astype(dtype)


def converted(array: Array, dtype: np.dtype[Any]) -> Array:
    """The array in another numeric type, as far as its values fit."""
    if "O" in (array.dtype.kind, dtype.kind):
        return array
    with np.errstate(all="ignore"):
        if is_integer(dtype):
            low, high = bounds(dtype)
            numbers = np.nan_to_num(array.astype(np.float64), nan=0.0)
            return np.clip(numbers, max(low, -(2**52)), min(high, 2**52)).astype(dtype)
        return array.astype(np.float32 if dtype.kind == "V" else dtype).astype(dtype)
