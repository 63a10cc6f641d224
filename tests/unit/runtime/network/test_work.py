"""How much a network computes, as far as its graph tells."""

from __future__ import annotations

import pytest

from headrace.runtime.network.work import multiply_adds
from headrace.runtime.transform.transform import transform_network
from headrace.testing import networks
from headrace.testing.case import Case, network_of


def work(text: str) -> int | None:
    network = network_of(text)
    return multiply_adds(transform_network(network))  # with the shapes that ONNX infers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m (float[2,3] x, float[3,5] w) => (float[2,5] y) { y = MatMul(x, w) }", 2 * 5 * 3),
        ("m (float[3,2] x, float[3,5] w) => (float[2,5] y) { y = Gemm<transA=1>(x, w) }", 30),
        (
            "m (float[7,4,2,3] x, float[3,5] w) => (float[7,4,2,5] y) { y = MatMul(x, w) }",
            7 * 4 * 2 * 5 * 3,
        ),
        (
            "m (float[1,4,8,8] x, float[6,4,3,3] w) => (float[1,6,8,8] y) {"
            " y = Conv<pads=[1,1,1,1]>(x, w) }",
            6 * 8 * 8 * 4 * 9,
        ),
        (
            "m (float[1,4,8,8] x, float[4,1,3,3] w) => (float[1,4,6,6] y) {"
            " y = Conv<group=4>(x, w) }",
            4 * 6 * 6 * 9,
        ),
        ("m (float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Exp(a) }", 12),
    ],
)
def test_layers_cost_their_products(text: str, expected: int) -> None:
    assert work(text) == expected


def test_a_batch_of_any_size_counts_as_one_row() -> None:
    assert work("m (float[N,3] x, float[3,5] w) => (float[N,5] y) { y = MatMul(x, w) }") == 15


@pytest.mark.parametrize(
    "text",
    [
        "m (float[1,T] x) => (float[1,T] y) { y = Relu(x) }",
        'm (float[1,4] x, float[4,2] w) => (float[1,2] y) { y = Einsum<equation="ij,jk">(x, w) }',
    ],
)
def test_what_the_graph_does_not_tell_is_not_guessed(text: str) -> None:
    assert work(text) is None


@pytest.mark.parametrize("case", [networks.loop(), networks.branch(), networks.recurrent()])
def test_bodies_and_sequences_of_any_length_are_not_guessed(case: Case) -> None:
    assert multiply_adds(transform_network(case.network)) is None


def test_a_network_with_fixed_sizes_is_known() -> None:
    assert multiply_adds(transform_network(networks.mlp().network)) == 485
