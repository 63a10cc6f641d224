"""Indices that arrive as inputs are looked at before a kernel reads past what it indexes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.index_bounds import IndexBounds
from headrace.testing.case import Case, parse


def bounds(text: str) -> IndexBounds:
    return IndexBounds(Case("f", parse(f"f {text}"), {}).network.model)


PICK = "(float[3,5] x, int64[n] at) => (float[3,n] y) { [pick] y = Gather<axis = -1>(x, at) }"


@given(st.lists(st.integers(-8, 8), min_size=1, max_size=4))
def test_exactly_the_indices_within_the_axis_are_let_through(indices: list[int]) -> None:
    values = {"at": np.array(indices, np.int64)}
    if all(-5 <= index < 5 for index in indices):
        bounds(PICK).check(values)
    else:
        with pytest.raises(InvalidArgument):
            bounds(PICK).check(values)


def test_the_refusal_names_the_input_and_the_layer() -> None:
    with pytest.raises(InvalidArgument, match=r"'at'.*'pick'.*5 elements") as caught:
        bounds(PICK).check({"at": np.array([5])})
    assert caught.value.field == "inputs['at']"


@pytest.mark.parametrize(
    "text",
    [
        "(float[n,5] z, int64[2] at) => (float[2,5] y) { x = Neg(z) y = Gather(x, at) }",
        "(float[5] x) => (float[1] y) { at = Constant<value = int64[1] {4}>() y = Gather(x, at) }",
        "(float[5] x, int64[2] at) => (float[2] y) { i = Add(at, at) y = Gather(x, i) }",
    ],
)
def test_what_cannot_be_known_before_the_run_is_let_through(text: str) -> None:
    bounds(text).check({"at": np.array([[77], [77]])})


def test_sizes_that_only_the_request_tells_count_too() -> None:
    text = "(float[n] x, int64[1] at) => (float[1] y) { y = Gather(x, at) }"
    values = {"at": np.array([3]), "x": np.zeros(4, np.float32)}
    bounds(text).check(values)
    with pytest.raises(InvalidArgument, match="3 elements"):
        bounds(text).check({**values, "x": np.zeros(3, np.float32)})


def test_no_indices_are_within_bounds() -> None:
    bounds(PICK).check({"at": np.zeros(0, np.int64)})
