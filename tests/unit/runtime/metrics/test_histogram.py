"""Histogram: which bucket a value belongs to."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.metrics.histogram import Histogram


def test_a_value_equal_to_a_bound_belongs_to_that_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.snapshot().counts == (2, 2, 1)


@given(st.lists(st.floats(0, 100), max_size=50))
def test_every_value_lands_in_exactly_one_bucket(values: list[float]) -> None:
    bounds = (0.1, 1.0, 10.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    snapshot = histogram.snapshot()
    assert snapshot.count == len(values)
    assert snapshot.sum == pytest.approx(sum(values))
    for index in range(len(bounds) + 1):
        assert snapshot.counts[index] == sum(
            bisect_left(bounds, value) == index for value in values
        )
