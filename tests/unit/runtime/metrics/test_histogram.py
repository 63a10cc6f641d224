"""Histogram: which bucket a value belongs to."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.execution.trace import Exemplar
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


def test_each_bucket_keeps_the_last_traced_value_only() -> None:
    histogram = Histogram((1.0, 2.0))
    first, second = Exemplar("a" * 32, "b" * 16, 1.0), Exemplar("c" * 32, "d" * 16, 2.0)
    histogram.observe(0.5, first)
    histogram.observe(0.7, second)
    histogram.observe(0.8)
    histogram.observe(1.5)
    snapshot = histogram.snapshot()
    assert dict(snapshot.examples) == {0: (0.7, second)}
    other = Histogram((1.0, 2.0))
    other.observe(9.0, first)
    assert dict((snapshot + other.snapshot()).examples) == {0: (0.7, second), 2: (9.0, first)}
