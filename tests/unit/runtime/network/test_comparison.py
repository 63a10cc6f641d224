"""When two answers count as the same."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from headrace.runtime.network.comparison import difference, differing, tells

FLOATS = np.array([100, -3, 0], np.float32)


def same(found: Any, right: Any, precision: str = "f32") -> bool:
    return differing({"y": found}, {"y": right}, precision) is None


def test_floats_may_be_off_by_a_thousandth_of_the_largest() -> None:
    assert same(FLOATS + np.float32(0.09), FLOATS)
    assert not same(FLOATS + np.float32(0.11), FLOATS)


def test_and_by_more_where_less_precision_was_asked_for() -> None:
    assert same(FLOATS + 1, FLOATS, "f16")
    assert same(FLOATS + 4, FLOATS, "bf16")
    assert not same(FLOATS + 6, FLOATS, "bf16")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_and_where_the_network_has_less(dtype: Any) -> None:
    right = np.array([100, 1], dtype)
    assert same((right.astype(np.float32) + np.float32(0.5)).astype(dtype), right)
    assert not same(right * dtype(2), right)


def test_the_differing_output_and_the_error_are_told() -> None:
    right = {"x": FLOATS, "y": FLOATS}
    told = "output 'y' differs from CPU's by 100, and its largest number is 100"
    assert differing({"x": FLOATS, "y": 2 * FLOATS}, right, "f32") == told
    assert differing({"y": np.array([1, 2])}, {"y": np.array([1, 3])}, "f32") == (
        "output 'y' differs from CPU's in 1 of 2 integers"
    )
    assert differing({"y": FLOATS}, {"y": FLOATS[:2]}, "f32") == (
        "output 'y' is float32(3,), and CPU's is float32(2,)"
    )


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinities_are_in_the_same_places(special: float) -> None:
    right = np.array([1, special, 2], np.float32)
    assert same(right.copy(), right)
    assert not same(np.array([1, 3e38, 2], np.float32), right)
    assert not same(right, np.array([1, 3e38, 2], np.float32))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, np.bool_])
def test_integers_are_equal(dtype: Any) -> None:
    right = np.array([0, 1, 1]).astype(dtype)
    assert same(right.copy(), right)
    assert not same(right[::-1], right)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_but_those_of_8_bits_may_be_rounded_either_way(dtype: Any) -> None:
    right = np.array([5, 100, np.iinfo(dtype).max], dtype)
    assert same(np.array([6, 99, np.iinfo(dtype).max], dtype), right)
    assert not same(np.array([7, 100, np.iinfo(dtype).max], dtype), right)
    assert not same(np.array([5, 100, np.iinfo(dtype).min], dtype), right)


def test_shapes_and_types_are_equal() -> None:
    assert not same(FLOATS.reshape(1, 3), FLOATS)
    assert not same(FLOATS.astype(np.float64), FLOATS)
    assert same(np.float32(2), np.array(2, np.float32))


def test_a_request_of_equal_floats_shows_nothing() -> None:
    assert tells({"x": FLOATS, "i": np.zeros(3, np.int64)})
    assert not tells({"x": FLOATS, "z": np.zeros((2, 2), np.float32)})
    assert not tells({"x": np.ones(2, ml_dtypes.bfloat16)})
    assert tells({"x": np.array(3, np.float32), "y": np.ones(1, np.float32)})


TEXTS = np.array(["a", b"b"], object)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({}, "output 'y' is missing"),
        ({"y": None}, "output 'y' is absent, and version 1's is a tensor"),
        ({"y": [FLOATS]}, "output 'y' is a sequence of 1, and version 1's is a tensor"),
    ],
)
def test_another_kind_of_value_differs_as_a_whole(found: Any, why: str) -> None:
    assert difference(found, {"y": FLOATS}, "f32", "version 1") == (1.0, why)


def test_texts_have_to_be_equal_as_bytes_or_not() -> None:
    assert difference({"y": TEXTS}, {"y": np.array([b"a", "b"], object)}, "f32") == (0.0, "")
    told = "output 'y' differs from CPU's in 1 of 2 texts"
    assert difference({"y": TEXTS}, {"y": TEXTS[::-1].copy()[[1, 1]]}, "f32") == (1.0, told)


def test_each_element_of_a_sequence_is_compared() -> None:
    found, right = [FLOATS, 2 * FLOATS, None], [FLOATS, FLOATS, None]
    relative, why = difference({"y": found}, {"y": right}, "f32")  # type: ignore[dict-item]
    assert (relative, why.partition(" differs")[0]) == (1.0, "output 'y'[1]")


def test_the_largest_difference_is_in_units_of_the_outputs_largest_number() -> None:
    right = {"a": FLOATS, "b": np.array([4, 0], np.int32)}
    found = {"a": FLOATS + 1, "b": np.array([4, 1], np.int32)}
    assert difference(right, right, "f32") == (0.0, "")
    assert difference(found, right, "f32").relative == 0.25
    assert difference({"a": FLOATS + 1}, {"a": FLOATS}, "f16") == (0.01, "")
    zeros = {"a": np.zeros(2, np.float32)}
    assert difference({"a": FLOATS}, zeros, "f32").relative == 1.0
