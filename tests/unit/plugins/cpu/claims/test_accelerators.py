"""Layers that a provider is not given."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from headrace.plugins.cpu.claims.accelerators import CUDA, of_provider
from headrace.testing.case import network_of, parse

CHECKED = [
    "(float[n] x, int64[k] at) => (float[k] y) { y = Gather(x, at) }",
    "(float[2,n] x, int64[2,1] at) => (float[2] y) { y = GatherND<batch_dims = 1>(x, at) }",
    "(float[n] x) => (float y) { at = Constant<value_int = -1>() y = Gather(x, at) }",
    "(float[5] x) => (float y) { at = Constant<value_int = 4>() y = Gather(x, at) }",
    "(float[n] x) => (float y) { r = Relu(x) at = Constant<value_int = 0>() y = Gather(r, at) }",
]
UNCHECKED = {
    "computes its indices": [
        "(float[5] x, int64[k] i) => (float[k] y) { at = Add(i, i) y = Gather(x, at) }",
        "(float[5] x, bool b, int64[k] at) => (float[k] y) { y = If(b) <"
        "then_branch = one () => (float[k] a) { a = Gather(x, at) },"
        "else_branch = two () => (float[k] c) { c = Gather(x, at) }> }",
    ],
    "computes what it picks from": [
        "(float[5] x, int64[k] at) => (float[k] y) { r = Relu(x) y = Gather(r, at) }",
        "(float[5] x, int64[k,1] at) => (float[k] y) { r = Relu(x) y = GatherND(r, at) }",
    ],
    "may be out of bounds": [
        "(float[5] x) => (float y) { at = Constant<value_int = 5>() y = Gather(x, at) }",
        "(float[n] x) => (float y) { at = Constant<value_int = 1>() y = Gather(x, at) }",
        "(float[5] x) => (float y) { r = Relu(x) at = Constant<value_int = 1>() y = Gather(r, at)}",
        "(float[5] x, float[1] u) => (float[5] y)"
        "{ at = Constant<value = int64[1,1] {-6}>() y = ScatterND(x, at, u) }",
    ],
}


def reasons(text: str, provider: str = "AnyExecutionProvider") -> list[str]:
    network = network_of(f"g {text}")
    reason = of_provider(provider, network.model)
    return [why for node in network.nodes() if (why := reason(node)) is not None]


def test_what_a_provider_is_known_to_get_wrong_is_refused() -> None:
    text = "(float[2] x) => (float[2] y) { y = Softplus(x) }"
    (why,) = reasons(text, "WebGpuExecutionProvider")
    assert "small results" in why
    assert reasons(text) == []


ON_CUDA = {
    "no kernel for this qk_matmul_output_mode": (
        "(float[1,2,3,8] q, float[1,2,3,8] k, float[1,2,3,8] v) => (float[1,2,3,8] y, float s) "
        "{ y, , , s = Attention<qk_matmul_output_mode = 1>(q, k, v) }"
    ),
    "of no elements": "(float[n,4] x) => (float[n,1] y) { y = ReduceLogSumExp<axes = [1]>(x) }",
    "looks for infinities": (
        "(float[2,4] x, float z) => (bool[2] y) "
        "{ m = ReduceMax<axes = [1], keepdims = 0>(x) y = Equal(m, z) }"
    ),
    "do not check labels": (
        "(float[3,5] x, int64[3] t) => (float y) { y = NegativeLogLikelihoodLoss(x, t) }"
    ),
    "ends all that the GPU does": (
        "(float[6,3] x, int64[3] n) => (float[6,3] y) { y = ReverseSequence(x, n) }"
    ),
    "nobody checks them": (
        "(float[5] x, int64[k] i) => (float[k] y) { at = Add(i, i) y = GatherElements(x, at) }"
    ),
}
CUDA_RUNS = [
    "(float[5] x, int64[k] i) => (float[k] y) { at = Add(i, i) y = Gather(x, at) }",
    "(float[2,4] x) => (float[2] y) { y = ReduceMax<axes = [1], keepdims = 0>(x) }",
    "(float[2,4] x) => (float[2,1] y) { y = ReduceLogSum<axes = [1]>(x) }",
    "(float[1,2,3,8] q, float[1,2,3,8] k, float[1,2,3,8] v) => (float[1,2,3,8] y) "
    "{ y = Attention(q, k, v) }",
]


@pytest.mark.parametrize(("why", "text"), ON_CUDA.items())
def test_what_a_gpu_gets_wrong_or_does_not_check_is_refused(why: str, text: str) -> None:
    (found,) = reasons(text, CUDA)
    assert why in found


@pytest.mark.parametrize("text", CUDA_RUNS)
def test_what_a_gpu_computes_right_is_taken(text: str) -> None:
    assert reasons(text, CUDA) == []


@pytest.mark.parametrize("text", CHECKED)
def test_indices_that_a_run_checks_are_taken(text: str) -> None:
    assert reasons(text) == []


@pytest.mark.parametrize(
    ("why", "text"), [(why, text) for why, texts in UNCHECKED.items() for text in texts]
)
def test_indices_that_nobody_checks_are_refused(why: str, text: str) -> None:
    found = reasons(text)
    assert found
    assert all(why in each for each in found)


def test_indices_with_a_default_are_refused() -> None:
    """A run may leave them out, and then nobody sees them."""
    model: onnx.ModelProto = parse(
        "g (float[5] x, int64[1] at) => (float[1] y) { y = Gather(x, at) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([9], np.int64), "at"))
    network = network_of(model)
    (node,) = network.nodes()
    assert "out of bounds" in (of_provider("A", network.model)(node) or "")


def test_a_function_that_was_not_inlined_is_refused() -> None:
    model: onnx.ModelProto = parse("g (float[5] x) => (float[5] y) { y = own.Twice(x) }")
    twice = onnx.parser.parse_function(
        '<opset_import: ["": 17], domain: "own"> Twice (x) => (y) { y = Add(x, x) }'
    )
    model.functions.append(twice)
    model.opset_import.add(domain="own", version=1)
    network = network_of(model)
    (node,) = network.nodes()
    assert "not inlined" in (of_provider("A", network.model)(node) or "")
