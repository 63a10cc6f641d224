"""Networks of one row become networks of any number, or are refused with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from headrace.plugins.batch.transformations import batchable, with_fixed_rows
from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.network.network import Network
from headrace.runtime.network.reference.evaluator import CorrectedEvaluator
from headrace.testing import networks
from headrace.testing.case import parse
from headrace.testing.compare import assert_same
from headrace.testing.networks import random

ATTENTION = """attention (float[1,6,8] x) => (float[1,6,8] y) {
    qm = MatMul(x, wq) km = MatMul(x, wk)
    q = Reshape(qm, heads) k = Reshape(km, heads)
    qt = Transpose<perm = [0,2,1,3]>(q) kt = Transpose<perm = [0,2,3,1]>(k)
    d = MatMul(qt, kt)
    flat = Reshape(d, as_matrices) p = Softmax<axis = -1>(flat) back = Reshape(p, as_heads)
    vm = MatMul(x, wv) v = Reshape(vm, heads) vt = Transpose<perm = [0,2,1,3]>(v)
    m = MatMul(back, vt) t = Transpose<perm = [0,2,1,3]>(m)
    tokens = Reshape(t, as_tokens) o = Gemm(tokens, wo) y = Reshape(o, as_given)
}"""
SIZES = {
    "heads": [1, 6, 2, 4],
    "as_matrices": [2, 6, 6],
    "as_heads": [1, 2, 6, 6],
    "as_tokens": [6, 8],
    "as_given": [1, 6, 8],
}


def attention() -> onnx.ModelProto:
    """A block of attention with its batch of one in every shape, also merged with heads and
    tokens."""
    weights: dict[str, Any] = {
        name: random(8, 8, seed=seed) for seed, name in enumerate(["wq", "wk", "wv", "wo"])
    }
    weights.update({name: np.array(shape, np.int64) for name, shape in SIZES.items()})
    return parse(ATTENTION, weights)


def network(model: onnx.ModelProto) -> Network:
    return Network.from_bytes(model.SerializeToString())


def of(text: str, **weights: Any) -> Network:
    return network(parse(text, weights))


def test_one_row_becomes_any_number_through_all_reshapes() -> None:
    model = attention()
    ready = batchable(network(model))
    assert ready.rewritten
    assert (ready.analysis.doubts, ready.analysis.outputs) == ({}, {"y": 0})
    assert isinstance(ready.network.inputs[0].shape, tuple)
    assert not isinstance(ready.network.inputs[0].shape[0], int)
    rows = random(3, 6, 8, seed=9)
    given = CorrectedEvaluator(model)
    (together,) = CorrectedEvaluator(ready.network.to_bytes()).run(None, {"x": rows})
    for at in range(3):
        (alone,) = given.run(None, {"x": rows[at : at + 1]})
        assert_same(together[at : at + 1], alone, 1e-5)


def test_the_network_that_was_given_stays_as_it_is() -> None:
    given = network(attention())
    before = given.digest
    batchable(given)
    assert network(attention()).to_bytes() == given.to_bytes()
    assert given.digest == before


def test_a_shape_keeps_what_it_copies_beside_a_size_that_is_not_fixed() -> None:
    text = """m (float[1,S,8] x) => (float[1,S,2,4] y) {
        shape = Constant<value = int64[4] {1, -1, 2, 4}>() y = Reshape(x, shape) }"""
    ready = batchable(of(text))
    rows = random(3, 5, 8)
    (y,) = CorrectedEvaluator(ready.network.to_bytes()).run(None, {"x": rows})
    assert np.array_equal(y, rows.reshape(3, 5, 2, 4))


def test_a_network_with_a_batch_dimension_stays_as_it_is() -> None:
    given = networks.transformer().network
    ready = batchable(given)
    assert not ready.rewritten
    assert ready.network is given


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
            "m (float[N,2] x, float[1,2] z) => (float[N,2] y) { y = Add(x, z) }",
            "do not share a first dimension",
        ),
        ("m () => (float y) { y = Constant<value_float = 1.0>() }", "no inputs"),
        ("m (float[N,2] x) => (float[N,2] y) { y = Softmax<axis = 0>(x) }", "over the batch"),
    ],
)
def test_what_cannot_be_batched_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(FailedPrecondition, match="cannot run together") as refused:
        batchable(of(text))
    assert reason in refused.value.message
    assert refused.value.field == "device"


def test_rows_can_be_fixed_for_devices_that_want_it() -> None:
    fixed = with_fixed_rows(networks.mlp().network, 8)
    assert fixed.inputs[0].shape == (8, 8)
