"""Compares two values, within the precision of a device's arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def assert_same_outputs(
    actual: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float
) -> None:
    """Fails unless both have the same names, and values as `assert_same`."""
    assert set(actual) == set(expected)
    for name, value in expected.items():
        assert_same(actual[name], value, tolerance, name)


def assert_same(actual: Any, expected: Any, tolerance: float, name: str = "value") -> None:
    """Fails unless kind, dtype, shape and contents are equal.

    Args:
        tolerance: the allowed error of floating-point elements. It is relative, and absolute in
            units of the largest expected one. Everything else has to be exactly equal.
    """
    if isinstance(expected, list):
        assert isinstance(actual, list), f"{name} is a {type(actual).__name__}, not a sequence"
        assert len(actual) == len(expected), name
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_same(one, other, tolerance, f"{name}[{index}]")
        return
    if expected is None:
        assert actual is None, name
        return
    expected = np.asarray(expected)
    assert isinstance(actual, np.ndarray), f"{name} is a {type(actual).__name__}, not an array"
    assert actual.shape == expected.shape, name
    if expected.dtype.kind in "OSU":
        assert actual.dtype.kind == "O", f"{name} has dtype {actual.dtype}"
        assert _texts(actual) == _texts(expected), name
        return
    assert actual.dtype == expected.dtype, name
    if expected.dtype.kind in "biu" or not _is_number(expected.dtype):
        assert np.array_equal(actual, expected), f"{name}: {actual} is not {expected}"
        return
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    actual, expected = actual.astype(wide), expected.astype(wide)
    finite = expected[np.isfinite(expected)]
    scale = float(np.abs(finite).max(initial=0.0))
    np.testing.assert_allclose(
        actual, expected, rtol=tolerance, atol=tolerance * scale, err_msg=name
    )


def _is_number(dtype: np.dtype[Any]) -> bool:
    return bool(np.can_cast(dtype, np.complex128)) or dtype.kind in "fcV"


def _texts(array: np.ndarray[Any, Any]) -> list[str]:
    return [
        element.decode() if isinstance(element, bytes) else str(element)
        for element in array.ravel()
    ]
