"""What a request's compilation depends on, and the sizes with which a network is tried."""

from __future__ import annotations

import numpy as np

from headrace.plugins.openvino.sizes import (
    fixed_shapes,
    key_of,
    likely_shapes,
    sizing_inputs,
    text_of,
)
from headrace.testing.case import network_of

RESHAPE = "f (float[N,3] x, int64[K] p) => (float[A,B] y) { y = Reshape(x, p) }"


def test_it_depends_on_shapes_and_on_values_that_say_sizes() -> None:
    made = network_of(RESHAPE)
    sizing = sizing_inputs(made)
    assert sizing == {"p"}
    x = np.ones((2, 3), np.float32)
    keys = [
        key_of(made, {"x": x * factor, "p": np.array(shape)}, sizing)
        for factor, shape in ((1, (6, 1)), (2, (6, 1)), (1, (3, 2)))
    ]
    assert keys[0] == keys[1] != keys[2]
    assert keys[0] is not None
    assert text_of(keys[0]) == "2x3, 2"


def test_there_is_none_for_an_empty_input_nor_for_a_long_one_that_says_sizes() -> None:
    made = network_of(RESHAPE)
    x, sizing = np.ones((2, 3), np.float32), sizing_inputs(made)
    assert key_of(made, {"x": x[:0], "p": np.array([0, 3])}, sizing) is None
    assert key_of(made, {"x": x, "p": np.ones(65, np.int64)}, sizing) is None


def test_axes_of_one_name_are_tried_with_one_size_and_rows_with_two_and_one() -> None:
    """Some networks take one row alone, as for their states."""
    made = network_of("f (float[N,3,T] x, float[N,T] z) => (float[A] y) { y = Neg(x) }")
    found = [*likely_shapes(made)]
    assert found[0] == {"x": (2, 3, 64), "z": (2, 64)}
    assert {"x": (1, 3, 64), "z": (1, 64)} in found


def test_a_network_may_say_all_its_sizes() -> None:
    assert fixed_shapes(network_of("f (float[2,3] x) => (float[2,3] y) { y = Neg(x) }")) == {
        "x": (2, 3)
    }
    assert fixed_shapes(network_of(RESHAPE)) is None
