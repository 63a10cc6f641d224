"""What inputs and operators tell of whether requests can run together."""

from __future__ import annotations

import pytest

from headrace.plugins.batch.claims.mixing import check_layers, check_ports, check_shared
from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.network.network import Network
from headrace.testing import networks
from headrace.testing.case import network_of


def of(text: str) -> Network:
    return network_of(text)


def check(network: Network) -> None:
    check_ports(network)
    check_layers(network)


def refusal(text: str) -> str:
    with pytest.raises(FailedPrecondition, match="cannot run together") as refused:
        check(of(text))
    assert refused.value.field == "device"
    return refused.value.message


def test_a_network_with_a_batch_dimension_is_left_to_the_trial() -> None:
    check(networks.transformer().network)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("m (float[4,2] x) => (float[4,2] y) { y = Relu(x) }", "'x' is fixed at 4"),
        ("m (float x) => (float y) { y = Relu(x) }", "'x' has no first dimension"),
        (
            "m (seq(float[N]) x) => (float[N] y) { y = ConcatFromSequence<axis=0>(x) }",
            "not a tensor",
        ),
        (
            "m (float[N,2] x, float[M,2] z) => (float[N,2] y) { y = Relu(x) }",
            "do not share a first dimension: 'x' N, 'z' M",
        ),
        (
            "m (float[N,N] x) => (float[N] y) <int64 i = {-1}> { y = Gather<axis = -2>(x, i) }",
            "another dimension of input 'x' is N as well",
        ),
        (
            "m (float[N,2] x, float[1,2] z) => (float[N,2] y) { y = Add(x, z) }",
            "of input 'z' is fixed at 1",
        ),
        ("m () => (float y) { y = Constant<value_float = 1.0>() }", "no inputs"),
        ("m (float[1,2] x) => (float[1,2] y) { y = Relu(x) }", "can say by max_batch_size"),
    ],
)
def test_inputs_and_outputs_without_a_batch_dimension_are_refused(text: str, reason: str) -> None:
    assert reason in refusal(text)


BY_VALUES = {
    "scale": "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)",
    "list": "n = NonZero(x) y = Cast<to = 1>(n)",
    "different numbers": "y = Unique(x)",
    "training": "y, m, v = BatchNormalization<training_mode = 1>(x, one, one, one, one)",
    "in a body": """c = Constant<value = bool {1}>()
        y = If(c) <then_branch = a () => (t) { n = NonZero(x) t = Cast<to = 1>(n) },
                   else_branch = b () => (e) { e = Abs(x) }>""",
    "a branch": """m = ReduceMax<keepdims = 0>(x) c = Greater(m, limit)
        y = If(c) <then_branch = a () => (t) { t = Neg(x) },
                   else_branch = b () => (e) { e = Abs(x) }>""",
    "as long as a row is small": """y = Loop(, yes, x) <body = g (int64 i, bool c, float[N,4] h)
        => (bool more, float[N,4] next) {
            next = Add(h, h) m = ReduceMin<keepdims = 0>(next) more = Less(m, limit) }>""",
}


@pytest.mark.parametrize("kind", BY_VALUES)
def test_a_layer_that_mixes_rows_by_their_values_is_named(kind: str) -> None:
    constants = "float limit = {3.0}, float[4] one = {1, 1, 1, 1}, bool yes = {1}"
    text = f"m (float[N,4] x) => (float[N,4] y) <{constants}> {{ {BY_VALUES[kind]} }}"
    assert refusal(text).partition("cannot run together: ")[2].startswith("layer '")


def test_a_branch_that_sizes_decide_is_left_to_the_trial() -> None:
    check(
        of("""m (float[N,4] x) => (float[N,4] y) <int64[1] four = {4}> {
        s = Shape<start = 1>(x) c = Equal(s, four)
        y = If(c) <then_branch = a () => (t) { t = Neg(x) },
                   else_branch = b () => (e) { e = Abs(x) }> }""")
    )


def test_an_output_that_all_rows_share_must_not_follow_from_what_is_in_them() -> None:
    """A trial's rows may give the same by chance: the place of the largest of all, for instance."""
    network = of("m (float[N] x) => (float[N] y, int64[1] z) { y = Relu(x) z = ArgMax(x) }")
    check(network)
    with pytest.raises(FailedPrecondition, match="output 'z' has no batch dimension, and follows"):
        check_shared(network, {"z"})


def test_an_output_that_all_rows_share_may_follow_from_their_sizes() -> None:
    text = """
        m (float[N,K] x) => (float[N,K] y, int64[1] z, int64[1] c) <int64[1] c = {3}>
        { y = Relu(x) z = Shape<start = 1>(x) }
    """
    network = of(text)
    check(network)
    check_shared(network, {"z", "c"})
