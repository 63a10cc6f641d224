"""Typed values of metrics and configuration keys."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.parameters import ParameterValue, Range, decode_parameter, encode_parameter

int64s = st.integers(-(2**63), 2**63 - 1)


@given(
    st.one_of(
        st.text(),
        int64s,
        st.floats(allow_nan=False),
        st.booleans(),
        st.lists(st.text()),
        st.builds(Range, int64s, int64s, int64s),
    )
)
def test_every_value_arrives_with_its_type(value: ParameterValue) -> None:
    received = decode_parameter(encode_parameter(value))
    assert received == value
    assert type(received) is type(value)


def test_nan_arrives() -> None:
    received = decode_parameter(encode_parameter(math.nan))
    assert isinstance(received, float)
    assert math.isnan(received)


def test_a_parameter_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="no value"):
        decode_parameter(pb.Parameter())


def test_integers_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="out of range"):
        encode_parameter(2**64)


def test_a_range_that_is_a_tuple_too_stays_a_range() -> None:
    class TupleRange(NamedTuple):
        minimum: int
        maximum: int
        step: int

    message = encode_parameter(TupleRange(1, 8, 1))
    assert decode_parameter(message) == Range(1, 8, 1)
