"""float16 on a device without it: what is left of a network's casts, and what values become."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.plugins.opencl.running import halves
from headrace.testing.case import Case, parse


def edges(text: str) -> list[str]:
    """Names of the nodes that are edges of a network, given its inputs, outputs and nodes."""
    graph = Case("f", parse(f"f {text}"), {}).network.model.graph
    return [node.name or "" for node in graph if halves.is_edge(node)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(float16[2] x) => (float[2] y) { [wide] y = Cast<to = 1>(x) }", ["wide"]),
        ("(float[2] x) => (float16[2] y) { [narrow] y = Cast<to = 10>(x) }", ["narrow"]),
        ("(float16[2] x) => (int32[2] y) { [other] y = Cast<to = 6>(x) }", []),
        (
            "(float[2] x) => (float[2] y) { [rounds] a = Cast<to = 10>(x) [on] y = Cast<to = 1>(a)"
            " }",
            [],
        ),
        (
            "(float[2] x) => (float16[2] a, float[2] y)"
            " { [read] a = Cast<to = 10>(x) [on] y = Cast<to = 1>(a) }",
            [],
        ),
    ],
)
def test_casts_at_the_edge_of_a_network_are_told_from_those_that_round(
    text: str, expected: list[str]
) -> None:
    assert edges(text) == expected


def test_values_are_widened_and_narrowed_also_in_sequences() -> None:
    half = np.array([1.5, 65504], np.float16)
    other = np.array([1], np.int64)
    wide = halves.widened([half, [half], other, None])
    assert [wide[0].dtype, wide[1][0].dtype, wide[2].dtype] == [np.float32, np.float32, np.int64]
    back = halves.narrowed(wide)
    assert back[0].dtype == np.float16
    assert np.array_equal(back[1][0], half)


def test_what_is_too_large_for_float16_becomes_infinite() -> None:
    assert np.isinf(halves.narrowed(np.array([1e6], np.float32))).all()
